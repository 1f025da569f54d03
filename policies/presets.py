"""Policies by name: the baselines, the founding document's joint policy, and its ablations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ._fields import PolicyError
from .spec import Compression, Policy, Routing, Rung


def static_dense() -> Policy:
    """Static paths and uncompressed gradients: what a cluster does without us."""
    return Policy(
        name="static_dense",
        routing=Routing(mode="static"),
        compression=Compression(mode="off", rung_by_level=(0, 0, 0, 0)),
    )


def fixed_drop() -> Policy:
    """Static paths and fixed-ratio gradient dropping: no residual, no warm-up, no control."""
    return Policy(
        name="fixed_drop",
        routing=Routing(mode="static"),
        compression=Compression(
            mode="drop",
            ladder=(
                Rung(name="off", bits_input=16, bits_head=16),
                Rung(name="drop", bits_input=16, bits_head=16),
            ),
            rung_by_level=(1, 1, 1, 1),
            error_feedback=False,
            warmup_iterations=0,
            curvature_gain=0.0,
        ),
    )


def priority() -> Policy:
    """Static paths, uncompressed gradients marked for the upper of two lanes."""
    return Policy(
        name="priority",
        routing=Routing(mode="static", lanes=2),
        compression=Compression(mode="off", rung_by_level=(0, 0, 0, 0)),
    )


def joint() -> Policy:
    """Routing and compression together, with the founding document's values."""
    return Policy(name="joint")


def routing_only() -> Policy:
    """The routing half of `joint`."""
    return Policy(
        name="routing_only",
        compression=Compression(mode="off", rung_by_level=(0, 0, 0, 0)),
    )


def compression_only() -> Policy:
    """The compression half of `joint`."""
    return Policy(name="compression_only", routing=Routing(mode="static"))


def oblivious_spray() -> Policy:
    """Units sprayed over all equal-cost paths without looking; uncompressed gradients."""
    return Policy(
        name="oblivious_spray",
        routing=Routing(mode="spray"),
        compression=Compression(mode="off", rung_by_level=(0, 0, 0, 0)),
    )


def power_of_two() -> Policy:
    """Each unit takes the emptier of two random paths; uncompressed gradients."""
    return Policy(
        name="power_of_two",
        routing=Routing(mode="power_of_two"),
        compression=Compression(mode="off", rung_by_level=(0, 0, 0, 0)),
    )


def flowlet() -> Policy:
    """A new path only after a gap, then the least loaded one; uncompressed gradients."""
    return Policy(
        name="flowlet",
        routing=Routing(mode="flowlet"),
        compression=Compression(mode="off", rung_by_level=(0, 0, 0, 0)),
    )


def fine_ladder() -> Policy:
    """`joint` with more widths to choose from; the same widths at each congestion level."""
    widths = ((16, 16), (8, 8), (6, 8), (4, 8), (4, 6), (4, 4), (3, 4), (3, 3))
    return Policy(
        name="fine_ladder",
        compression=Compression(
            ladder=tuple(
                Rung(name=f"q{low}_{high}" if low < 16 else "off", bits_input=low, bits_head=high)
                for low, high in widths
            ),
            rung_by_level=(1, 3, 3, 5),
        ),
    )


def learned_ratio() -> Policy:
    """`joint` with an untrained network beside its rule for the ratio, which changes nothing."""
    return Policy(name="learned_ratio", compression=Compression(ratio_rule="learned"))


PRESETS: dict[str, Callable[[], Policy]] = {
    made.__name__: made
    for made in (
        static_dense,
        fixed_drop,
        priority,
        joint,
        routing_only,
        compression_only,
        oblivious_spray,
        power_of_two,
        flowlet,
        fine_ladder,
        learned_ratio,
    )
}


def preset(name: str) -> Policy:
    """A preset by its name.

    Args:
        name: One of `PRESETS`.

    Returns:
        The policy.

    Raises:
        PolicyError: There is no such preset.
    """
    if name not in PRESETS:
        raise PolicyError(f"name: {name!r} is not one of {', '.join(PRESETS)}")
    return PRESETS[name]()


def with_probes(policy: Policy, interval_ns: int, *, whole_flows: bool = False) -> Policy:
    """A policy's routing with values that suit the probes of a real network.

    The presets' values are the founding document's and suit a simulator, where a link has a
    reading each 10 us. Here a queue fills within a few probes, so the newest counts most and 40 %
    full, two probes ahead, is a warning. A flow stays for ten probes after a move; those that were
    there before another came wait for 6 to 18, in which they see whether its move helped.
    A reading holds for twenty.

    Args:
        policy: The policy.
        interval_ns: Time between two probes of a path, 1 us to 0.5 s.
        whole_flows: The actuator moves a flow as a whole, as a route does. Then a flow has one
            pair, moves to the coldest path, and leaves it only where that one is warned: back on
            the primary it would fill the very queue that it had left.

    Returns:
        The same policy with other routing parameters.

    Raises:
        PolicyError: An interval out of range.
    """
    if not 1_000 <= interval_ns <= 500_000_000:
        raise PolicyError(f"interval_ns: {interval_ns} is not within 1000 and 500000000")
    hold_ns = 10 * interval_ns
    routing = replace(
        policy.routing,
        probe_interval_ns=interval_ns,
        stale_ns=20 * interval_ns,
        hold_ns=hold_ns,
        horizon_ns=2 * interval_ns,
        level_gain=0.8,
        slope_gain=0.8,
        enter_occupancy=0.4,
        exit_occupancy=0.2,
        cold_occupancy=0.3,
        moves_per_ms=1e6 / hold_ns,
        yield_ns=6 * interval_ns,
    )
    if whole_flows:
        routing = replace(routing, pairs=1, order="coldest", exit_occupancy=0.0)
    return replace(policy, routing=routing)
