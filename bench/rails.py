"""A whole step of training on two ranks over one network of 1 Gb/s, and striped over two.

Virtual cables join the ranks' network namespaces, one for each rail and one, of the same rate, for
control. Where they cannot be had, nothing is measured.
"""

from __future__ import annotations

import statistics

from bench import _rails_rank, _step_rank
from bench._cables import GBPS, RUNS, NoLinkError, train

CONTROL, RAILS = "xtune0", ("xtune1", "xtune2")
RUNGS = ("dense", "q4_8")
# Of each: the rung, rails, rails of the one it is compared with, goal.
CASES = {
    "policies.rails_dense_two_vs_one": ("dense", 2, 1, 0.7),  # half, and what is not on the wire
    "policies.rails_q4_8_two_vs_one": ("q4_8", 2, 1, None),
    "policies.rails_dense_one_vs_none": ("dense", 1, 0, None),  # what striping itself costs
    "policies.rails_q4_8_one_vs_none": ("q4_8", 1, 0, None),
}
NAMES = tuple(CASES)


def run() -> list[dict[str, object]]:
    """Medians of several runs of a few steps, both in turn."""
    try:
        task = {"control": CONTROL, "rails": [(), RAILS[:1], RAILS], "rungs": RUNGS}
        measured = train(_rails_rank.__name__, task, (CONTROL, *RAILS))
    except NoLinkError as reason:
        print(f"{NAMES[0]}: not measured: {reason}", flush=True)
        return []
    rows: list[dict[str, object]] = []
    for name, (rung, rails, others, goal) in CASES.items():
        ours, theirs = measured[f"{rung} {rails}"], measured[f"{rung} {others}"]
        own, peer = (statistics.median(each["seconds"]) for each in (ours, theirs))
        shares = "/".join(f"{share:.2f}" for share in ours["rail_shares"])
        against = f"{others} rail" if others else "no rails, a network"
        rows.append(
            {
                "name": name,
                "ratio": own / peer,
                "goal": goal,
                "better": "lower",
                "value": own * 1e3,
                "unit": "ms/step",
                "against": f"{against} of {GBPS} Gb/s: {peer * 1e3:.0f} ms; {_step_rank.LAYERS} "
                f"layers of {_step_rank.WIDTH} squared, 2 ranks; shares in the end {shares}",
                "runs": RUNS,
            }
        )
    return rows
