"""A whole step of training on two ranks over one network of 1 Gb/s, and striped over two.

Each rank has a network namespace without a name; virtual cables with a token bucket on each end
join them, one for each rail and one, of the same rate, for control. Where that cannot be had,
nothing is measured.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import _rails_rank, _step_rank
from bench.step import GBPS, LIMIT_S, NoLinkError, lay_cable, ready

RUNS = 9
STEPS = 3  # in each run
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


def _train() -> dict[str, Any]:
    """What rank 0 measured.

    Raises:
        NoLinkError: No link can be shaped here.
        RuntimeError: A rank failed; what it said is on standard error.
    """
    command = ("unshare", "--net", sys.executable, "-m", _rails_rank.__name__)
    ranks = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        with tempfile.TemporaryDirectory() as folder:
            if not all(map(ready, ranks)):
                raise NoLinkError("no namespace for a rank")
            for number, cable in enumerate((CONTROL, *RAILS)):
                lay_cable([rank.pid for rank in ranks], cable, f"10.253.{number}")
            for number, rank in enumerate(ranks):
                task = {
                    "rank": number, "store": str(Path(folder) / "store"), "control": CONTROL,
                    "rails": [(), RAILS[:1], RAILS], "rungs": RUNGS, "runs": RUNS, "steps": STEPS,
                }  # fmt: skip
                assert rank.stdin is not None
                rank.stdin.write(json.dumps(task) + "\n")
                rank.stdin.flush()
            said = [rank.communicate(timeout=LIMIT_S)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    if any(rank.returncode for rank in ranks):
        raise RuntimeError("a rank of the training failed")
    measured: dict[str, Any] = json.loads(said[0].splitlines()[-1])
    return measured


def run() -> list[dict[str, object]]:
    """Medians of several runs of a few steps, both in turn."""
    try:
        measured = _train()
    except (NoLinkError, FileNotFoundError) as reason:
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
