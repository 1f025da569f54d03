"""Workloads written for a simulator: input of the simulator, not telemetry."""

from tests.expected._expected import Expected

NOT_TELEMETRY = "head -2: layers and sizes planned, nothing that was measured"
EXPECTED = {
    name: Expected(kind=None, state="unknown", rejects=1, how=NOT_TELEMETRY)
    for name in (
        "aicb_gpt13b_simai_A100.txt",
        "aicb_gpt13b_tp8.csv",
        "aicb_simai_all_reduce.txt",
        "aicb_workload_spec_v1.1.csv",
        "simai_workload_analytical.txt",
    )
}
