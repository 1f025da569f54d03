"""What is shown on the emulated fabric, one function a scenario; each returns plain data.

Times from one event to another are differences of CLOCK_MONOTONIC, which all namespaces share.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from xtune.proofs.emulated.measures import (
    Plain,
    delays_ms,
    median_interval,
    packets,
    probes,
    quantile,
    reasons,
)
from xtune.proofs.emulated.stage import Stage

SETTLE_S = 0.4  # of one flow alone, before the other comes
DRAIN_S = 0.15  # until what was sent has arrived: several full queues
_LIMIT_S = 20.0  # for what is to come about
_FAR_LEAF = 1


def collision(stage: Stage, seconds: float, *, tcp: bool = False) -> Plain:
    """Both flows over the first spine, the second one later.

    Args:
        stage: With the engine or without.
        seconds: From the second flow's first packet on.
        tcp: Streams as fast as they go, instead of packets at a rate.

    Returns:
        Both flows, the spines' round trips and the moves since both were there.
    """
    _prepare(stage)
    _start(stage, 0, tcp=tcp)
    time.sleep(SETTLE_S)
    onset_ns = _start(stage, 1, tcp=tcp)
    first_ns = time.time_ns()
    if tcp:
        for flow in range(2):
            _flow_report(stage, flow)  # what has come so far
    time.sleep(seconds)
    last_ns = time.time_ns()
    streams = [_stream(_flow_report(stage, flow), seconds) for flow in range(2)] if tcp else []
    flows = _stop(stage)
    return {
        "flows": streams or flows,
        "window_ns": (first_ns, last_ns),
        "moves": _moves(stage, onset_ns),
        "pauses": len(_pauses(stage, onset_ns)),
    }  # fmt: skip


def logged(stage: Stage, window_ns: tuple[int, int]) -> Plain:
    """What probes and engines have logged of a collision.

    Args:
        stage: Closed: a log is complete when its process has ended.
        window_ns: From when to when.

    Returns:
        Round trips of each spine, by the probes of the first sending host; why flows moved.
    """
    spines = range(stage.fabric.shape.spines)
    why = [reasons(stage.decisions(flow), *window_ns) for flow in range(2)]
    return {
        "spines": [probes(stage.probe_log(0), spine, *window_ns) for spine in spines],
        "reasons": {name: sum(each.get(name, 0) for each in why) for name in {**why[0], **why[1]}},
    }


def reaction(stage: Stage, repeats: int, seed: int, each_s: float = 0.6) -> Plain:
    """Collisions again and again: how long from the second flow's first packet to a move.

    Args:
        stage: With the engine.
        repeats: How many.
        seed: Of the time between the flows, so that probes are met at any phase.
        each_s: How long the two flows are together.

    Returns:
        Quantiles over all repeats, and over those in which no sender was left without a processor
        for long before the move; the moves of each.
    """
    rng = random.Random(seed)
    first_ms: list[float] = []
    undisturbed_ms: list[float] = []
    moves: list[int] = []
    losses: list[float] = []
    for _ in range(repeats):
        _prepare(stage)
        _start(stage, 0)
        time.sleep(SETTLE_S + rng.random() * 0.01)
        onset_ns = _start(stage, 1)
        time.sleep(each_s)
        losses += [flow["loss"] for flow in _stop(stage)]
        found = _moves(stage, onset_ns)
        moves.append(len(found))
        for move in found[:1]:
            first_ms.append(move["after_ms"])
            if not any(pause < move["after_ms"] for pause in _pauses(stage, onset_ns)):
                undisturbed_ms.append(move["after_ms"])
    return {
        "repeats": repeats, "moved": len(first_ms), "undisturbed": len(undisturbed_ms),
        "onset_to_move_ms": _spread(first_ms), "undisturbed_ms": _spread(undisturbed_ms),
        "median_interval_ms": median_interval(undisturbed_ms, seed),
        "all_ms": first_ms, "moves": moves, "most_loss": max(losses),
    }  # fmt: skip


def path_killed(stage: Stage) -> Plain:
    """The spine in use dies and returns, then the other one dies.

    Returns:
        Times from cut to move and from mending to re-admission; the flow's packets.
    """
    _prepare(stage)
    _start(stage, 0)
    time.sleep(SETTLE_S)
    cut_ns = time.monotonic_ns()
    stage.fabric.cut(0, _FAR_LEAF)
    moved_ns = _moved_to(stage, 0, 1, cut_ns)
    mended_ns = time.monotonic_ns()
    stage.fabric.mend(0, _FAR_LEAF)
    back_ns = _state_since(stage, 0, mended_ns, lambda state: not state["dead"])
    cut_again_ns = time.monotonic_ns()
    stage.fabric.cut(1, _FAR_LEAF)
    returned_ns = _moved_to(stage, 0, 0, cut_again_ns)
    stage.fabric.mend(1, _FAR_LEAF)
    time.sleep(SETTLE_S)
    return {
        "cut_to_move_ms": _ms(cut_ns, moved_ns),
        "mended_to_readmitted_ms": _ms(mended_ns, back_ns),
        "cut_again_to_move_ms": _ms(cut_again_ns, returned_ns),
        "flow": _stop(stage)[0],
    }


def both_killed(stage: Stage) -> Plain:
    """Both spines die and return: the primary is used, and traffic resumes on it."""
    _prepare(stage)
    _start(stage, 0)
    time.sleep(SETTLE_S)
    cut_ns = time.monotonic_ns()
    for spine in range(2):
        stage.fabric.cut(spine, _FAR_LEAF)
    dead_ns = _state_since(stage, 0, cut_ns, lambda state: len(state["dead"]) == 2)
    time.sleep(SETTLE_S)
    shares = stage.events(0, "moved")[-1]["shares"]
    _flow_report(stage, 0)  # what has come so far; from here on it is told apart
    time.sleep(SETTLE_S)
    silent = _flow_report(stage, 0)
    for spine in range(2):
        stage.fabric.mend(spine, _FAR_LEAF)
    mended_ns = time.monotonic_ns()
    back_ns = _state_since(stage, 0, mended_ns, lambda state: not state["dead"])
    time.sleep(SETTLE_S)
    resumed = _flow_report(stage, 0)
    _stop(stage)
    return {
        "both_dead_after_ms": _ms(cut_ns, dead_ns), "shares_while_dead": shares,
        "received_while_dead": _received(silent), "received_after": _received(resumed),
        "mended_to_readmitted_ms": _ms(mended_ns, back_ns),
    }  # fmt: skip


def agents_killed(stage: Stage) -> Plain:
    """The probe agents are killed before the flows meet, and come back.

    Returns:
        How long until an engine noticed; moves and loss meanwhile, and after their return.
    """
    _prepare(stage)
    _start(stage, 0)
    time.sleep(SETTLE_S)
    killed_ns = time.monotonic_ns()
    for agent in stage.agents:
        agent.kill()
    gone_ns = _state_since(stage, 0, killed_ns, lambda state: not state["alive"])
    time.sleep(stage.stale_s)
    onset_ns = _start(stage, 1)
    time.sleep(1.0)
    static = _moves(stage, onset_ns)
    meanwhile = [_flow_report(stage, flow) for flow in range(2)]
    returned_ns = time.monotonic_ns()
    stage.agents = [stage.start_agent(flow) for flow in range(2)]
    ready_ns = time.monotonic_ns()
    back_ns = _state_since(stage, 0, returned_ns, lambda state: state["alive"])
    _until(lambda: bool(_moves(stage, returned_ns)))
    time.sleep(1.0)
    moves = _moves(stage, ready_ns)
    flows = _stop(stage)
    return {
        "killed_to_noticed_ms": _ms(killed_ns, gone_ns), "moves_while_gone": len(static),
        "received_while_gone": [_received(report) for report in meanwhile],
        "ready_to_noticed_ms": _ms(ready_ns, back_ns), "moves_after": moves, "flows": flows,
    }  # fmt: skip


def bursts(stage: Stage, seconds: float, on_s: float = 0.1, off_s: float = 0.15) -> Plain:
    """The second flow comes and goes: what its bursts do to the delay of both.

    Args:
        stage: With the engine or without.
        seconds: How long, after a first second that is told apart.
        on_s: Length of a burst.
        off_s: Length of a pause.

    Returns:
        Delays of both flows in the first second and after it; moves and loss in all of it.
    """
    _prepare(stage)
    _start(stage, 0)
    time.sleep(SETTLE_S)
    alone = [_flow_report(stage, flow) for flow in range(2)]
    onset_ns = _start(stage, 1, on_s=on_s, off_s=off_s)
    time.sleep(1.0)
    first = [_flow_report(stage, flow) for flow in range(2)]
    time.sleep(seconds)
    after = [_flow_report(stage, flow) for flow in range(2)]
    ended = _stop(stage)
    came = [_received(alone[i]) + _received(first[i]) + _received(after[i]) + ended[i]["received"]
            for i in range(2)]  # fmt: skip
    return {
        "first_second": [delays_ms(_only(report)) for report in first],
        "after_it": [delays_ms(_only(report)) for report in after],
        "loss": [1.0 - came[i] / ended[i]["sent"] for i in range(2)],
        "moves": _moves(stage, onset_ns),
    }


def _prepare(stage: Stage) -> None:
    for sender in stage.senders:
        sender.events.clear()
        sender.say("prepare")
        sender.wait_for("prepared")


def _start(stage: Stage, flow: int, **how: Any) -> int:
    """When the flow's first packet left."""
    stage.senders[flow].say("start", **how)
    at_ns: int = stage.senders[flow].wait_for("first")["at_ns"]
    return at_ns


def _stop(stage: Stage) -> list[Plain]:
    """End the flows; those that had been started."""
    sent = []
    for sender in stage.senders:
        sender.say("stop")
        sent.append(sender.wait_for("stopped"))
    time.sleep(DRAIN_S)
    flows = []
    for flow, told in enumerate(sent):
        arrived = _flow_report(stage, flow)
        if "unsent" in told:
            flows.append(packets(told, arrived["bursts"].get(str(told["burst"]))))
    return flows


def _flow_report(stage: Stage, flow: int) -> Plain:
    stage.receivers[flow].say("report")
    return stage.receivers[flow].wait_for("report")


def _only(report: Plain) -> Plain:
    """The one burst of a report."""
    (burst,) = report["bursts"].values()
    found: Plain = burst
    return found


def _received(report: Plain) -> int:
    return sum(burst["received"] for burst in report["bursts"].values())


def _stream(report: Plain, seconds: float) -> Plain:
    return {"received_mbps": report["stream_bytes"] * 8 / seconds / 1e6}


def _moves(stage: Stage, since_ns: int) -> list[Plain]:
    """Moves of all flows since a time, in order."""
    found = [
        {"after_ms": _ms(since_ns, event["at_ns"]), "flow": flow, "shares": event["shares"]}
        for flow in range(len(stage.senders))
        for event in stage.events(flow, "moved")
        if event["at_ns"] > since_ns
    ]
    return sorted(found, key=lambda move: move["after_ms"] or 0.0)


def _pauses(stage: Stage, since_ns: int) -> list[float]:
    """When a sender was left without a processor, in ms since a time."""
    events = [event for flow in range(2) for event in stage.events(flow, "paused")]
    ended = [event["at_ns"] + event["ms"] * 1e6 for event in events]
    return [(at_ns - since_ns) / 1e6 for at_ns in ended if at_ns > since_ns]


def _spread(values: list[float]) -> dict[str, float | None]:
    return {f"{q:g}": quantile(values, q) for q in (0.5, 0.9, 1.0)}


def _moved_to(stage: Stage, flow: int, path: int, since_ns: int) -> int | None:
    """When the flow moved to a path since a time; None where it did not."""

    def found() -> list[Plain]:
        return [e for e in stage.events(flow, "moved")
                if e["at_ns"] > since_ns and e["shares"][path] == 1.0]  # fmt: skip

    return found()[0]["at_ns"] if _until(lambda: bool(found())) else None


def _state_since(
    stage: Stage, flow: int, since_ns: int, holds: Callable[[Plain], bool]
) -> int | None:
    """When the engine was first in a state since a time; None where it never was."""

    def found() -> list[Plain]:
        return [e for e in stage.events(flow, "state") if e["at_ns"] > since_ns and holds(e)]

    return found()[0]["at_ns"] if _until(lambda: bool(found())) else None


def _until(holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + _LIMIT_S
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def _ms(first_ns: int, last_ns: int | None) -> float | None:
    return None if last_ns is None else (last_ns - first_ns) / 1e6
