"""Says which inputs cannot have their data counters in the unit that they say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from xtune.lake import InputRecord


def packet_notes(
    rows: Iterable[Mapping[str, Any]], inputs: Mapping[str, InputRecord]
) -> list[str]:
    """One line for each input and direction.

    Args:
        rows: Of model ``packet_check``, from all ranges of links of a chunk.
        inputs: What was read, by id.
    """
    found: dict[tuple[str, str, bool], dict[str, Any]] = {}
    seen = []
    for row in rows:
        if row in seen:  # ranges that looked at the same sample of one file
            continue
        seen.append(row)
        large = bool(row["too_large"])
        key = row["source"] or "", row["direction"], large
        sums = found.setdefault(
            key, {"wrong": 0, "links": 0, "mean": row["median_bytes"], "misread": False}
        )
        sums["wrong"] += row["too_large"] if large else row["too_small"]
        sums["links"] += row["links"]
        sums["misread"] |= row["misread"]
    notes = []
    for (source, direction, large), sums in sorted(found.items()):
        record = inputs.get(source)
        notes.append(
            f"{record.name if record else source}: data {direction} looks 4 times too"
            f" {'large' if large else 'small'} for its packets on {sums['wrong']} of"
            f" {sums['links']} links (mean packet {sums['mean']:.0f} bytes)"
            f"{', so its data is left unknown' if sums['misread'] else ''}: read it again"
            f" with --map data_unit_bytes={1 if large else 4}"
        )
    return notes
