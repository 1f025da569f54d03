"""A clean scenario as the files that tools write, for the way that a user goes."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.planted.build import Planted
from tests.planted.fabric import Fabric, Port

_NAMES = ("port_xmit_data", "port_rcv_data", "port_xmit_packets", "port_xmit_wait", "symbol_error")


def write_files(planted: Planted, folder: Path) -> None:
    """Telegraf for hosts, CSV for switches, ibnetdiscover, NCCL Inspector, Megatron-LM."""
    fabric = planted.history.plan.fabric
    rows = _rows(planted, "link_counters")
    folder.mkdir(parents=True, exist_ok=True)
    hosts = [r for r in rows if r["host"]]
    (folder / "hosts.lp").write_text("".join(map(_telegraf, sorted(hosts, key=lambda r: r["ts"]))))
    lines = ["epoch_ns,node_guid,port,rate," + ",".join(_NAMES)]
    lines += [
        ",".join(
            str(v) for v in (r["ts"], r["node_guid"], r["port"], 400, *(r[n] for n in _NAMES))
        )
        for r in rows
        if not r["host"]
    ]
    (folder / "switches.csv").write_text("\n".join(lines) + "\n")
    (folder / "topology.ibnetdiscover").write_text(_topology(fabric))
    for job in planted.history.plan.jobs:
        for place in (0, len(job.hosts) - 1):
            host = fabric.host_name(job.hosts[place])
            mine = [
                r
                for r in _rows(planted, "collectives")
                if r["job"] == job.name and r["host"] == host
            ]
            name = folder / job.name / f"{host}-pid{4000 + place}.log"
            name.parent.mkdir(exist_ok=True)
            name.write_text("".join(json.dumps(_inspector(r)) + "\n" for r in mine))
        steps = [r for r in _rows(planted, "steps") if r["job"] == job.name]
        (folder / job.name / "megatron.log").write_text("".join(map(_megatron, steps)))


def _rows(planted: Planted, name: str) -> list[dict[str, Any]]:
    data = pa.concat_tables(planted.tables[name], promote_options="default")
    columns = {
        n: data[n].cast(pa.int64())
        if pa.types.is_timestamp(data.schema.field(n).type)
        else data[n]
        for n in data.column_names
    }
    rows: list[dict[str, Any]] = pa.table(columns).to_pylist()
    return rows


def _telegraf(row: dict[str, Any]) -> str:
    fields = ",".join(f"{name}={row[name]}i" for name in _NAMES)
    tags = f"device={row['device']},host={row['host']},port={row['port']}"
    return f"infiniband,{tags} {fields} {row['ts']}\n"


def _topology(fabric: Fabric) -> str:
    """The cabling as ibnetdiscover prints it: a block a node, a line a port."""
    nodes: dict[str, list[Port]] = {}
    for port in fabric.ports:
        nodes.setdefault(port.guid, []).append(port)
    lids = {guid: 10 + index for index, guid in enumerate(sorted(nodes))}
    out = ["#\n# Topology file: generated on Mon Mar  2 09:59:00 2026\n#"]
    for guid, ports in nodes.items():
        bare, host = guid[2:], ports[0].host
        out.append(f"\nvendid=0x2c9\ndevid={'0x1021' if host else '0xd2f2'}")
        out.append(f"sysimgguid={guid}\n{'ca' if host else 'switch'}guid={guid}({bare})")
        if host:
            out.append(f'Ca\t{len(ports)} "H-{bare}"\t\t# "{ports[0].name}"')
        else:
            out.append(
                f'Switch\t{len(ports)} "S-{bare}"\t\t# "{ports[0].name}" '
                f"enhanced port 0 lid {lids[guid]} lmc 0"
            )
        for p in ports:
            peer = p.peer_guid[2:]
            if host:
                out.append(
                    f'[{p.number}]({bare}) \t"S-{peer}"[{p.peer_number}]\t\t# lid {lids[guid]} '
                    f'lmc 0 "{p.peer_name}" lid {lids[p.peer_guid]} 4xNDR'
                )
            else:
                letter, tail = ("H", f"({peer})") if p.kind == "down" else ("S", "")
                out.append(
                    f'[{p.number}]\t"{letter}-{peer}"[{p.peer_number}]{tail} \t\t'
                    f'# "{p.peer_name}" lid {lids[p.peer_guid]} 4xNDR'
                )
    return "\n".join(out) + "\n"


def _inspector(row: dict[str, Any]) -> dict[str, Any]:
    start, stop = row["start_ts"] // 1000, (row["start_ts"] + row["duration_ns"]) // 1000
    rate = row["message_bytes"] / (stop - start) / 1e3
    return {
        "header": {
            "id": row["comm"],
            "rank": row["rank"],
            "n_ranks": row["comm_size"],
            "nnodes": row["comm_size"] // 8,
        },
        "metadata": {
            "inspector_output_format_version": "v4.0",
            "git_rev": "",
            "rec_mechanism": "profiler_plugin",
            "dump_timestamp_us": stop + 150,
            "hostname": row["host"],
            "pid": 4000,
        },
        "coll_perf": {
            "coll": "AllReduce",
            "coll_sn": row["seq"],
            "coll_msg_size_bytes": row["message_bytes"],
            "coll_exec_time_us": stop - start,
            "coll_timing_source": "kernel_gpu",
            "coll_algobw_gbs": round(rate, 6),
            "coll_busbw_gbs": round(2 * rate, 6),
            "event_trace_sn": {"coll_start_sn": 1, "coll_stop_sn": 2},
            "event_trace_ts": {
                "coll_start_ts": start,
                "coll_stop_ts": start + 5,
                "kernel_events": [
                    {"channel_id": 0, "kernel_start_ts": start, "kernel_stop_ts": stop}
                ],
            },
        },
    }


def _megatron(row: dict[str, Any]) -> str:
    when = datetime.fromtimestamp(row["ts"] / 1e9, UTC)
    return (
        f" [{when:%Y-%m-%d %H:%M:%S}] iteration {row['step']:8d}/   20000 | "
        f"consumed samples: {row['step'] * 512:12d} | elapsed time per iteration (ms): "
        f"{row['step_time_s'] * 1e3:.1f} | learning rate: 3.000000E-04 | "
        f"global batch size:   512 | lm loss: {row['loss']:.6E} | loss scale: 1.0 | "
        f"grad norm: 0.400 | number of skipped iterations:   0 | "
        f"number of nan iterations:   0 |\n"
    )
