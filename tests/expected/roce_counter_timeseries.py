"""Counters of injected faults: pairs before and after, events, and a table of results."""

from tests.expected._expected import Expected

EXPECTED = {
    "unionxic_LARGE_MSG_RETRY_EXC_QP_ERR.csv": Expected(
        kind="counters_csv",
        rows={"link_counters": 6},
        how="grep -c 'trial=[0-9]': 3 trials, each a row before and one after",
    ),
    "unionxic_timeline_retry_exc.csv": Expected(
        kind="counters_csv",
        rows={"link_counters": 67},
        how="grep -v '^#' | grep -vc CQE_RECEIVED: 67 counters changed",
    ),
    "unionxic_early_detect_combined.csv": Expected(
        kind="counters_csv",
        state="rejected",
        rejects=1,
        reason="no column has a counter's name",
        how="head -2: latencies and a delta, of which counter is not said",
    ),
}
