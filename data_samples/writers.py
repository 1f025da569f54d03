"""Writes the planted telemetry in the formats that real tools write."""

from __future__ import annotations

import csv
import gzip
import io
import json
import pickle
import struct
from datetime import UTC, datetime
from pathlib import Path

import google_crc32c

COMM_ID = "0x7f3a9c51e0d24b"
INDEX_HEAD = 64  # bytes of the line that tells where the index table is, and two empty ones


def gz(path: Path, text: str | bytes) -> None:
    """Write gzip with a fixed time, so that the same scenario gives the same bytes."""
    data = text.encode() if isinstance(text, str) else text
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as out:
        out.write(data)


def prometheus_matrix(series: list[tuple[dict[str, str], list[tuple[float, int]]]]) -> str:
    """A ``query_range`` answer: times as float seconds, values as strings."""
    result = [
        {"metric": labels, "values": [[t, str(v)] for t, v in values]} for labels, values in series
    ]
    document = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    return json.dumps(document, separators=(",", ":"))


def telegraf_line(host: str, device: str, fields: dict[str, int], ns: int) -> str:
    """One line of Telegraf's infiniband input."""
    body = ",".join(f"{k}={v}i" for k, v in fields.items())
    return f"infiniband,device={device},host={host},port=1 {body} {ns}"


def inspector_record(
    rank: int, ranks: int, host: str, sn: int, size: int, t0: int, t1: int
) -> str:
    """One line of NCCL Inspector, verbose form; times in microseconds since the epoch."""
    micros = t1 - t0
    alg = size / (micros * 1e-6) / 1e9
    record = {
        "header": {"id": COMM_ID, "rank": rank, "n_ranks": ranks, "nnodes": ranks},
        "metadata": {
            "inspector_output_format_version": "v4.0",
            "git_rev": "",
            "rec_mechanism": "profiler_plugin",
            "dump_timestamp_us": t1 + 150,
            "hostname": host,
            "pid": 4000 + rank,
        },
        "coll_perf": {
            "coll": "AllReduce",
            "coll_sn": sn,
            "coll_msg_size_bytes": size,
            "coll_exec_time_us": micros,
            "coll_timing_source": "kernel_gpu",
            "coll_algobw_gbs": round(alg, 6),
            "coll_busbw_gbs": round(alg * 2 * (ranks - 1) / ranks, 6),
            "event_trace_sn": {"coll_start_sn": 1, "coll_stop_sn": 2},
            "event_trace_ts": {
                "coll_start_ts": t0,
                "coll_stop_ts": t0 + 5,
                "kernel_events": [{"channel_id": 0, "kernel_start_ts": t0, "kernel_stop_ts": t1}],
            },
        },
    }
    return json.dumps(record)


def megatron_line(
    when: datetime, step: int, total: int, ms: float, loss: float, norm: float
) -> str:
    """One iteration as Megatron-LM prints it, in local time without a zone."""
    return (
        f" [{when:%Y-%m-%d %H:%M:%S}] iteration {step:8d}/{total:8d} | "
        f"consumed samples: {step * 512:12d} | elapsed time per iteration (ms): {ms:.1f} | "
        f"learning rate: 3.000000E-04 | global batch size:   512 | lm loss: {loss:.6E} | "
        f"loss scale: 1.0 | grad norm: {norm:.3f} | number of skipped iterations:   0 | "
        f"number of nan iterations:   0 |"
    )


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _masked_crc(data: bytes) -> int:
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def tensorboard_record(wall_time: float, step: int, tag: str | None, value: float) -> bytes:
    """One event in TFRecord framing: Event{wall_time 1, step 2, file_version 3, summary 5}."""
    event = b"\x09" + struct.pack("<d", wall_time) + b"\x10" + _varint(step)
    if tag is None:
        version = b"brain.Event:2"
        event += b"\x1a" + _varint(len(version)) + version
    else:
        name = tag.encode()
        inner = b"\x0a" + _varint(len(name)) + name + b"\x15" + struct.pack("<f", value)
        summary = b"\x0a" + _varint(len(inner)) + inner
        event += b"\x2a" + _varint(len(summary)) + summary
    head = struct.pack("<Q", len(event))
    return b"".join(
        (
            head,
            struct.pack("<I", _masked_crc(head)),
            event,
            struct.pack("<I", _masked_crc(event)),
        )
    )


def ibnetdiscover(ports: list, when: datetime) -> str:
    """The topology as ibnetdiscover prints it: a block a node, a line a port."""
    nodes: dict[str, list] = {}
    for port in ports:
        nodes.setdefault(port.guid, []).append(port)
    lids = {guid: 10 + index for index, guid in enumerate(sorted(nodes))}
    out = [f"#\n# Topology file: generated on {when:%a %b %e %H:%M:%S %Y}\n#"]
    for guid, mine in nodes.items():
        bare = guid[2:]
        switch = mine[0].kind != "host"
        out.append(f"\nvendid=0x2c9\ndevid={'0xd2f2' if switch else '0x1021'}")
        out.append(f"sysimgguid={guid}\n{'switch' if switch else 'ca'}guid={guid}({bare})")
        if switch:
            out.append(
                f'Switch\t{len(mine)} "S-{bare}"\t\t# "{mine[0].name}" '
                f"enhanced port 0 lid {lids[guid]} lmc 0"
            )
        else:
            out.append(f'Ca\t{len(mine)} "H-{bare}"\t\t# "{mine[0].name}"')
        for port in mine:
            peer = port.peer_guid[2:]
            letter, tail = ("H", f"({peer})") if port.kind == "down" else ("S", "")
            if switch:
                out.append(
                    f'[{port.port}]\t"{letter}-{peer}"[{port.peer_port}]{tail} \t\t'
                    f'# "{port.peer_name}" lid {lids[port.peer_guid]} 4xNDR'
                )
            else:
                out.append(
                    f'[{port.port}]({bare}) \t"S-{peer}"[{port.peer_port}]\t\t# lid {lids[guid]} '
                    f'lmc 0 "{port.peer_name}" lid {lids[port.peer_guid]} 4xNDR'
                )
    return "\n".join(out) + "\n"


def ibdiagnet(ports: list, counters: dict[str, dict[str, int]], when: datetime) -> str:
    """A ``db_csv`` with the sections that matter here and its index table."""
    nodes = {port.guid: port for port in ports}
    count = {guid: sum(p.guid == guid for p in ports) for guid in nodes}
    sections: dict[str, list[list[object]]] = {
        "RUN_INFO": [
            ["IBDIAGNET_Version", "Date", "Args"],
            ["IBDIAGNET 2.13.0", f"{when:%Y-%m-%d %H:%M:%S} UTC +0000", ""],
        ],
        "NODES": [
            ["NodeDesc", "NumPorts", "NodeType", "SystemImageGUID", "NodeGUID", "PortGUID",
             "DeviceID", "VendorID"],
            *[
                [p.name, count[g], 1 if p.kind == "host" else 2, g, g, g,
                 4129 if p.kind == "host" else 54002, 713]
                for g, p in nodes.items()
            ],
        ],
        "LINKS": [
            ["NodeGuid1", "PortNum1", "NodeGuid2", "PortNum2"],
            *[
                [p.guid, p.port, p.peer_guid, p.peer_port]
                for p in ports if (p.guid, p.port) < (p.peer_guid, p.peer_port)
            ],
        ],
        "PM_PORT_SAMPLES_CONTROL": [
            ["NodeGUID", "PortGUID", "PortNumber", "Tick"],
            *[[p.guid, p.guid, p.port, "0x07"] for p in ports],
        ],
        "PM_INFO": [
            ["NodeGUID", "PortGUID", "PortNumber", "SymbolErrorCounter", "PortXmitData",
             "PortXmitWait", "PortXmitDataExtended", "PortRcvDataExtended",
             "PortXmitPktsExtended", "PortXmitWaitExt"],
            *[
                [p.guid, p.guid, p.port, c["errors"], min(c["words"], 2**32 - 1),
                 min(c["wait"], 2**32 - 1), c["words"], c["received"], c["packets"], c["wait"]]
                for p in ports for c in [counters[p.link]]
            ],
        ],
    }  # fmt: skip
    out = io.StringIO()
    index = []
    for name, rows in sections.items():
        out.write(f"START_{name}\n")
        offset = len(out.getvalue().encode()) + INDEX_HEAD
        csv.writer(out, lineterminator="\n").writerows(rows)
        size = len(out.getvalue().encode()) + INDEX_HEAD - offset
        line = out.getvalue().count("\n") - len(rows) + 4
        index.append([name, offset, size, line, len(rows) - 1])
        out.write(f"END_{name}\n\n\n")
    at, line = len(out.getvalue().encode()) + INDEX_HEAD, out.getvalue().count("\n") + 4
    out.write("START_INDEX_TABLE\nName, Offset, Size, Line, Rows\n")
    for row in index:
        out.write(f"{row[0]}, {row[1]:11d}, {row[2]:11d}, {row[3]:11d}, {row[4]:11d}\n")
    out.write("END_INDEX_TABLE\n")
    # The first line tells where the table is and is as long as it will be.
    first = f"# INDEX_TABLE offset: {at:11d}, line: {line:11d}"
    return first.ljust(INDEX_HEAD - 3) + "\n\n\n" + out.getvalue()


def sysfs_tree(root: Path, guid: str, counters: dict[str, int]) -> None:
    """One device as the kernel shows it under /sys/class/infiniband."""
    port = root / "mlx5_0" / "ports" / "1"
    files = {
        root / "mlx5_0" / "node_guid": ":".join(guid[2:][i : i + 4] for i in range(0, 16, 4)),
        root / "mlx5_0" / "node_desc": "",
        root / "mlx5_0" / "fw_ver": "28.39.1002",
        root / "mlx5_0" / "hca_type": "MT4129",
        port / "rate": "400 Gb/sec (4X NDR)",
        port / "state": "4: ACTIVE",
        port / "phys_state": "5: LinkUp",
        port / "link_layer": "InfiniBand",
        port / "hw_counters" / "lifespan": "12",
        port / "hw_counters" / "out_of_sequence": "0",
    }
    files |= {port / "counters" / name: str(value) for name, value in counters.items()}
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def flight_recorder(rank: int, ranks: int, seq: int, created_ns: int, elements: int) -> bytes:
    """A Flight Recorder dump as PyTorch 2.9 pickles it: the last operations of one rank."""
    entries = [
        {
            "record_id": index,
            "pg_id": 0,
            "process_group": ("0", "default_pg"),
            "collective_seq_id": seq + index,
            "p2p_seq_id": 0,
            "op_id": seq + index,
            "profiling_name": "nccl:all_reduce",
            "time_created_ns": created_ns + index * 400_000_000 + rank * 1000,
            "time_discovered_started_ns": None,
            "time_discovered_completed_ns": None,
            "input_sizes": ((elements,),),
            "output_sizes": ((elements,),),
            "input_dtypes": ["BFloat16"],
            "output_dtypes": ["BFloat16"],
            "state": "completed" if index < 3 else "scheduled",
            "retired": index < 3,
            "timeout_ms": 600000,
            "is_p2p": False,
            "frames": [],
        }
        for index in range(4)
    ]
    dump = {
        "version": "2.9",
        "pg_config": {
            "0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))}
        },
        "nccl_version": "2.27.3",
        "pg_status": {"0": {"last_enqueued_collective": seq + 3, "last_started_collective": -1,
                            "last_completed_collective": seq + 2}},
        "entries": entries,
    }  # fmt: skip
    return pickle.dumps(dump, protocol=2)


def utc(ns: int) -> datetime:
    """Nanoseconds since the epoch as a UTC time."""
    return datetime.fromtimestamp(ns / 1e9, UTC)
