"""A whole step of training on two ranks: over a link of 1 Gb/s, and over one that costs nothing.

Where it may, each rank gets a network namespace without a name, joined by a virtual cable with a
token bucket on each end: all of it goes when the processes end, however they end. Elsewhere the
link is modelled: the step over loopback, and then its bytes at 1 Gb/s, overlapping nothing.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import _step_rank

RUNS = 9
STEPS = 3  # in each run
LIMIT_S = 400.0
GBPS = 1
GOAL = 0.5
CABLE = "xtune0"
NETWORK = "10.253.0"
NAMES = (
    "policies.step_1gbps_vs_bf16",
    "policies.step_1gbps_q4_8_vs_bf16",
    "policies.step_free_link_vs_dense",
)
RUNGS = ("q4", "q4_8")  # what the default ladder ends with, and the rung before


class NoLinkError(Exception):
    """No link can be shaped here."""


def _call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoLinkError(f"{' '.join(command)}: {done.stderr.strip()}")


def lay_cable(pids: list[int], name: str, network: str) -> None:
    """Join two namespaces and shape what each end sends.

    Args:
        pids: a process in each.
        name: of the device on both ends.
        network: first three bytes of the addresses.

    Raises:
        NoLinkError: it cannot be done here.
    """
    first, second = map(str, pids)
    _call(
        "ip", "link", "add", "name", name, "netns", first,
        "type", "veth", "peer", "name", name, "netns", second,
    )  # fmt: skip
    for pid, end in ((first, 1), (second, 2)):
        inside = ("nsenter", "--target", pid, "--net")
        _call(*inside, "ip", "address", "add", f"{network}.{end}/30", "dev", name)
        _call(*inside, "ip", "link", "set", name, "up")
        _call(
            *inside, "tc", "qdisc", "add", "dev", name, "root",
            "tbf", "rate", f"{GBPS}gbit", "burst", "256kb", "latency", "50ms",
        )  # fmt: skip


def ready(rank: subprocess.Popen[str]) -> bool:
    """Wait until a rank runs, in its namespace; False where it may not have one."""
    assert rank.stdout is not None
    return rank.stdout.readline().strip() == _step_rank.READY


def _train(methods: tuple[str, ...], *, shaped: bool) -> dict[str, Any]:
    """What rank 0 measured of the methods.

    Raises:
        NoLinkError: ``shaped``, and it cannot be.
        RuntimeError: A rank failed; what it said is on standard error.
    """
    tools = ("unshare", "nsenter", "ip", "tc")
    if shaped and not all(map(shutil.which, tools)):
        raise NoLinkError(f"{', '.join(tools)} are not all here")
    apart = ("unshare", "--net") if shaped else ()
    command = (*apart, sys.executable, "-m", _step_rank.__name__)
    ranks = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        with tempfile.TemporaryDirectory() as folder:
            if shaped:
                if not all(map(ready, ranks)):
                    raise NoLinkError("no namespace for a rank")
                lay_cable([rank.pid for rank in ranks], CABLE, NETWORK)
            for number, rank in enumerate(ranks):
                task = {
                    "rank": number, "store": str(Path(folder) / "store"), "methods": methods,
                    "device": CABLE if shaped else "lo", "runs": RUNS, "steps": STEPS,
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
