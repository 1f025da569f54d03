"""What an agent and a reflector are told, in a JSON or TOML file."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path as _File
from typing import Any

from .fields import ConfigError as ConfigError
from .fields import address, document, entries, number, table, text
from .packet import Address
from .sources import SourceError, make_sources

MOST_RATE_HZ = 10_000.0  # probes a second of one agent, which has one core
MOST_PATHS = 512  # a descriptor each, of the 1024 that a process has by default
LEAST_TIMEOUT_S = 1e-5  # less than any round trip takes: every probe would be lost
REPORT_PROBES, MOST_REPORT_S = 5, 0.05  # a report after so many probes of a path, or so long


@dataclass(frozen=True, kw_only=True, slots=True)
class Path:
    """One path to probe.

    Attributes:
        name: Unique in the agent; the router's link, unless its feed is told others.
        local: Own address and port, which choose the path where switches hash; port 0 is any.
        remote: The reflector.
        dst: Name of the reflecting host.
        number: The path's index in its set.
        link: Directed port, where one probe measures one link.
        device: Interface that packets leave by, whatever the routes say.
        full_delay_s: Waiting time of a probe that counts as a full queue; None: not looked at.
        ecn: Probes may be marked by switches that do so; without marks their queues count as
            below the marking threshold.
        sources: Of this end's occupancy, errors, margin and marks, see `make_sources`.
    """

    name: str
    local: Address
    remote: Address
    dst: str
    number: int
    link: str | None = None
    device: str | None = None
    full_delay_s: float | None = None
    ecn: bool = False
    sources: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Listen:
    """One address that a reflector answers on, and this end's sources."""

    local: Address
    sources: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The whole of it.

    Attributes:
        host: This host's name.
        key_file: With mode 0600; without it the key is in ``XTUNE_PROBE_KEY``.
        readings: File of the shared memory; the reflector's counts are beside it.
        rate_hz: Probes a second on each path.
        timeout_s: Without an answer for so long a probe is lost.
        source_interval_s: Sources are read no more often.
        decider: Address and port of a decider to report to; None: there is none.
        decider_local: Own address and port towards it, out of band; port 0 is any.
        report_interval_s: Reports are sent no more often; None: as `report_s` has it.
        log: JSON lines that ``xtune collect`` reads as ``link_probes``; ``%h`` is the host.
        log_bytes: The file never grows past it.
        paths: What an agent probes.
        listen: What a reflector answers on.
    """

    host: str = field(default_factory=lambda: socket.gethostname().lower())
    key_file: str | None = None
    readings: str = "/dev/shm/xtune-probe"
    rate_hz: float = 100.0
    timeout_s: float = 0.1
    source_interval_s: float = 0.001
    decider: Address | None = None
    decider_local: Address = ("0.0.0.0", 0)
    report_interval_s: float | None = None
    log: str | None = None
    log_bytes: int = 256_000_000
    paths: tuple[Path, ...] = ()
    listen: tuple[Listen, ...] = ()

    @property
    def report_s(self) -> float:
        """Time between two reports: a quarter of what a policy made for these probes calls stale.

        By default the time of five probes of a path, 50 ms at most.
        """
        default_s = min(REPORT_PROBES / self.rate_hz, MOST_REPORT_S)
        return default_s if self.report_interval_s is None else self.report_interval_s


_TEXTS = ("host", "key_file", "readings", "log")
_NUMBERS = {
    "rate_hz": MOST_RATE_HZ,
    "timeout_s": 60.0,
    "source_interval_s": 60.0,
    "report_interval_s": 60.0,
}
_OTHERS = ("log_bytes", "decider", "decider_local", "paths", "listen")
_PATH_FIELDS = (
    "name", "local", "remote", "dst", "path", "link", "device", "full_delay_s", "ecn", "sources"
)  # fmt: skip


def load_config(path: str | _File) -> Config:
    """Read a file: TOML if its name ends so, else JSON.

    Raises:
        ConfigError: Its content is wrong.
        OSError: It cannot be read.
    """
    return make_config(document(path))


def make_config(said: Any) -> Config:
    """A configuration from what a file said.

    Raises:
        ConfigError: An unknown field, a wrong value, more than one core can send.
    """
    table(said, "configuration", (*_TEXTS, *_NUMBERS, *_OTHERS))
    known: dict[str, Any] = {name: text(said, name, name) for name in _TEXTS if name in said}
    for name, most in _NUMBERS.items():
        if name in said:
            known[name] = number(said[name], name, most)
    if known.get("timeout_s", 1.0) < LEAST_TIMEOUT_S:
        raise ConfigError(f"timeout_s: {known['timeout_s']:g} is less than {LEAST_TIMEOUT_S:g}")
    if "log_bytes" in said:
        known["log_bytes"] = int(number(said["log_bytes"], "log_bytes", 2.0**62))
    for name in ("decider", "decider_local"):
        if name in said:
            known[name] = address(said[name], name, any_port=name == "decider_local")
    paths = tuple(_path(entry, i) for i, entry in enumerate(entries(said, "paths")))
    listen = tuple(_listen(entry, i) for i, entry in enumerate(entries(said, "listen")))
    config = Config(paths=paths, listen=listen, **known)
    if len({path.name for path in paths}) != len(paths):
        raise ConfigError("paths: two of one name")
    if len(paths) > MOST_PATHS or len(listen) > MOST_PATHS:
        raise ConfigError(f"paths, listen: at most {MOST_PATHS} in one process")
    if len(paths) * config.rate_hz > MOST_RATE_HZ:
        raise ConfigError(
            f"rate_hz: {len(paths)} paths at {config.rate_hz:g} are more than "
            f"{MOST_RATE_HZ:g} probes a second; use several agents"
        )
    return config


def _path(said: Any, index: int) -> Path:
    where = f"paths[{index}]"
    table(said, where, _PATH_FIELDS)
    remote = address(said.get("remote"), f"{where}.remote", any_port=False)
    place, delay = said.get("path", index), said.get("full_delay_s")
    if type(place) is not int or not 0 <= place < 1 << 31:
        raise ConfigError(f"{where}.path: {place!r} is no index")
    return Path(
        name=text(said, "name", f"{where}.name"),
        local=address(said.get("local"), f"{where}.local", any_port=True),
        remote=remote,
        dst=text(said, "dst", f"{where}.dst") if "dst" in said else remote[0],
        number=place,
        link=text(said, "link", f"{where}.link") if "link" in said else None,
        device=text(said, "device", f"{where}.device") if "device" in said else None,
        full_delay_s=number(delay, f"{where}.full_delay_s", 60.0) if delay is not None else None,
        ecn=_flag(said, "ecn", where),
        sources=_sources(said, where),
    )


def _flag(said: Mapping[str, Any], name: str, where: str) -> bool:
    found = said.get(name, False)
    if not isinstance(found, bool):
        raise ConfigError(f"{where}.{name}: {found!r} is neither true nor false")
    return found


def _listen(said: Any, index: int) -> Listen:
    where = f"listen[{index}]"
    table(said, where, ("local", "sources"))
    local = address(said.get("local"), f"{where}.local", any_port=False)
    if local[0] == "0.0.0.0":  # the answer's own address would be the route's choice
        raise ConfigError(f"{where}.local: one address, not all")
    sources = _sources(said, where)
    if "marks" in sources:
        raise ConfigError(f"{where}.sources: marks are of the probing end, an answer has no room")
    return Listen(local=local, sources=sources)


def _sources(said: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    sources: Mapping[str, Any] = said.get("sources", {})
    try:
        make_sources(sources, 0)
    except (SourceError, ValueError, TypeError) as error:
        raise ConfigError(f"{where}.sources: {error}") from error
    return sources
