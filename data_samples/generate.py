"""Makes data_samples/cluster: telemetry of a small fabric with known episodes, in real formats.

    python data_samples/generate.py --out data_samples [--set compute_s=1.5 ...]

``truth.json`` holds the scenario and every planted link episode.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import model
import writers

REPORTED_FROM = 0.15  # wait fraction of level 2


def planted(fabric: model.Fabric, episodes: list[model.Episode], steps: list, t0_ns: int) -> list:
    """Truth: each episode with every link that must be reported, on absolute time."""
    out = []
    for episode in episodes:
        links = {link: round(w, 4) for link, w in episode.wait.items() if w >= REPORTED_FROM}
        slowdown, ports = model.ring_slowdown(fabric, episode)
        inside = [s for s in steps if s.start_s < episode.end_s and s.end_s > episode.start_s]
        comm = sum(
            max(0.0, min(b[2], episode.end_s) - max(b[1], episode.start_s))
            for s in inside for b in s.buckets
        )  # fmt: skip
        share = comm / (episode.end_s - episode.start_s) * (1 - 1 / slowdown)
        if slowdown > 1.0 and share >= REPORTED_FROM:
            links |= {port: round(share, 4) for port in ports}
        links.setdefault(episode.root, 0.0)
        out.append(
            {
                "cause": episode.cause,
                "root": episode.root,
                "start_ns": t0_ns + round(episode.start_s * 1e9),
                "end_ns": t0_ns + round(episode.end_s * 1e9),
                "slowdown": round(slowdown, 4),
                "links": links,
            }
        )
    return out


def counters_at(series: dict, base: dict, fabric: model.Fabric, link: str, t: np.ndarray) -> dict:
    """Counters of one port at window times ``t``, on top of what earlier windows left."""
    port = fabric.ports[link]
    sent, wait = series[link].at(t)
    received, _ = series[f"{port.peer_guid}/{port.peer_port}"].at(t)
    before = base[link]
    return {
        "bytes": before["bytes"] + sent,
        "received": before["received"] + received,
        "wait": before["wait"] + wait,
        "packets": before["packets"] + sent / model.MTU_BYTES,
    }


def error_count(episodes: list[model.Episode], link: str, t: np.ndarray) -> np.ndarray:
    """Symbol errors of one port: 40 a second while a sick link's episode lasts."""
    total = np.zeros_like(t)
    for episode in episodes:
        if episode.errors_link == link:
            total += 40.0 * np.clip(t - episode.start_s, 0.0, episode.end_s - episode.start_s)
    return total


def write_prometheus(
    out: Path, day: str, t0: float, times: np.ndarray, rows: dict, fabric
) -> None:
    """One ``query_range`` answer a day: all ports, named as a fabric exporter names them."""
    names = {
        "bytes": "port_transmit_data_bytes_total",
        "wait": "port_transmit_wait_total",
        "packets": "port_transmit_packets_total",
        "errors": "port_symbol_error_total",
    }
    stamps = [t0 + float(t) for t in times]
    series = []
    for link, columns in rows.items():
        port = fabric.ports[link]
        kind = "hca" if port.kind == "host" else "switch"
        for column, metric in names.items():
            if column == "errors" and not columns[column].any():
                continue
            labels = {
                "__name__": f"infiniband_{kind}_{metric}",
                "guid": port.guid,
                "port": str(port.port),
                kind: port.name,
                "instance": "ib-exporter:9315",
                "job": "infiniband",
            }
            # The exporter is queried for packets at a coarser step: an identity check needs few.
            pick = slice(None, None, 6) if column == "packets" else slice(None)
            values = [int(v) for v in columns[column][pick]]
            series.append((labels, list(zip(stamps[pick], values, strict=True))))
    writers.gz(out / "prometheus" / f"{day}.json.gz", writers.prometheus_matrix(series))


def write_telegraf(out: Path, day: str, t0_ns: int, times: np.ndarray, rows: dict, fabric) -> None:
    """Telegraf on the first four hosts: xmit_wait is 32 bits there and sticks."""
    lines = []
    links = [link for link, port in fabric.ports.items() if port.kind == "host"][:4]
    for index, t in enumerate(times):
        for link in links:
            columns = rows[link]
            fields = {
                "port_xmit_data": int(columns["bytes"][index]) // 4,
                "port_rcv_data": int(columns["received"][index]) // 4,
                "port_xmit_wait": min(int(columns["wait"][index]), 2**32 - 1),
                "unicast_xmit_packets": int(columns["packets"][index]),
                "symbol_error": 0,
            }
            host = fabric.ports[link].name.split()[0]
            ns = t0_ns + round(float(t) * 1e9)
            lines.append(writers.telegraf_line(host, "mlx5_0", fields, ns))
    writers.gz(out / "telegraf" / f"{day}.lp.gz", "\n".join(lines) + "\n")


def write_job(out: Path, s: model.Scenario, day: str, t0_ns: int, steps: list, rng) -> None:
    """The job's own records: NCCL Inspector of two ranks, Megatron stdout, TensorBoard."""
    ranks = s.leaves * s.job_hosts_per_leaf
    fabric = model.Fabric(s)
    for rank in (0, ranks - 1):
        host = fabric.host(*fabric.job_hosts[rank])
        lines = []
        for step in steps:
            for index, (_, begin, end) in enumerate(step.buckets):
                start_us = (t0_ns + round(begin * 1e9)) // 1000
                stop_us = (t0_ns + round(end * 1e9)) // 1000
                sn = step.number * s.buckets + index
                lines.append(
                    writers.inspector_record(
                        rank, ranks, host, sn, s.bucket_bytes, start_us, stop_us
                    )
                )
        name = f"{day}_{host}-pid{4000 + rank}.log.gz"
        writers.gz(out / "inspector" / name, "\n".join(lines) + "\n")
    log, events = [], [writers.tensorboard_record(t0_ns / 1e9, 0, None, 0.0)]
    for step in steps:
        loss = s.loss_floor + s.loss_scale * (step.number + 1) ** -s.loss_power
        noisy = loss * float(np.exp(rng.normal(0.0, 0.004)))
        when = writers.utc(t0_ns + round(step.end_s * 1e9))
        ms = (step.end_s - step.start_s) * 1e3
        norm = 0.4 + 2.0 * (step.number + 1) ** -0.3
        log.append(writers.megatron_line(when, step.number + 1, 20000, ms, noisy, norm))
        if step.number % 100 == 0:
            events.append(
                writers.tensorboard_record(
                    t0_ns / 1e9 + step.end_s, step.number + 1, "validation/loss", loss * 1.01
                )
            )
    writers.gz(out / "megatron" / f"{day}.log.gz", "\n".join(log) + "\n")
    path = out / "tensorboard" / f"events.out.tfevents.{t0_ns // 10**9}.node01"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(events))


def generate(root: Path, s: model.Scenario) -> None:
    """Write the telemetry below ``root/cluster`` and what is planted in it to ``truth.json``."""
    out = root / "cluster"
    fabric = model.Fabric(s)
    rng = np.random.default_rng(s.seed)
    base = {
        link: dict.fromkeys(("bytes", "received", "wait", "packets"), 0.0) for link in fabric.ports
    }
    errors = dict.fromkeys(fabric.ports, 0.0)
    truth, first_step, last = [], 0, {}
    for day in s.days:
        began = datetime.fromisoformat(f"{day}T{s.start_hour:02d}:00:00").replace(tzinfo=UTC)
        t0 = began.timestamp()
        t0_ns = int(t0) * 10**9
        episodes = model.draw_episodes(fabric, rng)
        steps = model.run_job(fabric, episodes, rng, first_step)
        first_step = steps[-1].number + 1
        series = {
            link: model.port_series(fabric, link, episodes, steps, rng) for link in fabric.ports
        }
        times = np.arange(0.0, s.length_s + 1e-9, s.sample_s)
        rows = {}
        for link in fabric.ports:
            rows[link] = counters_at(series, base, fabric, link, times)
            rows[link]["errors"] = errors[link] + error_count(episodes, link, times)
        write_prometheus(out, day, t0, times, rows, fabric)
        write_telegraf(out, day, t0_ns, times, rows, fabric)
        write_job(out, s, day, t0_ns, steps, rng)
        truth += planted(fabric, episodes, steps, t0_ns)
        for link, columns in rows.items():
            base[link] = {k: float(columns[k][-1]) for k in base[link]}
            errors[link] = float(columns["errors"][-1])
        last = {"began": began, "steps": steps, "t0_ns": t0_ns}
    write_snapshots(out, fabric, base, errors, last)
    document = {
        "schema": 1,
        "scenario": dataclasses.asdict(s),
        "steps": first_step,
        "bucket_line_rate_s": model.bucket_seconds(s),
        "episodes": truth,
    }
    (root / "truth.json").write_text(json.dumps(document, indent=1) + "\n")


def write_snapshots(out: Path, fabric: model.Fabric, base: dict, errors: dict, last: dict) -> None:
    """What is read once: topology, fabric diagnosis, one host's sysfs, a hang's dumps."""
    s = fabric.scenario
    when = writers.utc(last["t0_ns"] + round(s.length_s * 1e9) + 60 * 10**9)
    ports = list(fabric.ports.values())
    folder = out / "fabric"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "topology.ibnetdiscover").write_text(writers.ibnetdiscover(ports, when))
    counters = {
        link: {
            "errors": int(errors[link]),
            "words": int(c["bytes"]) // 4,
            "received": int(c["received"]) // 4,
            "packets": int(c["packets"]),
            "wait": int(c["wait"]),
        }
        for link, c in base.items()
    }
    writers.gz(folder / "ibdiagnet2.db_csv.gz", writers.ibdiagnet(ports, counters, when))
    first = ports[0]
    c = counters[first.link]
    writers.sysfs_tree(
        out / "sysfs" / fabric.host(0, 0) / "class" / "infiniband",
        first.guid,
        {
            "port_xmit_data": c["words"],
            "port_rcv_data": c["received"],
            "port_xmit_packets": c["packets"],
            "unicast_xmit_packets": c["packets"],
            "port_xmit_wait": min(c["wait"], 2**32 - 1),
            "symbol_error": 0,
            "link_downed": 1,
            "VL15_dropped": 0,
        },
    )
    ranks = s.leaves * s.job_hosts_per_leaf
    folder = out / "flight_recorder"
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(4):
        seq = (last["steps"][-1].number + 1) * s.buckets
        created = last["t0_ns"] + round(s.length_s * 1e9)
        dump = writers.flight_recorder(rank, ranks, seq, created, s.bucket_bytes // 2)
        (folder / f"nccl_trace_rank_{rank}").write_bytes(dump)


def main() -> None:
    """Command line: ``--out DIR`` and ``--set field=value`` over the scenario's fields."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    options = parser.parse_args()
    scenario = model.Scenario()
    for item in options.set:
        name, _, text = item.partition("=")
        kind = type(getattr(scenario, name))
        value = tuple(text.split(",")) if kind is tuple else kind(text)
        scenario = dataclasses.replace(scenario, **{name: value})
    generate(options.out, scenario)


if __name__ == "__main__":
    main()
