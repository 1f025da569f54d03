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
    "whk_h100_g2_auto_nccl2.29.2.log": Expected(
        kind="nccl_debug", how="grep -c 'opCount ' -> 0; 812 lines of NCCL, Init and TUNING"
    ),
}
