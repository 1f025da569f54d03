"""DLRover xpu_timer's exposition of one worker with eight GPUs."""

from tests.expected._expected import Expected

EXPECTED = {
    "normal_xpu_timer_metric_0.prom": Expected(
        kind="prometheus_text",
        rows={"gpu_samples": 8},
        how="grep ^XPU | grep -o ',rank=\"[0-9]*\"' | sort -u | wc -l: ranks, a GPU each",
    ),
}
