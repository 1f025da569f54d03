"""``checkup``: what of a lake keeps the pipelines from telling more, and how to mend it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow.compute as pc

from xtune.errors import LakeError, NoDataError, XtuneError
from xtune.lake import BusyError, Lake
from xtune.pipelines._engine import connect, files_relation
from xtune.pipelines._inventory import Inventory
from xtune.pipelines._state import State
from xtune.pipelines.rules import EpisodeRules
from xtune.pipelines.runner import plan_rebuild
from xtune.tables import DERIVED_TABLES

# As many names as a line bears.
_NAMES = 5
# Clocks that differ by less do not move a sample of one second from its place.
_OFF_NS = 500_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        check: What.
        state: ``warn`` where something could be told better, or is not told at all.
        found: What there is.
        mend: What to do about it; empty where nothing is wrong.
    """

    check: str
    state: Literal["ok", "warn"]
    found: str
    mend: str = ""


def checkup(lake: Lake, rules: EpisodeRules | None = None) -> list[Finding]:
    """Look at derived tables, clocks, topology and names; changes no table.

    Args:
        lake: Where.
        rules: Those that ``rebuild`` will be run with.

    Raises:
        LakeError: The lake is damaged.
    """
    return [
        *_running(lake),
        *_stale(lake, rules or EpisodeRules()),
        *_clocks(lake),
        *_counters(lake),
        *_names(lake),
    ]


def _running(lake: Lake) -> Iterator[Finding]:
    """A lock belongs to a process and goes with it: a file that is left behind holds nobody up."""
    if not (lake.ledger.folder / "rebuild.lock").exists():
        return
    try:
        with lake.exclusive("rebuild"):
            yield Finding(check="rebuild lock", state="ok", found="free")
    except BusyError as error:
        yield Finding(
            check="rebuild lock", state="warn", found="held",
            mend=f"{error.message}: wait for it, or end that process (fuser"
            f" {lake.ledger.folder / 'rebuild.lock'})",
        )  # fmt: skip
    except LakeError:
        return  # it cannot be written: nothing is to be rebuilt


def _stale(lake: Lake, rules: EpisodeRules) -> Iterator[Finding]:
    check = "derived tables"
    if not any(lake.files(name) for name in DERIVED_TABLES):
        yield Finding(check=check, state="warn", found="none", mend="xtune rebuild")
        return
    try:
        plan = plan_rebuild(lake, rules=rules)
    except NoDataError:
        yield Finding(check=check, state="ok", found="their telemetry was pruned")
        return
    except OSError as error:
        yield Finding(
            check=check, state="warn", found=f"cannot be told: {error.strerror}",
            mend="check as a user who may write the lake",
        )  # fmt: skip
        return
    stale = [*plan.partitions, *plan.days]
    if not stale:
        yield Finding(check=check, state="ok", found="up to date")
        return
    found = f"{len(stale)} partitions to compute: {_some(stale)}"
    yield Finding(check=check, state="warn", found=found, mend="xtune rebuild")


def _clocks(lake: Lake) -> Iterator[Finding]:
    """Hosts whose clock is off, in some stretch, by what matters."""
    names = ["host", "from_ts", "offset_ns", "low_ns", "high_ns", "applied"]
    table = lake.read("derived/clock_offsets", columns=names)
    worst: dict[str, tuple[int, bool, str]] = {}
    dates = pc.strftime(table["from_ts"], "%Y-%m-%d").to_pylist()
    for date, row in zip(dates, table.drop_columns("from_ts").to_pylist(), strict=True):
        offset, low, high = row["offset_ns"], row["low_ns"], row["high_ns"]
        if offset is None or abs(offset) < _OFF_NS or low is None or high is None:
            continue
        if low <= 0 <= high:
            continue
        known = worst.get(row["host"])
        if known is None or abs(offset) > abs(known[0]):
            worst[row["host"]] = (offset, bool(row["applied"]), date)
    for host, (offset, applied, date) in sorted(worst.items()):
        repaired = "repaired in derived tables" if applied else "too unsure to be repaired"
        yield Finding(
            check="clock", state="warn", mend="set that host's clock (chronyc tracking)",
            found=f"{host}: {offset / 1e9:+.1f} s on {date}, {repaired}",
        )  # fmt: skip
    if table.num_rows and not worst:
        hosts = len(set(table["host"].to_pylist()))
        yield Finding(check="clock", state="ok", found=f"{hosts} hosts agree")


def _counters(lake: Lake) -> Iterator[Finding]:
    """Counters without a time, and ports whose waiting nobody knows."""
    undated = sum(f.rows for f in lake.files("link_counters") if f.min_ts_ns is None)
    if undated:
        yield Finding(
            check="times", state="warn", found=f"{undated} counter rows without a time",
            mend="collect them again with --time-from, or --tz for local times",
        )  # fmt: skip
    if not lake.files("derived/link_rates"):
        return
    rates = files_relation(file.path for file in lake.files("derived/link_rates"))
    with connect() as session:
        known = session.rows(f"SELECT link, count(level) FROM {rates} GROUP BY link ORDER BY link")
    blind = [link for link, intervals in known if not intervals]
    if blind:
        yield Finding(
            check="waiting", state="warn",
            found=f"never known on {len(blind)} of {len(known)} ports: {_some(blind)}",
            mend="its counter sticks at 32 bits, is absent, or the port's rate is not known:"
            " perfquery -x, ibdiagnet, and ibnetdiscover for rates",
        )  # fmt: skip


def _names(lake: Lake) -> Iterator[Finding]:
    """Topology, and what no source joins to it."""
    with connect() as session:
        try:
            inventory = Inventory(lake, session, State.load(lake.root))
        except (OSError, XtuneError) as error:
            yield Finding(
                check="names", state="warn", found=f"cannot be told: {error}",
                mend="check as a user who may write the lake",
            )  # fmt: skip
            return
    identity = inventory.identity
    links = {
        identity.link(raw)
        for file in lake.files("link_counters")
        for raw in inventory.links(file)
    }  # fmt: skip
    ends = {f"{row['src_guid']}/{row['src_port']}" for row in inventory.topology}
    if links and not ends:
        yield Finding(
            check="topology", state="warn", found="none: episodes are told host by host",
            mend="collect the output of ibnetdiscover, or ibdiagnet2.db_csv, or run"
            " xtune collect --fabric --duration 1s",
        )  # fmt: skip
    elif links:
        yield from _outside(sorted(links - ends), len(links))
    joined = {*identity.host_of.values(), *identity.host_of_guid.values()}
    joined |= {host for link in links if (host := identity.host_of_link(link))}
    strangers = sorted(set(identity.hosts.values()) - joined)
    if strangers:
        yield Finding(
            check="hosts", state="warn",
            found=f"{len(strangers)} hosts that no port belongs to: {_some(strangers)}",
            mend="--host-map where they are pods, or collect /sys/class/infiniband of each",
        )  # fmt: skip
    for note in identity.notes:
        yield Finding(
            check="ports", state="warn", found=note, mend="give each source its --host"
        )  # fmt: skip


def _outside(strangers: Sequence[str], links: int) -> Iterator[Finding]:
    if not strangers:
        yield Finding(check="topology", state="ok", found=f"{links} sampled ports are in it")
        return
    yield Finding(
        check="topology", state="warn",
        found=f"{len(strangers)} of {links} sampled ports are not in it: {_some(strangers)}",
        mend="collect ibnetdiscover again; /sys/class/infiniband or ibstat of hosts whose ports"
        " are named by device",
    )  # fmt: skip


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMES
    return ", ".join(names[:_NAMES]) + (f" and {more} more" if more > 0 else "")
