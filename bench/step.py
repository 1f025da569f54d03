"""A whole step of training on two ranks: over a link of 1 Gb/s, and over one that costs nothing.

The link is a virtual cable between two network namespaces. Where none can be had it is modelled:
the step over loopback, and then its bytes at 1 Gb/s, overlapping nothing.
"""

from __future__ import annotations

import statistics
from typing import Any

from bench import _step_rank
from bench._cables import GBPS, RUNS, NoLinkError, train

GOAL = 0.5
CABLE = "xtune0"
NAMES = (
    "policies.step_1gbps_vs_bf16",
    "policies.step_1gbps_q4_8_vs_bf16",
    "policies.step_free_link_vs_dense",
)
RUNGS = ("q4", "q4_8")  # what the default ladder ends with, and the rung before


def _train(methods: tuple[str, ...], *, shaped: bool) -> dict[str, Any]:
    """What rank 0 measured of the methods; raises as `train`."""
    task = {"methods": methods, "device": CABLE if shaped else "lo"}
    return train(_step_rank.__name__, task, (CABLE,) if shaped else ())


def _row(
    name: str, own: list[float], peer: list[float], goal: float | None, against: str
) -> dict[str, object]:
    ours, theirs = statistics.median(own), statistics.median(peer)
    return {
        "name": name,
        "ratio": ours / theirs,
        "goal": goal,
        "better": "lower",
        "value": ours * 1e3,
        "unit": "ms/step",
        "against": against,
        "runs": RUNS,
    }


def _slow_link() -> list[dict[str, object]]:
    methods = ("bf16", *RUNGS)
    try:
        measured = _train(methods, shaped=True)
        link = "shaped"
    except NoLinkError as reason:
        print(f"{NAMES[0]}: the link is modelled: {reason}", flush=True)
        measured = _train(methods, shaped=False)
        link = "modelled"
    seconds: dict[str, list[float]] = measured["seconds"]
    # The loopback's counter holds what both ranks sent.
    share = 1 if link == "shaped" else 2
    sent = {method: statistics.median(measured["sent"][method]) / share for method in methods}
    if link == "modelled":
        for method in methods:
            seconds[method] = [s + sent[method] * 8 / (GBPS * 1e9) for s in seconds[method]]
    against = (
        f"a hook that sends bf16: {statistics.median(seconds['bf16']) * 1e3:.0f} ms; link of "
        f"{GBPS} Gb/s {link}, {_step_rank.LAYERS} layers of {_step_rank.WIDTH} squared, 2 ranks; "
        "sent, by the kernel's counters: {:.1f} of {:.1f} MB a rank and step"
    )
    return [
        _row(
            name, seconds[rung], seconds["bf16"], GOAL,
            against.format(sent[rung] / 1e6, sent["bf16"] / 1e6),
        )
        for name, rung in zip(NAMES, RUNGS, strict=False)
    ]  # fmt: skip


def _free_link() -> dict[str, object]:
    seconds = _train(("dense", "q4_8"), shaped=False)["seconds"]
    ours, dense = (statistics.median(seconds[method]) for method in ("q4_8", "dense"))
    return _row(
        NAMES[-1], seconds["q4_8"], seconds["dense"], None,
        f"the same without a hook (fp32) over loopback: {dense * 1e3:.0f} ms, ours adds "
        f"{(ours - dense) * 1e3:+.0f} ms",
    )  # fmt: skip


def run() -> list[dict[str, object]]:
    """Medians of several runs of a few steps, all methods in turn."""
    return [*_slow_link(), _free_link()]
