"""Published tables of other clusters: statistics, not telemetry of one of our formats."""

from tests.expected._expected import Expected

NOT_OURS = "file: its header names no counter, loss or event"
EXPECTED = {
    "acme_cluster_summary.csv": Expected(kind=None, state="unknown", rejects=1, how=NOT_OURS),
    "acme_ib_seren_cdf.csv": Expected(kind=None, state="unknown", rejects=1, how=NOT_OURS),
    "alibaba_minibatch_cov_30jobs.csv.gz": Expected(
        kind=None, state="unknown", rejects=1, how=NOT_OURS
    ),
    "alibaba_minibatch_job_1_norm.csv": Expected(
        kind=None, state="unknown", rejects=1, how=NOT_OURS
    ),
    "acme_ib_seren.pkl": Expected(
        kind="flight_recorder",
        state="rejected",
        rejects=1,
        reason="would run code",
        how="python -m pickletools: STACK_GLOBAL at byte 53, a pandas frame",
    ),
}
