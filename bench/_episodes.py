"""Link episodes from files of counters: our pipeline, a plain scan, and peers' ways to them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SUMS = (
    "port_xmit_data", "port_rcv_data", "port_xmit_wait", "port_xmit_discards", "port_rcv_errors",
    "symbol_error", "rate_gbps", "xmit_wait_tick", "data_unit_bytes",
)  # fmt: skip
Episodes = list[tuple[str, int, int]]


def own(lake_root: Path, hours: int, *, threads: int = 2, memory: str = "3GB") -> Episodes:
    """Rates, levels and stretches of the first hours of a lake, chunk after chunk."""
    import pyarrow as pa

    from xtune.lake import Lake
    from xtune.pipelines._chunks import plan
    from xtune.pipelines._engine import connect
    from xtune.pipelines._identity import PortFacts
    from xtune.pipelines._rates import run_chunk
    from xtune.pipelines._samples import ChunkInput
    from xtune.pipelines.rules import EpisodeRules

    lake = Lake.open(lake_root)
    names = json.loads((lake_root.parent / "links.json").read_text())
    facts = {
        name: PortFacts(link=name, rate_gbps=400.0, tick=8.0, ethernet=False) for name in names
    }
    rules = EpisodeRules()
    carry, runs = None, []
    scratch = lake.scratch("derived/link_rates")
    with connect(threads=threads, memory=memory, scratch=scratch) as session:
        session.set_variables(rules.to_json())
        for chunk in plan(lake.files("link_counters"), 0)[:hours]:
            done = run_chunk(
                lake,
                session,
                ChunkInput(chunk=chunk, facts=facts, null_rate=False, deltas=False, carry=carry),
                keep_rates=False,
            )
            carry = done.carry
            runs.append(done.runs)
        session.load("runs", pa.concat_tables(runs))
        session.load("handed_on", carry)
        session.view("last_known", f"FROM handed_on WHERE level >= {rules.report_level}")
        session.create("link_stretches")
        found = session.rows(
            "SELECT link, start_ns, end_ns FROM link_stretches WHERE kind = 'wait'"
        )
    return sorted((str(link), int(start), int(end)) for link, start, end in found)


def scan(files: list[str], *, threads: int = 2, memory: str = "3GB") -> Any:
    """Sums of the columns that the pipeline reads, over the same files."""
    import duckdb

    con = duckdb.connect()
    con.execute(f"SET threads = {threads}; SET memory_limit = '{memory}'; SET TimeZone = 'UTC'")
    sums = ", ".join(f"sum({name})" for name in SUMS)
    return con.sql(f"SELECT {sums}, max(ts), max(link) FROM read_parquet({files!r})").fetchall()


def with_polars(files: list[str], *, over: bool) -> Episodes:
    """The same figures and episodes; differences within each link, or global and masked."""
    import polars as pl

    counters = SUMS[:6]
    frame = pl.scan_parquet(files, hive_partitioning=False).select("ts", "link", *SUMS)
    frame = frame.with_columns(pl.col(counters).cast(pl.Int64))
    frame = frame.with_columns(errors=pl.col("port_rcv_errors") + pl.col("symbol_error"))
    rising = [*counters[:4], "errors", "symbol_error"]

    def by_link(expression: pl.Expr) -> pl.Expr:
        return expression.over("link") if over else expression

    if not over:
        frame = frame.sort("link", "ts")
    same = pl.col("link") == pl.col("link").shift()
    steps = [by_link(pl.col(name).diff()).alias(f"d_{name}") for name in rising]
    frame = frame.with_columns(*steps, by_link(pl.col("ts").diff()).alias("dt"))
    if not over:
        masked = [f"d_{name}" for name in rising] + ["dt"]
        frame = frame.with_columns(pl.when(same).then(pl.col(name)).alias(name) for name in masked)
    reset = pl.any_horizontal(pl.col(f"d_{name}") < 0 for name in rising)
    frame = frame.with_columns(
        pl.when(reset).then(None).otherwise(pl.col(f"d_{name}")).alias(f"d_{name}")
        for name in rising
    ).with_columns(interval_s=pl.col("dt").dt.total_nanoseconds() / 1e9)
    capacity = pl.col("rate_gbps") * 1e9 / 8 * pl.col("interval_s")
    unit, interval = pl.col("data_unit_bytes"), pl.col("interval_s")
    frame = frame.with_columns(
        tx_gbps=pl.col("d_port_xmit_data") * unit * 8 / 1e9 / interval,
        rx_gbps=pl.col("d_port_rcv_data") * unit * 8 / 1e9 / interval,
        utilization=(pl.col("d_port_xmit_data") * unit / capacity).clip(upper_bound=1.0),
        wait=(pl.col("d_port_xmit_wait") * pl.col("xmit_wait_tick") / capacity).clip(
            upper_bound=1.0
        ),
        discard_rate=pl.col("d_port_xmit_discards") / interval,
        error_rate=pl.col("d_errors") / interval,
        symbol_error_rate=pl.col("d_symbol_error") / interval,
    )
    wait, discards = pl.col("wait"), pl.col("discard_rate")

    def switch(enter: float, leave: float, more: float, less: float) -> pl.Expr:
        state = pl.when((wait >= enter) | (discards >= more)).then(1)
        state = state.when((wait < leave) & (discards < less)).then(0)
        return by_link(state.otherwise(None).forward_fill()).fill_null(0)

    frame = frame.with_columns(
        level=pl.when(wait.is_not_null()).then(
            switch(0.02, 0.01, 1, 0.5)
            + switch(0.15, 0.1, 100, 50)
            + switch(0.5, 0.35, 10_000, 5_000)
        )
    )
    figures = ("tx_gbps", "rx_gbps", "discard_rate", "error_rate", "symbol_error_rate")
    # All rates are made, as ours are: their sums keep the planner from leaving them out.
    sums, hot = pl.collect_all(
        [
            frame.select(pl.col(figures).sum()),
            frame.filter(pl.col("level") >= 2).select("link", "ts", "interval_s", "wait"),
        ]
    )
    assert len(sums) == 1
    hot = hot.sort("link", "ts").with_columns(end=pl.col("ts").dt.timestamp("ns"))
    length = (pl.col("interval_s") * 1e9).round().cast(pl.Int64)
    hot = hot.with_columns(start=pl.col("end") - length)
    far = pl.col("start") - pl.col("end").shift().over("link") > 10_000_000_000
    hot = hot.with_columns(island=far.fill_null(True).cum_sum())
    found = hot.group_by("link", "island").agg(
        pl.col("start").min(), pl.col("end").max(), pl.len(), pl.col("wait").mean()
    )
    found = found.filter((pl.col("len") >= 2) & (pl.col("end") - pl.col("start") >= 2 * 10**9))
    return sorted(found.select("link", "start", "end").rows())


def with_pandas(files: list[str]) -> Episodes:
    """The same by ``groupby('link')``."""
    import numpy as np
    import pandas as pd

    counters = list(SUMS[:6])
    columns = ["ts", "link", *SUMS]
    frame = pd.concat([pd.read_parquet(file, columns=columns) for file in files])
    frame = frame.reset_index(drop=True)
    frame[counters] = frame[counters].astype("int64")
    frame["errors"] = frame["port_rcv_errors"] + frame["symbol_error"]
    frame["ns"] = frame["ts"].astype("int64")
    rising = [*counters[:4], "errors", "symbol_error"]
    links = frame.groupby("link", sort=False)
    steps = links[[*rising, "ns"]].diff()
    reset = (steps[rising] < 0).any(axis=1)
    steps.loc[reset, rising] = np.nan
    interval = steps["ns"] / 1e9
    capacity = frame["rate_gbps"] * 1e9 / 8 * interval
    sent = steps["port_xmit_data"] * frame["data_unit_bytes"]
    frame["tx_gbps"] = sent * 8 / 1e9 / interval
    frame["rx_gbps"] = steps["port_rcv_data"] * frame["data_unit_bytes"] * 8 / 1e9 / interval
    frame["utilization"] = (sent / capacity).clip(upper=1.0)
    wait = (steps["port_xmit_wait"] * frame["xmit_wait_tick"] / capacity).clip(upper=1.0)
    discards = steps["port_xmit_discards"] / interval
    frame["error_rate"] = steps["errors"] / interval
    frame["symbol_error_rate"] = steps["symbol_error"] / interval
    level = pd.Series(0.0, index=frame.index)
    rules = ((0.02, 0.01, 1, 0.5), (0.15, 0.1, 100, 50), (0.5, 0.35, 10_000, 5_000))
    for enter, leave, more, less in rules:
        state = pd.Series(np.nan, index=frame.index)
        state[(wait < leave) & (discards < less)] = 0.0
        state[(wait >= enter) | (discards >= more)] = 1.0
        level += state.groupby(frame["link"], sort=False).ffill().fillna(0.0)
    hot = pd.DataFrame({"link": frame["link"], "end": frame["ns"], "length": steps["ns"]})
    hot = hot[wait.notna() & (level >= 2)].sort_values(["link", "end"])
    hot["start"] = hot["end"] - hot["length"].astype("int64")
    far = hot["start"] - hot.groupby("link")["end"].shift() > 10_000_000_000
    hot["island"] = (far | ~hot["link"].duplicated()).cumsum()
    found = hot.groupby(["link", "island"]).agg(
        start=("start", "min"), end=("end", "max"), count=("end", "size")
    )
    found = found[(found["count"] >= 2) & (found["end"] - found["start"] >= 2 * 10**9)]
    rows = found.reset_index()[["link", "start", "end"]].to_numpy().tolist()
    return sorted((str(link), int(start), int(end)) for link, start, end in rows)
