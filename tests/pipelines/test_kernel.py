"""The compiled kernel gives what the models give, to the last bit, whatever the counters do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipelines.lakes import A, B, at, new_lake, rows_of
from xtune.lake import Lake
from xtune.pipelines import EpisodeRules
from xtune.pipelines._chunks import plan
from xtune.pipelines._engine import Session, connect
from xtune.pipelines._feeds import RESTS_ON, RESTS_ON_PRESENCE, direct_feed
from xtune.pipelines._identity import PortFacts
from xtune.pipelines._kernel import COUNTERS
from xtune.pipelines._rates import ChunkResult, run_chunk
from xtune.pipelines._samples import CARRY, SAMPLE, ChunkInput
from xtune.pipelines._stream import RUNS
from xtune.tables import LINK_COUNTERS, TABLES

C = "0x00000000000000cc/3"
RULES = EpisodeRules(max_gap_s=3.0, busy_utilization=0.8)
RAW = (
    "port_xmit_data", "port_rcv_data", "port_xmit_wait", "port_xmit_discards", "symbol_error",
    "port_rcv_errors", "np_ecn_marked_roce_packets", "rp_cnp_handled", "packet_seq_err",
    "local_ack_timeout_err", "rx_pause_duration", "tx_pause_duration",
)  # fmt: skip
# What a counter may rise by in a second, so that thresholds are met, passed and left.
STEPS = {
    "port_xmit_data": (0, 10**9, 11 * 10**9, 13 * 10**9, 30 * 10**9),
    "port_rcv_data": (0, 10**9, 11 * 10**9, 13 * 10**9, 30 * 10**9),
    "port_xmit_wait": (0, 10**8, 10**9, 2 * 10**9, 4 * 10**9, 7 * 10**9, 15 * 10**9),
    "rx_pause_duration": (0, 15_000, 120_000, 400_000, 900_000, 9_000_000),
    "tx_pause_duration": (0, 15_000, 900_000),
    "np_ecn_marked_roce_packets": (0, 5_000, 70_000, 200_000),
}
# What it rises by at most where nothing happens.
CALM = {"port_xmit_data": 10**9, "port_rcv_data": 10**9, "port_xmit_wait": 10**6}


def rows(
    seed: int,
    links: list[str],
    first_s: int,
    count: int,
    *,
    named: bool = True,
    raw: tuple[str, ...] = RAW,
    present: float = 0.7,
    calm: float = 0.0,
) -> list[dict[str, Any]]:
    """Counters that rise, stand, are reset, glitch, stick (some named), and are missing.

    ``calm`` is the share of samples in which only traffic and a little waiting is counted.
    """
    rng = np.random.default_rng(seed)
    out = []
    for link in links:
        has = [name for name in raw if rng.random() < present]
        value = {name: int(rng.integers(0, 10**6)) for name in has}
        second = first_s
        for _ in range(count):
            second += int(
                rng.choice([1, 1, 1, 1, 1, 2, 5, 20], p=[0.2] * 4 + [0.1, 0.04, 0.03, 0.03])
            )
            row: dict[str, Any] = {"ts": at(second) + int(rng.integers(0, 10**8)), "link": link}
            row["rate_gbps"], row["data_unit_bytes"] = None if seed > 5 else 400.0, 4
            if rng.random() < calm:
                for name in has:
                    value[name] += int(rng.integers(0, CALM.get(name, 1)))
                row |= {name: value[name] for name in has}
                if rng.random() < 0.1:  # one alone is missing or set back
                    row[raw[rng.integers(len(raw))]] = None if rng.random() < 0.3 else 1
                out.append(row)
                continue
            for name in has:
                value[name] += int(rng.choice(STEPS.get(name, (0, 0, 1, 3, 200, 20_000))))
                event = rng.random()
                if event < 0.02:
                    value[name] = int(rng.integers(0, 5))
                row[name] = value[name] if event < 0.96 else (0 if event < 0.98 else None)
                if event > 0.99:
                    row[name] = 2**32 - 1 if name == "port_xmit_wait" else row[name]
                    if named:
                        row.setdefault("saturated", []).append(name)
            out.append(row)
    return out


def put_sorted(lake: Lake, given: list[dict[str, Any]]) -> None:
    """Write one compacted file."""
    table = rows_of("link_counters", given).sort_by([("link", "ascending"), ("ts", "ascending")])
    schema = LINK_COUNTERS.schema
    columns = [
        table[f.name] if f.name in table.column_names else pa.nulls(len(table), f.type)
        for f in schema
    ]
    path = lake.scratch("link_counters") / "given.parquet.tmp"
    pq.write_table(pa.table(columns, schema=schema), path, row_group_size=37)
    with lake.begin() as transaction:
        transaction.adopt("link_counters", path, date="2026-03-02", compacted=True)
        transaction.commit()


def compute(lake: Lake, stream_rows: int, threads: int, hours: int) -> list[ChunkResult]:
    """All chunks of a lake, each from what the one before handed on."""
    found: list[ChunkResult] = []
    with connect(threads=threads) as session:
        session.set_variables(RULES.to_json())
        for chunk in plan(lake.files("link_counters"), 0)[:hours]:
            links = {name for f in chunk.files for name in _links(f.path)}
            facts = {n: PortFacts(link=n, rate_gbps=None, tick=8.0, ethernet=False) for n in links}
            given = ChunkInput(
                chunk=chunk,
                facts=facts,
                null_rate=False,
                deltas=False,
                carry=found[-1].carry if found else None,
            )
            found.append(run_chunk(lake, session, given, stream_rows=stream_rows))
            for i, path in enumerate(found[-1].files):
                path.rename(path.with_suffix(f".{len(found)}.{i}.{stream_rows}"))
    return found


def _links(path: Path) -> list[str]:
    return list(pq.read_table(path, columns=["link"])["link"].unique().to_pylist())


def written(lake: Lake, number: int, stream_rows: int) -> pa.Table:
    folder = lake.scratch("derived/link_rates")
    paths = sorted(folder.glob(f"*.{number}.*.{stream_rows}"))
    schema = TABLES["derived/link_rates"].schema.remove_metadata()
    return pa.concat_tables(
        [pq.read_table(p).cast(schema) for p in paths] or [schema.empty_table()]
    )


def same(models: pa.Table, compiled: pa.Table) -> None:
    """Equal to the last bit."""
    assert models.schema.names == compiled.schema.names
    for name in models.schema.names:
        here, there = models[name].combine_chunks(), compiled[name].combine_chunks()
        if not here.equals(there):
            lists = [_plain(column) for column in (here, there)]
            different = [i for i, (x, y) in enumerate(zip(*lists, strict=True)) if x != y]
            assert not different, (name, different[:5], *(v[different[0]] for v in lists))


def _plain(column: Any) -> list[Any]:
    kind = column.type
    return list((column.cast(pa.int64()) if pa.types.is_timestamp(kind) else column).to_pylist())


@pytest.mark.parametrize("seed", range(7))  # the last without a rate
def test_compiled_and_models_agree_over_chunks(tmp_path: Path, seed: int) -> None:
    threads = 1 + seed % 2
    lake = new_lake(tmp_path / "lake")
    put_sorted(lake, rows(seed, [A, B, C], 0, 60, named=seed % 3 == 0))
    put_sorted(lake, rows(seed + 1, [A, C], 3600, 50, named=seed % 3 == 1))
    put_sorted(lake, rows(seed, [B, C], 7200, 50, named=False))
    models = compute(lake, 10**9, threads, 3)
    compiled = compute(lake, 0, threads, 3)
    for number, (a, b) in enumerate(zip(models, compiled, strict=True), start=1):
        same(written(lake, number, 10**9), written(lake, number, 0))
        same(a.runs, b.runs)
        same(a.carry, b.carry)
        assert a.rows == b.rows


@pytest.mark.parametrize("seed", range(8))
def test_quiet_infiniband_ports_agree(tmp_path: Path, seed: int) -> None:
    """Most rows lie where nothing happens, which the kernel takes by a way of its own."""
    lake = new_lake(tmp_path / "lake")
    given: dict[str, Any] = {"raw": RAW[:6], "calm": 0.9, "named": False}
    given["present"] = 0.97 - 0.1 * (seed % 3)
    for hour, links in enumerate(([A, B, C], [A, C], [B, C])):
        put_sorted(lake, rows(seed + hour % 2, links, 3600 * hour, 400, **given))
    models = compute(lake, 10**9, 1, 3)
    compiled = compute(lake, 0, 1 + seed % 2, 3)
    for number, (a, b) in enumerate(zip(models, compiled, strict=True), start=1):
        same(written(lake, number, 10**9), written(lake, number, 0))
        same(a.runs, b.runs)
        same(a.carry, b.carry)


def test_the_models_give_what_the_kernel_declares() -> None:
    with connect(threads=1) as session:
        session.set_variables({**RULES.to_json(), "tick": 8.0, "rate_gbps": 1, "ethernet": False})
        session.load("raw", LINK_COUNTERS.schema.empty_table())
        session.load("carry", CARRY.empty_table())
        sample = session.arrow(f"FROM ({session.bind('samples_direct').sql})").schema
        assert {f.name: f.type for f in sample} == {
            "link": pa.string(), **{f.name: f.type for f in SAMPLE}
        }  # fmt: skip
        assert {*COUNTERS} | {"ts", "restarts", "data_rate_bytes_s", "tick"} == {*SAMPLE.names}
        session.table("samples", "SELECT *, true AS carried FROM carry")
        session.table("link_levels", session.bind("link_levels").sql)
        runs = session.arrow(f"FROM ({session.bind('link_runs').sql})").schema
        assert [(f.name, f.type) for f in runs] == [(f.name, f.type) for f in RUNS]


def _value(name: str) -> Any:
    return {"rate_gbps": 400.0, "xmit_wait_tick": 16.0, "data_unit_bytes": 1}.get(name, 7)


@pytest.mark.parametrize("changed", ["rate_gbps", "xmit_wait_tick", "data_unit_bytes", *RAW])
def test_a_column_rests_on_what_is_declared(changed: str) -> None:
    """Changing one raw column changes those samples that are said to rest on it, and no other."""
    with connect(threads=1) as session:
        session.set_variables({"tick": 8.0, "rate_gbps": 100.0, "ethernet": False})
        base = {name: _value(name) for name in ("rate_gbps", "xmit_wait_tick", *RAW)}
        found = [_sample(session, base | {changed: value}) for value in (_value(changed), 3, None)]
    for name in COUNTERS:
        if changed not in RESTS_ON[name]:
            assert found[0][name] == found[1][name]
        if changed not in (*RESTS_ON[name], *RESTS_ON_PRESENCE.get(name, ())):
            assert found[0][name] == found[2][name]


def _sample(session: Session, row: dict[str, Any]) -> dict[str, Any]:
    given = rows_of("link_counters", [{"ts": at(0), "link": A, **row}])
    schema = LINK_COUNTERS.schema
    columns = [
        given[f.name] if f.name in given.schema.names else pa.nulls(1, f.type) for f in schema
    ]
    session.load("raw", pa.table(columns, schema=schema))
    return dict(
        session.arrow(f"FROM ({session.bind('samples_direct').sql})")
        .drop_columns("ts")
        .to_pylist()[0]
    )


def test_what_a_file_lacks_is_a_constant(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    given = [
        {"ts": at(s), "link": A, "rate_gbps": 400.0, "port_xmit_data": s, "port_xmit_wait": 5}
        for s in range(4)
    ]
    put_sorted(lake, given)
    with connect(threads=1) as session:
        session.set_variables({**RULES.to_json(), "tick": 8.0, "rate_gbps": 1, "ethernet": False})
        session.load("raw", LINK_COUNTERS.schema.empty_table())
        feed = direct_feed(session, lake.files("link_counters")[0].path)
    assert feed.constants["wait_ticks"] == 5
    assert feed.constants["marks"] is None
    assert feed.constants["data_rate_bytes_s"] == 50e9
    assert "tx_bytes" not in feed.constants
