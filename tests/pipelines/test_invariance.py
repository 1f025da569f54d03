"""What must not matter: files, order, repetition, midnight, zones, and the tool that reads."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.collectors_ib.helpers import port_tree
from tests.collectors_ib.test_perfquery import block, wide
from tests.pipelines.fabrics import down, host_guid, nic, topology_rows, up
from tests.pipelines.lakes import SECOND, T0, T0_S, at, new_lake, port_rows, put
from xtune.collectors import Context
from xtune.ingest import collect
from xtune.lake import Lake
from xtune.pipelines import rebuild
from xtune.pipelines._chunks import DAY_ROWS
from xtune.tables import DERIVED_TABLES

LINKS = (nic(0, 0), nic(0, 1), down(0, 2), up(0, 0))
LENGTH = 40  # s; a sample a second
Rows = list[dict[str, Any]]
#: A port's waits and loads; None leaves a sample out.
PORT = st.lists(
    st.tuples(
        st.sampled_from([None, 0.0, 0.05, 0.12, 0.2, 0.6, 0.6]), st.sampled_from([0.1, 1.0])
    ),
    min_size=LENGTH,
    max_size=LENGTH,
)
PORTS = st.lists(PORT, min_size=len(LINKS), max_size=len(LINKS))


def telemetry(ports: Sequence[Sequence[tuple[float | None, float]]]) -> Rows:
    """Counters of four ports of a leaf."""
    rows = []
    for link, series in zip(LINKS, ports, strict=True):
        waits = [wait or 0.0 for wait, _ in series]
        loads = [min(load, 1.0 - (wait or 0.0)) for wait, load in series]
        every = port_rows(link, waits, loads)
        gone = {number for number, (wait, _) in enumerate(series) if wait is None}
        rows += [row for number, row in enumerate(every) if number not in gone]
    return rows


def work() -> tuple[Rows, Rows]:
    """Collectives of four ranks, slower in the second half, and the steps they belong to."""
    collectives = [
        {
            "start_ts": at(seq * 2.0), "duration_ns": (1 + (seq > 10)) * SECOND, "job": "llm",
            "host": f"node0{rank}", "rank": rank, "comm": "c", "comm_rank": rank, "comm_size": 4,
            "seq": seq, "op": "AllReduce", "message_bytes": 10**9,
        }
        for seq in range(LENGTH // 2)
        for rank in range(4)
    ]  # fmt: skip
    steps = [
        {
            "ts": at(2.0 * n + 2),
            "job": "llm",
            "step": n,
            "step_time_s": 1.0 + (n > 10),
            "loss": 2.0,
        }
        for n in range(LENGTH // 2)
    ]
    return collectives, steps


def fill(lake: Lake, counters: Rows, shift_ns: int = 0, source: str = "0" * 12) -> None:
    """Write all of it into a lake, later by some time."""
    collectives, steps = work()
    put(lake, "topology_links", topology_rows(), source)
    for table, rows, time in (
        ("link_counters", counters, "ts"),
        ("collectives", collectives, "start_ts"),
        ("steps", steps, "ts"),
    ):
        put(lake, table, [{**row, time: row[time] + shift_ns} for row in rows], source)


def content(lake: Lake, tables: Sequence[str] = DERIVED_TABLES) -> dict[str, list[str]]:
    """All rows of derived tables in an order of their own; times to the nanosecond."""
    return {
        name: sorted(repr(sorted(row.items())) for row in plain(lake, name)) for name in tables
    }


def plain(lake: Lake, name: str, shift_ns: int = 0) -> Rows:
    """Rows of a table, times as nanoseconds since the epoch less ``shift_ns``."""
    table = lake.read(name)
    columns: dict[str, list[Any]] = {}
    for column in table.column_names:
        data = table[column]
        if pa.types.is_timestamp(data.type):
            moments = data.cast(pa.int64()).to_pylist()
            columns[column] = [None if ns is None else ns - shift_ns for ns in moments]
        else:
            columns[column] = data.to_pylist()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


DELIVERY = {
    "ports": PORTS,
    "files": st.integers(1, 3),
    "day_rows": st.sampled_from([1, DAY_ROWS]),
    "random": st.randoms(use_true_random=False),
}
few = settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.too_slow])
many = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def check_delivery(ports: Any, files: int, day_rows: int, random: Any) -> None:
    rows = telemetry(ports)
    with tempfile.TemporaryDirectory() as folder:
        whole, other = new_lake(Path(folder) / "whole"), new_lake(Path(folder) / "other")
        fill(whole, rows)
        rebuild(whole, threads=1)
        mixed = [*rows, *random.sample(rows, len(rows) // 4)]
        random.shuffle(mixed)
        fill(other, mixed[::files])
        for number in range(1, files):
            put(other, "link_counters", mixed[number::files], source=f"{number:012d}")
        collectives, steps = work()
        put(other, "collectives", collectives, source="a" * 12)  # delivered twice
        put(other, "steps", steps, source="b" * 12)
        rebuild(other, threads=2, day_rows=day_rows)
        assert content(other) == content(whole)


@few
@given(**DELIVERY)
def test_however_it_is_delivered(ports: Any, files: int, day_rows: int, random: Any) -> None:
    """Any order of rows, spread over files, a quarter of them twice, in chunks of any size."""
    check_delivery(ports, files, day_rows, random)


@pytest.mark.slow
@many
@given(**DELIVERY)
def test_however_it_is_delivered_at_length(
    ports: Any, files: int, day_rows: int, random: Any
) -> None:
    check_delivery(ports, files, day_rows, random)


SHIFTS = {
    "ports": PORTS,
    # Midnight is 14 h after T0: these put it into the telemetry, or anywhere.
    "shift_s": st.integers(0, LENGTH).map(lambda s: 14 * 3600 - s) | st.integers(-(10**5), 10**5),
    "day_rows": st.sampled_from([1, DAY_ROWS]),
}


def check_shift(ports: Any, shift_s: int, day_rows: int) -> None:
    rows = telemetry(ports)
    shift_ns = shift_s * SECOND
    with tempfile.TemporaryDirectory() as folder:
        whole, later = new_lake(Path(folder) / "whole"), new_lake(Path(folder) / "later")
        fill(whole, rows)
        fill(later, rows, shift_ns)
        rebuild(whole, threads=1)
        rebuild(later, threads=1, day_rows=day_rows)
        assert detected(later, shift_ns) == detected(whole, 0)


def detected(lake: Lake, shift_ns: int) -> dict[str, list[str]]:
    """Rates, and episodes without their ids, which name instants."""
    found = {"link_rates": sorted(map(repr, plain(lake, "derived/link_rates", shift_ns)))}
    for table, columns in (
        ("link_episodes", ("link", "start_ts", "end_ts", "peak_level", "mean_wait_fraction",
                           "peak_utilization", "bytes", "role", "cause")),
        ("episodes", ("start_ts", "end_ts", "links", "root_link", "cause")),
    ):  # fmt: skip
        rows = plain(lake, f"derived/{table}", shift_ns)
        found[table] = sorted(repr([row[name] for name in columns]) for row in rows)
    return found


@pytest.mark.slow
@many
@given(**SHIFTS)
def test_wherever_midnight_falls(ports: Any, shift_s: int, day_rows: int) -> None:
    check_shift(ports, shift_s, day_rows)


# Files. A change of the clock, UTC: the telemetry begins a minute and a half before it.
CHANGES = {
    "spring in Berlin": ("Europe/Berlin", "2026-03-29T01:00:00"),
    "autumn in Berlin": ("Europe/Berlin", "2026-10-25T01:00:00"),
    "autumn in New York": ("America/New_York", "2026-11-01T06:00:00"),
    "half an hour on Lord Howe": ("Australia/Lord_Howe", "2026-04-04T15:00:00"),
    "no change in Calcutta": ("Asia/Kolkata", "2026-10-25T01:00:00"),
}
BEFORE_S, AFTER_S = 2700, 2700
EVERY_S = 90
_FIRST = "%Y-%m-%d %H:%M:%S"


def moments(change: str) -> list[datetime]:
    middle = datetime.fromisoformat(change).replace(tzinfo=UTC).timestamp()
    return [
        datetime.fromtimestamp(middle + s, UTC) for s in range(-BEFORE_S, AFTER_S + 1, EVERY_S)
    ]


def csv(times: Sequence[str]) -> str:
    lines = ["time,host,device,port,rate,port_xmit_data,port_xmit_wait"]
    lines += [
        f"{time},node1,mlx5_0,1,400 Gb/sec (4X NDR),{n * 10**9},{n * 10**11}"
        for n, time in enumerate(times)
    ]
    return "\n".join(lines) + "\n"


def megatron(times: Sequence[str]) -> str:
    return "".join(
        f" [{time}] iteration {n:8d}/ 1000 | elapsed time per iteration (ms): 900.0 |"
        f" lm loss: {3 - n / 100:.6E} | loss scale: 1.0 | grad norm: 1.0 |\n"
        for n, time in enumerate(times, 1)
    )


def read(folder: Path, name: str, text: str, tz: str | None) -> Lake:
    lake = new_lake(folder / f"lake-{name}", now_s=400 * 86400)
    path = folder / name
    path.write_text(text)
    collect(lake, [str(path)], context=Context(now_ns=lambda: at(0), tz=tz))
    return lake


@pytest.mark.parametrize(("zone", "change"), CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize(
    ("make", "table"), [(csv, "link_counters"), (megatron, "steps")], ids=["csv", "megatron"]
)
def test_whatever_zone_a_source_writes(
    tmp_path: Path,
    zone: str,
    change: str,
    make: Callable[[Sequence[str]], str],
    table: str,
) -> None:
    """Local times over a change of the clock, offsets, and UTC give the same instants."""
    times = moments(change)
    local = [time.astimezone(ZoneInfo(zone)) for time in times]
    forms = {
        "local": ([time.strftime(_FIRST) for time in local], zone),
        "offset": ([time.isoformat(sep=" ") for time in local], None),
        "utc": ([time.strftime(f"{_FIRST}Z") for time in times], "Pacific/Auckland"),
    }
    for name, (texts, tz) in forms.items():
        lake = read(tmp_path, name, make(texts), tz)
        found = sorted(row["ts"] for row in plain(lake, table))
        assert found == [round(time.timestamp()) * SECOND for time in times], name


def test_an_episode_over_the_end_of_summer_time(tmp_path: Path) -> None:
    zone, change = CHANGES["autumn in Berlin"]
    times = moments(change)
    local = [time.astimezone(ZoneInfo(zone)).strftime(_FIRST) for time in times]
    lake = read(tmp_path, "local", csv(local), zone)
    rebuild(lake, threads=1)
    [row] = plain(lake, "derived/link_episodes")
    # 1e11 ticks in 90 s are 0.18 of the time, level 2, from the first sample to the last.
    assert (row["start_ts"], row["end_ts"]) == tuple(
        round(times[edge].timestamp()) * SECOND for edge in (0, -1)
    )
    assert row["mean_wait_fraction"] == pytest.approx(1e11 * 8 / 50e9 / EVERY_S)


def test_whichever_tool_reads_the_counters(tmp_path: Path) -> None:
    """One port's counters by sysfs (32-bit waits) and by perfquery give the same episodes."""
    # 100 Gb/s: 1.5625e9 ticks of 8 byte times are a second of waiting.
    ticks_s, words_s = 1_562_500_000, 3_125_000_000
    waits = [0.0, 0.0, 0.2, 0.25, 0.2, 0.0, 0.0, 0.0]
    total, samples = 0, []
    for second, wait in enumerate(waits):
        total += round(wait * ticks_s)
        samples.append((T0_S + second, total, second * words_s // 2))
    guid = host_guid(0, 0)
    plain_guid = guid.removeprefix("0x")
    sysfs_guid = ":".join(plain_guid[at : at + 4] for at in range(0, 16, 4))
    folders, text = [], f"NodeGuid:........................{guid}\n"
    for time, wait, words in samples:
        stamp = datetime.fromtimestamp(time, UTC)
        folder = tmp_path / f"sysfs-{stamp:%Y%m%dT%H%M%SZ}"
        port_tree(
            folder,
            counters={"port_xmit_wait": wait, "port_xmit_data": words},
            rate="100 Gb/sec (4X EDR)",
            node_guid=sysfs_guid,
        )
        folders.append(str(folder))
        text += f"=== {stamp:%Y-%m-%dT%H:%M:%SZ} ===\n"
        text += block({"PortXmitWait": wait}) + wide({"PortXmitData": words})
    (tmp_path / "perfquery.txt").write_text(text)
    found = []
    for name, paths in (("sysfs", folders), ("perfquery", [str(tmp_path / "perfquery.txt")])):
        lake = new_lake(tmp_path / f"lake-{name}")
        cables = [{**row, "rate_gbps": 100.0} for row in topology_rows()]
        put(lake, "topology_links", cables, "f" * 12)
        context = Context(now_ns=lambda: T0, time_from="name")
        collect(lake, paths, context=context)
        assert lake.read("link_counters", ["link"])["link"].unique().to_pylist() == [nic(0, 0)]
        rebuild(lake, threads=1)
        found.append(detected(lake, 0))
    assert found[0] == found[1]
    assert len(found[0]["link_episodes"]) == 1 and str(at(1)) in found[0]["link_episodes"][0]
