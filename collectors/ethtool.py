"""``ethtool -S`` text: counters of Ethernet ports, one device or many, once or in a loop.

What it assumes: a device is named by the command that stands before its counters (a prompt or
``set -x`` trace with ``ethtool -S eth0``), a ``==> eth0 <==`` or ``eth0:`` line, or
``Standard stats for eth0:``; speed and PCI address by ``ethtool eth0`` and ``ethtool -i eth0`` in
the same file. When it lies: names are cut at 32 characters by the kernel, so a name may stand
twice; such counters are left out. Of counters behind ``| grep`` no sum is made.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from xtune.collectors._base import Collector, Context, Item, Note, Reject, RowBuffer, Rows, Source
from xtune.collectors._ethtool import Section, counters, number, split
from xtune.collectors._ib import link_id
from xtune.collectors._ib_text import clip
from xtune.collectors._ib_time import content_id, fallback_time
from xtune.collectors._textlines import Lines
from xtune.collectors._time_lines import TimeLines

#: A kernel interface name (``dev_valid_name``): no slash, colon or blank, at most 15 long.
_NAME = r"[^\s/:$\"'`|;<>()]{1,15}"
_COMMAND = re.compile(r"(?:^|[\s/;])ethtool\s+(?P<arguments>.*)")
_STATISTICS = re.compile(rf"(?:-S|--statistics)\s+(?:-\S+\s+)*(?P<device>{_NAME})(?=$|[\s|;>])")
#: A pipe after the command leaves some counters out; one that leaves out zeros harms no sum.
_FILTER = re.compile(r"\|\s*(?!sort\b|tee\b|cat\b|less\b|more\b|column\b)(\w+[^|]*)")
_NO_ZEROS = re.compile(r"e?grep\s+(?:-\w*v\w*)\s+['\"]?:? ?0\$?['\"]?\s*")
_PROMPT = re.compile(r"[\w.-]+@([A-Za-z0-9][\w.-]*)[:\s\]]")
_FILE_HEAD = re.compile(r"==> (?:.*/)?(\S+) <==")
_FOR = re.compile(rf"(?P<what>[A-Z][\w /-]*) for (?P<device>{_NAME}):")
_BARE = re.compile(rf"[#=*\-\s]*(?P<device>[a-z]{_NAME}?):?[=*\-\s]*")
_SPEED = re.compile(r"Speed: (\d{1,7})Mb/s")
_PCI = re.compile(r"bus-info: ([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")
_HEADERS = {"NIC statistics:", "PHY statistics:"}
#: What a dump without header has: counters that some driver surely prints.
_KNOWN = re.compile(
    r"^\s*(?:\[\d+\]: |\w+: )?(?:port\.)?(?:[rt]x\d*_(?:bytes|packets|ucast_packets|dropped|errors"
    r"|unicast|octets_prio_0|bytes_phy|frames)(?:\.nic)?|queue_\d+_[rt]x_(?:cnt|bytes)|rx_missed"
    r"|[rt]x_prio\d_bytes|(?:rx|tx)_queue_\d+_packets): \d+\s*$",
    re.M,
)
_PAIR = re.compile(r"^\s*\S.*: \d+\s*$", re.M)


class _Reading:
    """The blocks of one file; a block is one device's counters at one time."""

    def __init__(self, source: Source, context: Context) -> None:
        self._source, self._context = source, context
        self._rows = RowBuffer("link_counters", context)
        self._fallback = fallback_time(source, context)
        self._unknown = ""
        self._blocks = 0  # since the last time: tells unnamed devices of a loop apart
        self._rows_made = False
        self._section = "statistics"
        self._values: dict[str, int] = {}
        self._twice: set[str] = set()
        self._queue = Section()
        self._filtered = False
        self._maybe: str | None = None
        self.times = TimeLines(context)
        self.notes: Counter[str] = Counter()
        self.device: str | None = None
        self.host: str | None = None
        self.ts: int | None = None
        self.ports: dict[tuple[str | None, str], dict[str, float | str]] = {}

    def take(self, line: str) -> str | None:
        """Take a line; what is wrong with it, or ``None``."""
        text = line.strip()
        maybe, self._maybe = self._maybe, None
        if not text:
            return None
        if text in _HEADERS:
            if text == "NIC statistics:" or self._section != "statistics":
                self.end()
            self._section = "statistics"
            if maybe:
                self.device = maybe
            return None
        if self._heading(text):
            return None
        is_time, ts = self.times.take(text)
        if is_time:
            self.end()
            self.ts, self._blocks = ts, 0
            return None
        if self._section != "statistics":
            self._about(text)
            return None
        pair = split(text)
        if pair is None:
            bare = _BARE.fullmatch(text)
            if bare:
                self._maybe = bare["device"]
            elif text == "no stats available":
                self.notes["a device without statistics"] += 1
            else:
                return "not a line of ethtool"
            return None
        value = number(pair[1])
        if value is None:
            return "not a counter"
        name = self._queue.name(line, *pair)
        if name is not None and self._values.setdefault(name, value) != value:
            self._twice.add(name)
        return None

    def _heading(self, text: str) -> bool:
        """Take a line that names a device or a section; whether it was one."""
        command = _COMMAND.search(text)
        if command:
            self.end()
            wanted = _STATISTICS.search(command["arguments"])
            self.device = wanted["device"] if wanted else None
            if wanted is None:
                words = re.findall(rf"(?<!\S)(?!-){_NAME}(?!\S)", command["arguments"])
                self.device = words[0] if len(words) == 1 else None
            self._section = "statistics" if wanted else "other"
            filters = _FILTER.findall(command["arguments"])
            self._filtered = not all(map(_NO_ZEROS.fullmatch, filters))
            prompt = _PROMPT.search(text[: command.start() + 1])
            if prompt:
                self.host = prompt[1].lower()
            return True
        head = _FILE_HEAD.fullmatch(text)
        if head:
            self.end()
            self.ts = self.host = None
            self._filtered = False
            name = re.sub(r"\.(txt|log|out)$", "", head[1])
            self.device = name if re.fullmatch(_NAME, name) else None
            self._section = "statistics"
            return True
        about = _FOR.fullmatch(text)
        if about:
            standard = about["what"] == "Standard stats"
            if not standard or about["device"] != self.device:
                self.end()
            self.device = about["device"]
            self._section = "statistics" if standard else "other"
            return True
        if text.startswith("driver: ") and not self._values:
            self._section = "other"
            return True
        return False

    def _about(self, text: str) -> None:
        speed, pci = _SPEED.fullmatch(text), _PCI.fullmatch(text)
        if self.device and (speed or pci):
            known = self.ports.setdefault((self._host(), self.device), {})
            if speed:
                known["rate_gbps"] = int(speed[1]) / 1000
            if pci:
                known["pci"] = pci[1]

    def _host(self) -> str | None:
        return self.host or (self._context.host.lower() if self._context.host else None)

    def _unknown_id(self) -> str:
        if not self._unknown:
            self._unknown = content_id(self._source)
        return self._unknown

    def end(self, *, whole: bool = True) -> None:
        """End a block and make its row, if it had counters.

        Args:
            whole: Whether all of the block was there.
        """
        values, self._values = self._values, {}
        twice, self._twice = self._twice, set()
        self._queue = Section()
        if not values:
            return
        if twice:
            self.notes["names that stand twice with different values: left out"] += len(twice)
            values = {name: value for name, value in values.items() if name not in twice}
        self._blocks += 1
        self._rows_made = True
        ts = self.ts if self.ts is not None else self._fallback
        if ts is None:
            self.notes["counters without a time: ts is null (--time-from says otherwise)"] += 1
        host, device = self._host(), self.device or self._context.labels.get("device")
        if device is None:
            self.notes["counters without a device (--label device=eth0 names it)"] += 1
        elif host is None:
            self.notes["counters without a host (--host names it)"] += 1
        if device:
            self.ports.setdefault((host, device), {})
        self._rows.add(
            {
                **counters(values, whole=whole and not self._filtered),
                "ts": ts,
                "link": self._link(host, device or f"{self._unknown_id()}-{self._blocks}"),
                "host": host,
                "device": device,
                "port": 1,
                "rate_gbps": self.ports.get((host, device or ""), {}).get("rate_gbps"),
            }
        )

    def full(self) -> Iterator[Rows]:
        """The rows so far, if they are many."""
        if self._rows.full:
            yield from self._rows.flush()

    def _link(self, host: str | None, device: str) -> str:
        return link_id(None, host, device, 1, host or self._unknown_id())

    def finish(self) -> Iterator[Item]:
        """The last block, the ports, and what a user should know."""
        self.end()
        yield from self._rows.flush()
        seen = RowBuffer("ports", self._context)
        for (host, device), about in self.ports.items():
            seen.add(
                {
                    "ts": self._fallback,
                    "host": host,
                    "device": device,
                    "port": 1,
                    "netdev": device,
                    "link": self._link(host, device),
                    "link_layer": "Ethernet",
                    **about,
                }
            )
        yield from seen.flush()
        for text, count in self.notes.items():
            yield Note(text, count)
        yield from self.times.stamps.notes()
        if not self._rows_made and not self.ports:
            yield Reject("file", "no counters of ethtool in it", "ethtool -S <device> gives them")


class Ethtool(Collector):
    """Reads line by line; holds one device's counters at a time."""

    name = "ethtool"
    title = "ethtool -S: counters of Ethernet ports (PFC pause, discards, RoCE bytes)"
    produce = "ethtool -S eth0 (in a loop: date +%s.%N; ethtool -S eth0)"
    gives = "the port's bytes and packets with RoCE, pause time, discards, link flaps"
    lacks = "time, host and device where no command line or date stands in the file"

    def claim(self, path: Path, head: bytes) -> float:
        """Certain of ethtool's own header; plausible of lines of a driver's counters."""
        text = head.decode("utf-8", "replace")
        if re.search(r"^NIC statistics:\s*$|^Standard stats for \S+:\s*$", text, re.M):
            return 0.95
        known = len(_KNOWN.findall(text))
        if known < 4:
            return 0.0
        lines = [line for line in text.splitlines() if line.strip()]
        return 0.8 if len(_PAIR.findall(text)) >= 0.9 * len(lines) - 1 else 0.0

    def read(self, source: Source, context: Context) -> Iterator[Item]:
        """Yield a row of ``link_counters`` a block, and ``ports`` where a device is known."""
        reading = _Reading(source, context)
        lines = Lines(source)
        for line in lines:
            cut = not line.whole and split(line.text) is not None
            if cut:
                reading.end(whole=False)
            wrong = "line without an end, it may be cut" if cut else reading.take(line.text)
            if wrong:
                yield Reject(line.place, f"{wrong}: {clip(line.text)!r}")
            yield from reading.full()
        yield from reading.finish()
        yield from lines.rejects


COLLECTOR = Ethtool()
