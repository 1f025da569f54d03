"""ibnetdiscover: the topology form, and the line form of ``-p``/``--ports``.

Also what writes the same form: ibdiagnet's ``.ibnetdiscover`` and simulated ``.topo`` files.
What it assumes: in the topology form the GUID in ``"H-..."`` is the node's, the one in round
brackets the port's. When it lies: ``-p`` prints port GUIDs only, which for an adapter port need
not be the node's GUID; such ends are marked (``extra``: ``src_guid_is``) and counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from xtune.collectors._base import Collector, Context, Item, Note, Reject, Source
from xtune.collectors._fabric_topology import LINE, Reading
from xtune.collectors._ib_text import clip, read_lines
from xtune.collectors._ib_time import fallback_time, parse_ctime, zone


class Ibnetdiscover(Collector):
    """Holds the fabric, which its ports bound, not the file."""

    name = "ibnetdiscover"
    title = "ibnetdiscover topology, blocks or --ports lines"
    produce = "ibnetdiscover > topology.txt (or ibnetdiscover -p > ports.txt)"
    gives = "links in both directions with width, rate and tier; ports with descriptions, LIDs"
    lacks = "counters; -p knows adapters by port GUID only"
    version = 2

    def claim(self, path: Path, head: bytes) -> float:
        """Certain where the head has lines of either form."""
        text = head.decode("utf-8", "replace")
        if re.search(r"^(switchguid|caguid|rtguid)=0x[0-9a-f]+", text, re.M):
            return 0.95
        if any(LINE.fullmatch(line.rstrip() + " ") for line in text.splitlines()[:200]):
            return 0.95
        if re.search(r"^(Switch|Ca)\s+: 0x[0-9a-f]{16} ports \d+ devid 0x", text, re.M):
            return 0.9
        return 0.5 if re.search(r'^(Switch|Ca)\s+\d+\s+"[SH]-[0-9a-f]', text, re.M) else 0.0

    def read(self, source: Source, context: Context) -> Iterator[Item]:
        """Yield ``ports`` and ``topology_links``, each direction once."""
        reading = Reading()
        damage: list[Reject] = []
        rejected: Reject | None = None
        last, line = 0, ""
        for number, line in read_lines(source, damage):
            last = number
            wrong = reading.take(line)
            if wrong:
                if rejected is not None:
                    yield rejected
                rejected = Reject(f"line {number}", f"{wrong}: {clip(line)!r}")
        wrong = reading.finish()
        if wrong:
            if rejected is not None:
                yield rejected
            rejected = Reject(f"line {last}", f"{wrong}: {clip(line)!r}")
        if rejected is not None and rejected.offset == f"line {last}" and reading.understood:
            reason = f"the file seems cut here: {rejected.reason}"
            rejected = Reject(rejected.offset, reason, "discover again")
        if rejected is not None:
            yield rejected
        yield from damage
        ts = reading.ts
        if ts is None and reading.local_stamp:
            ts = parse_ctime(reading.local_stamp, zone(context))
            if ts is None:
                yield Note("time without a zone: ts is null (--tz names the zone)")
        if ts is None:
            ts = fallback_time(source, context)
        if reading.port_guids:
            yield Note("adapter port known by its port GUID only (-p)", reading.port_guids)
        if reading.messages:
            yield Note("message of the tool between the lines", reading.messages)
        yield from reading.rows(ts, context)
        if reading.listed and not reading.understood:
            yield Note("a list of nodes (-l) has no ports and no links", reading.listed)
        elif not (reading.understood or reading.messages or rejected or damage):
            yield Reject("file", "no node and no port in it", "is it ibnetdiscover's output?")


COLLECTOR = Ibnetdiscover()
