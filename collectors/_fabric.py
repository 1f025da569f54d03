"""The whole fabric through the management tools, in two processes a reading.

``ibqueryerrors --counters`` reads the data counters of every port of the fabric, 64 bits where
the device has them; ``ibqueryerrors`` with thresholds of 0 reads the errors and
``port_xmit_wait``. Both find the nodes and their LIDs themselves before they read, so a LID that
moved cannot put one port's counters on another. ``ibnetdiscover`` gives the topology once, and
again when the fabric has changed or half a minute is over. No command clears a counter.

What it assumes: ports of one kind of device are able to do the same, so ``perfquery`` asks one
node of each kind for its tick and for whether it counts waiting. When it lies: errors and waiting
are read while the data counters are, not at the same instant; rows carry the time at which the
data counters of their port arrived.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from xtune.collectors._base import Context, Item, Note, Reject, RowBuffer
from xtune.collectors._fabric_counters import CHECKED, Gathered, counter_name
from xtune.collectors._fabric_errors import FAILED, ErrorsReading, PortLine
from xtune.collectors._fabric_topology import Reading
from xtune.collectors._ib import has_counters, lanes_of, xmit_wait_tick
from xtune.collectors._ib_text import clip

#: Time that a query of one port may take (ms); the tools try three times. Their own default of a
#: second makes one switch that does not answer cost minutes.
ANSWER_MS = "300"
#: Time between discoveries of the topology while nothing seems to have changed.
REDISCOVER_NS = 30 * 10**9
#: PortCounters has PortXmitWait (ClassPortInfo, CapabilityMask bit 12).
_HAS_WAIT = 1 << 12
_PROBES = 3
_CAPABILITIES = re.compile(r"CapMask: 0x([0-9A-Fa-f]{1,4})\b")
_TICK = re.compile(r"Tick:\.*0x([0-9A-Fa-f]{1,2})\s*$")

_THRESHOLDS = ("--threshold-file", "/dev/null")  # an empty file: every threshold is 0
DISCOVER = ("ibnetdiscover", "--timeout", ANSWER_MS)
DATA = ("ibqueryerrors", "--counters", *_THRESHOLDS, "--timeout", ANSWER_MS)
ERRORS = ("ibqueryerrors", *_THRESHOLDS, "--timeout", ANSWER_MS)
_SKIP_SL = "--skip-sl"
_NO_FABRIC_HINT = (
    "run it on a node of the fabric with an active port, a subnet manager, and leave to open "
    "/dev/infiniband/umad* (root)"
)
_INSTALL_HINT = "install infiniband-diags"


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """What a command has written.

    Attributes:
        lines: Standard output; with each line the time it arrived, ns since the epoch.
        errors: Standard error.
        status: Exit status; null where it was ended because it took too long.
        missing: There is no such command.
    """

    lines: Sequence[tuple[int, str]] = ()
    errors: Sequence[str] = ()
    status: int | None = 0
    missing: bool = False


#: Runs commands side by side, returns their outputs in order.
Runner = Callable[[Sequence[Sequence[str]]], Sequence[Output]]
_Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class _Ability:
    """What one kind of device can do."""

    tick: int | None = None
    has_wait: bool = False


@dataclass(slots=True)
class Fabric:
    """Reads a fabric again and again.

    Args:
        run: Runs commands.
        now_ns: The clock.
        context: Labels.

    Attributes:
        processes: Commands run so far.
        found: Whether the fabric was discovered at least once.
    """

    run: Runner
    now_ns: Callable[[], int]
    context: Context
    processes: int = 0
    found: bool = False
    _topology: Reading = field(default_factory=Reading)
    _discovered_ns: int | None = None
    _shape: Any = None
    _due: bool = True
    _linked: set[_Key] = field(default_factory=set)
    _node_of: dict[_Key, str] = field(default_factory=dict)
    _nodes_of_lid: dict[int, str] = field(default_factory=dict)
    _abilities: dict[tuple[bool, int | None], _Ability] = field(default_factory=dict)
    _checked: int | None = None
    _skip_sl: bool = False
    _said: set[tuple[str, str]] = field(default_factory=set)

    @property
    def ports(self) -> int:
        """Ports with a link, as far as is known."""
        return len(self._linked)

    def read(self) -> Iterator[Item]:
        """Read every counter once.

        Yields:
            ``ports`` and ``topology_links`` where they are new or have changed, then
            ``link_counters``; a reject or a note for each problem, once.
        """
        now = self.now_ns()
        old = self._discovered_ns is None or now - self._discovered_ns >= REDISCOVER_NS
        if self._due or old:
            yield from self._discover(now)
        if not self.found:
            return
        data, errors = self._query()
        for name, output in (("ibqueryerrors --counters", data), ("ibqueryerrors", errors)):
            yield from self._problems(name, output)
        yield from self._rows(data, errors)

    def _commands(self, *commands: Sequence[str]) -> Sequence[Output]:
        self.processes += len(commands)
        outputs = list(self.run(commands))
        for n, output in enumerate(outputs):
            if output.status is not None and output.status < 0:
                # It crashed: seen of ibqueryerrors 44 about once in 25 runs on a simulated fabric.
                self.processes += 1
                (outputs[n],) = self.run(commands[n : n + 1])
        return outputs

    def _say(self, place: str, reason: str, hint: str = "") -> Iterator[Reject]:
        """A problem, once."""
        if (place, reason) not in self._said:
            self._said.add((place, reason))
            yield Reject(place, reason, hint)

    def _problems(self, name: str, output: Output) -> Iterator[Item]:
        if output.missing:
            yield from self._say(name, "not installed", _INSTALL_HINT)
        elif output.status is None:
            yield from self._say(name, "took too long and was ended: what it said before counts")
        elif output.status not in (0, 1):  # 1: there are ports with errors
            why = _words(output.errors[-1]) if output.errors else "without a word"
            yield from self._say(name, f"ended with status {output.status}: {why}")

    def _discover(self, now: int) -> Iterator[Item]:
        (output,) = self._commands(DISCOVER)
        reading, damaged = Reading(), 0
        for _, line in output.lines:
            damaged += reading.take(line) is not None
        if not reading.understood:
            # What was known stays; without anything known the next reading tries again.
            yield from self._nothing(output)
            return
        yield from self._problems("ibnetdiscover", output)
        if damaged:
            yield from self._say("ibnetdiscover", f"{damaged} lines could not be read")
        self.found, self._discovered_ns = True, now
        self._due = output.status is None  # cut short: try again
        self._checked = None
        shape = (
            {src: link[:3] for src, link in reading.fabric.links.items()},
            reading.fabric.description,
            reading.lids,
            reading.ports,
        )
        if output.status is None and self._shape is not None:
            return  # what is missing in it is no sign of a change
        changed, self._shape = shape != self._shape, shape
        if not changed:
            return
        self._topology = reading
        self._linked |= {(end.guid, end.port) for end in reading.fabric.links if end.port}
        self._node_of = {
            (about["port_guid"], number): own
            for (own, number), about in reading.ports.items()
            if about.get("port_guid")
        }
        self._nodes_of_lid = {lid: own for (own, _), lid in reading.lids.items()}
        yield from reading.rows(now, self.context)
        yield from self._probe()

    def _nothing(self, output: Output) -> Iterator[Item]:
        self._due = True
        if output.missing:
            yield from self._say("ibnetdiscover", "not installed", _INSTALL_HINT)
            return
        if output.status is None:
            why = "no answer in time"
        else:
            # The library's own words come first, then what they led to.
            why = _words(output.errors[0]) if output.errors else "it found nothing"
        yield from self._say("ibnetdiscover", f"no fabric: {why}", _NO_FABRIC_HINT)

    def _kind(self, node: str) -> tuple[bool, int | None]:
        return self._topology.fabric.ca.get(node, False), self._topology.devices.get(node)

    def _probe(self) -> Iterator[Item]:
        """Ask one node of each kind that is new what it can do."""
        waiting: dict[tuple[bool, int | None], list[_Key]] = {}
        for own, number in sorted(self._topology.ports):
            kind = self._kind(own)
            if number and kind not in self._abilities:
                waiting.setdefault(kind, []).append((own, number))
        for kind, ports in waiting.items():
            for own, number in ports[:_PROBES]:
                lid = self._topology.lids.get((own, number if kind[0] else 0))
                if not lid:
                    continue
                port = ("--timeout", ANSWER_MS, str(lid), str(number))
                able, ticking = self._commands(("perfquery", *port), ("perfquery", "-c", *port))
                if able.missing:
                    yield from self._say("perfquery", "not installed: no ticks", _INSTALL_HINT)
                    return
                mask = _first(_CAPABILITIES, able)
                if mask is None:
                    continue
                tick = _first(_TICK, ticking)
                self._abilities[kind] = _Ability(tick, bool(mask & _HAS_WAIT))
                break

    def _query(self) -> tuple[Output, Output]:
        extra = (_SKIP_SL,) if self._skip_sl else ()
        data, errors = self._commands((*DATA, *extra), (*ERRORS, *extra))
        if not self._skip_sl and any(
            "Query SA failed" in line for o in (data, errors) for line in o.errors
        ):
            # Without path records the tools give up, though service level 0 will mostly do.
            self._skip_sl = True
            return self._query()
        return data, errors

    def _rows(self, data: Output, errors: Output) -> Iterator[Item]:
        if self._skip_sl:
            yield from self._note("no path records from the subnet manager: --skip-sl is used")
        counters, _ = _parse(data)
        checked, summary = _parse(errors)
        failed: set[str] = set()
        for words in (*data.errors, *errors.errors):
            match = FAILED.search(words)
            if match and (node := self._nodes_of_lid.get(int(match[2] or 0))):
                failed.add(node)
        for node in sorted(failed):
            name = self._topology.fabric.description.get(node, "a node")
            yield from self._say(f"{name} ({node})", "no answer when its counters were read")
        found = {(self._node(line), line.port): line for line in checked}
        # A change that discovery has not seen shows in the number of nodes, or in a new one.
        if summary.nodes_checked is not None:
            if self._checked not in (None, summary.nodes_checked):
                self._due = True
            self._checked = summary.nodes_checked
        buffer = RowBuffer("link_counters", self.context)
        for line in counters:
            key = (line.guid, line.port)
            known = line.guid in self._topology.fabric.ca
            self._due |= not known
            if known and key not in self._linked:
                continue  # nothing was ever plugged in
            silence = bool(summary.summaries) and line.guid not in failed
            row = self._row(line, found.pop(key, None), silence, summary)
            if has_counters(row):
                buffer.add(row)
            if buffer.full:
                yield from buffer.flush()
        for key, line in found.items():
            # Its data counters were not read; its errors are kept.
            if key in self._linked:
                alone = PortLine(
                    kind="errors",
                    guid=key[0],
                    node_guid=key[0],
                    name=line.name,
                    port=line.port,
                    gathered=line.gathered,
                    ts=line.ts,
                )
                buffer.add(self._row(alone, None, False, summary))
        yield from buffer.flush()

    def _node(self, line: PortLine) -> str:
        """The node of a port that is known by its own GUID."""
        own = self._node_of.get((line.guid, line.port))
        return own or self._topology.switch_of.get(line.guid, line.guid)

    def _note(self, text: str) -> Iterator[Note]:
        if ("", text) not in self._said:
            self._said.add(("", text))
            yield Note(text)

    def _row(
        self, line: PortLine, errors: PortLine | None, silence: bool, summary: ErrorsReading
    ) -> dict[str, Any]:
        """A row of ``link_counters``.

        Args:
            line: Data counters.
            errors: What was printed of its errors, if anything.
            silence: The errors of this node were read to the end: what was not printed is 0.
            summary: Has the thresholds that were in force.
        """
        node, port = line.guid, line.port
        gathered: Gathered = line.gathered
        if errors is not None:
            gathered.narrow |= errors.gathered.narrow
            gathered.wide |= errors.gathered.wide
        ability = self._abilities.get(self._kind(node), _Ability())
        if silence:
            loud = {counter_name(n) for n, value in summary.thresholds.items() if value}
            for name in CHECKED:
                if name in loud or (name == "port_xmit_wait" and not ability.has_wait):
                    continue
                if name not in gathered.narrow and name not in gathered.wide:
                    gathered.narrow[name] = 0
        about = self._topology.ports.get((node, port), {})
        lanes = lanes_of(about.get("width"))
        return {
            "ts": line.ts,
            "link": f"{node}/{port}",
            "port": port,
            "node_guid": node,
            "rate_gbps": about.get("rate_gbps"),
            "xmit_wait_tick": xmit_wait_tick(self._topology.family(node), ability.tick, lanes),
            **gathered.row(),
        }


def _words(message: str) -> str:
    """A message of a tool without its process id, which would make it a new one each time."""
    return clip(re.sub(r"^\w+: \[\d+\] ", "", message), 160)


def _first(pattern: re.Pattern[str], output: Output) -> int | None:
    """The first hexadecimal number that ``pattern`` finds."""
    for _, line in output.lines:
        if match := pattern.search(line):
            return int(match[1], 16)
    return None


def _parse(output: Output) -> tuple[list[PortLine], ErrorsReading]:
    """Ports and summary of an ibqueryerrors run; lines that are cut off are left out."""
    reading = ErrorsReading()
    found: list[PortLine] = []
    for ts, line in output.lines:
        if line.strip():
            found += [f for f in reading.take(line, ts) if isinstance(f, PortLine)]
    found += reading.close()
    return found, reading
