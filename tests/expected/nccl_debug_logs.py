"""NCCL's logs and jobs' outputs without operations: read, and said to have none."""

from __future__ import annotations

from tests.expected._expected import Expected

EXPECTED = {
    "alcf_resnet50_with_aws.log": Expected(
        kind="nccl_debug", how="grep -c 'opCount ' -> 0; only the watchdog of PyTorch speaks"
    ),
    "alcf_vae_without_aws.log": Expected(
        kind="nccl_debug", how="grep -c 'opCount \\|loss' -> 0; progress bars and ranks"
    ),
    # The job is nccl-tests: its results are read, not the lines of NCCL around them.
    "whk_h100_g2_auto_nccl2.29.2.log": Expected(
        kind="nccl_debug+nccl_tests",
        rows={"collectives": 12},
        how="6 sizes from 268435456 to 8589934592, out of place and in place",
    ),
}
