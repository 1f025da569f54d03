"""Policies by name: the baselines, the founding document's joint policy, and its ablations."""

from __future__ import annotations

from collections.abc import Callable

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
