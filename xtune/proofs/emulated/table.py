"""The figures of a scenario as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def as_text(name: str, found: Mapping[str, Any]) -> str:
    """One scenario: its name, then one line for each part of it."""
    return "\n".join([name, *(f"  {line}" for line in _lines(found))])


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    for key, value in found.items():
        if key in ("off", "on"):
            yield from (f"{key:<4}{line}" for line in _lines(value))
        elif key == "flows":
            yield from (f"flow {i + 1}: {_flow(flow)}" for i, flow in enumerate(value))
        elif key == "flow":
            yield f"flow: {_flow(value)}"
        elif key == "spines":
            yield from (f"spine {i + 1}: {_spine(spine)}" for i, spine in enumerate(value))
        elif key == "moves" and value and isinstance(value[0], dict):
            yield f"{len(value)} moves, first after {value[0]['after_ms']:.1f} ms"
        elif key != "all_ms":
            yield f"{key.replace('_', ' ')}: {_shown(value)}"


def _flow(flow: Mapping[str, Any]) -> str:
    if "loss" not in flow:
        return f"{flow['received_mbps']:.1f} Mb/s"
    delay = flow["delay_ms"]
    words = [f"{flow['received_mbps']:.1f} Mb/s", f"loss {_percent(flow['loss'])}",
             f"{flow['reordered']} reordered"]  # fmt: skip
    if delay:
        words.append(f"delay p50 {delay['0.5']:.2f} p99.9 {delay['0.999']:.2f} ms")
        words.append(f"longest gap {flow['longest_gap_ms']:.0f} ms")
    return ", ".join(words)


def _spine(spine: Mapping[str, Any]) -> str:
    rtt = spine["rtt_ms"]
    return (f"RTT p50 {_shown(rtt['0.5'])} p99 {_shown(rtt['0.99'])} ms, "
            f"{spine['lost']} of {spine['probes']} probes lost")  # fmt: skip


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{share * 100:.2f} %"


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_shown(each)}" for key, each in value.items())
    if isinstance(value, list):
        return " ".join(_shown(each) for each in value) or "none"
    return "unknown" if value is None else str(value)
