"""A calibration written down by hand: 8 hosts under 4 leaves, four buckets of 100 M elements."""

from __future__ import annotations

from xtune.sim.calibration import Calibration, LayerShape, Parameter
from xtune.sim.response import assumed_response

BUCKETS = 4
ELEMENTS = 100_000_000  # of a bucket
GBPS = 400.0
# Ring all-reduce of a bf16 bucket over 8 ranks at line rate: 2 * 7/8 * 2e8 bytes * 8 / 4e11.
BUCKET_S = 2 * 7 / 8 * 2 * ELEMENTS * 8 / (GBPS * 1e9)
VALUES = {
    "step_s": 0.1 + BUCKET_S,
    "compute_s": 0.1,
    "compute_jitter": 0.0,
    "first_bucket_share": 0.5,
    "collective_bytes": 2.0 * ELEMENTS,
    "collectives_per_step": float(BUCKETS),
    "collective_s": BUCKET_S,
    "reading_noise": 0.0,
    "element_bytes": 2.0,
    "ranks": 8.0,
    "job_hosts": 8.0,
    "hosts": 8.0,
    "leaves": 4.0,
    "spines": 2.0,
    "rate_gbps": GBPS,
    "link_latency_ns": 500.0,
    "ecmp_share": 0.0,
    "same_lane_share": 1.0,
    "episode_rate_per_h": 0.0,
    "episode_length_s": 60.0,
    "episode_length_shape": 4.0,
    "episode_hit_share": 1.0,
    "episode_slowdown": 3.0,
    "episode_slowdown_sigma": 0.0,
    "episode_edge_share": 0.0,
    "background_load": 0.0,
    "loss_floor": 2.0,
    "loss_scale": 6.0,
    "loss_exponent": 0.3,
    "loss_noise": 0.0,
    "gradient_change": 0.1,
    "gradient_change_sigma": 0.0,
    "regulation_s": 0.0,
    "change_s": 0.0,
    "codec_s_per_element": 0.0,
}


def made(**values: float) -> Calibration:
    """The calibration with some values of one's own."""
    parameters = {n: Parameter(name=n, value=v) for n, v in VALUES.items()}
    parameters |= {p.name: p for p in assumed_response()}
    count = 4 * BUCKETS
    layers = tuple(
        LayerShape(name=f"l{i}", elements=ELEMENTS // 4, depth=i / (count - 1))
        for i in range(count)
    )
    calibration = Calibration(
        job="train", parameters=parameters, buckets=(2 * ELEMENTS,) * BUCKETS, layers=layers
    )
    return calibration.with_values(**values)
