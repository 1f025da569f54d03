"""Live sampling: CPU time of 8 ports at 10 Hz, beside a bare loop and beside bare reads.

The tree is on a memory filesystem: what a driver takes to answer is not ours to measure. All of
the process counts while it samples: reading, making rows, writing Parquet with fsync. It begins
after a second in which libraries load and the lake is made: a collector runs for days.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

RUNS = 5
SECONDS = 15.0
PORTS = 8
INTERVAL_S = 0.1
NAMES = (
    "collectors.live_cpu_share", "collectors.live_vs_bare_loop", "collectors.live_vs_pread",
)  # fmt: skip


def _names(text: str) -> list[str]:
    return text.split()


# What a ConnectX-7 has (Linux drivers/infiniband/core/sysfs.c, hw/mlx5/counters.c).
COUNTERS = _names(
    "VL15_dropped excessive_buffer_overrun_errors link_downed link_error_recovery "
    "local_link_integrity_errors multicast_rcv_packets multicast_xmit_packets "
    "port_rcv_constraint_errors port_rcv_data port_rcv_errors port_rcv_packets "
    "port_rcv_remote_physical_errors port_rcv_switch_relay_errors port_xmit_constraint_errors "
    "port_xmit_data port_xmit_discards port_xmit_packets port_xmit_wait symbol_error "
    "unicast_rcv_packets unicast_xmit_packets"
)
HW_COUNTERS = _names(
    "duplicate_request implied_nak_seq_err lifespan local_ack_timeout_err out_of_buffer "
    "out_of_sequence packet_seq_err req_cqe_error req_cqe_flush_error "
    "req_remote_access_errors req_remote_invalid_request resp_cqe_error resp_cqe_flush_error "
    "resp_local_length_error resp_remote_access_errors rnr_nak_retry_err roce_adp_retrans "
    "roce_adp_retrans_to roce_slow_restart roce_slow_restart_cnps roce_slow_restart_trans "
    "rx_atomic_requests rx_dct_connect rx_icrc_encapsulated rx_read_requests "
    "rx_write_requests"
)

CHILD = """
import json, os, resource, sys, time
from xtune.collectors.ib_sysfs import has_column
from pathlib import Path
import pyarrow.compute, pyarrow.parquet
from xtune.cli._live import LiveRun
from xtune.cli._live_stop import Status, Stop
from xtune.collectors import Context
from xtune.collectors._live import open_sampler
from xtune.lake import Lake

tree, lake, seconds, interval_s = Path(sys.argv[1]), Path(sys.argv[2]), *map(float, sys.argv[3:])

def cpu_s():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime

sampler = open_sampler(tree, None, "host")

def new_run():
    return LiveRun(
        Lake.open(lake, create=True), sampler, Context(now_ns=time.time_ns),
        host="host", place=tree, stop=Stop(), status=Status(),
    )

new_run().run(interval_s, 11.0)
run = new_run()
began = cpu_s()
run.run(interval_s, seconds)
own = (cpu_s() - began) / run.samples
paths = [str(p) for p in sorted(tree.rglob("*")) if p.parent.name in ("counters", "hw_counters")]
began = cpu_s()
rounds = 30
for _ in range(rounds):
    time.sleep(interval_s)
    for path in paths:
        with open(path, "rb") as file:
            int(file.read())
bare = (cpu_s() - began) / rounds
opened = [os.open(path, os.O_RDONLY) for path in paths]
began = cpu_s()
for _ in range(rounds):
    time.sleep(interval_s)
    for number in opened:
        os.pread(number, 64, 0)
floor = (cpu_s() - began) / rounds
print(json.dumps({"own": own, "bare": bare, "floor": floor, "files": len(paths),
                  "often": sum(map(has_column, (os.path.basename(path) for path in paths))),
                  "samples": run.samples, "missed": run.missed}))
"""


def write_tree(root: Path, ports: int = PORTS) -> None:
    """A sysfs tree of this many devices with one port each."""
    for number in range(ports):
        device = root / "class" / "infiniband" / f"mlx5_{number}"
        port = device / "ports" / "1"
        for kind, names in (("counters", COUNTERS), ("hw_counters", HW_COUNTERS)):
            (port / kind).mkdir(parents=True)
            for at, name in enumerate(names):
                moving = name.endswith(("data", "packets"))
                value = 85_378_896_588 + number if moving else at % 3
                (port / kind / name).write_text(f"{value}\n")
        (device / "node_guid").write_text(f"0a7f:bc12:45ef:{number:04x}\n")
        (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
        (port / "state").write_text("4: ACTIVE\n")
        (port / "link_layer").write_text("InfiniBand\n")


def run() -> list[dict]:
    """Sample for a while, then read the same files in a bare loop, in one process."""
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    found = []
    with (
        tempfile.TemporaryDirectory(dir=memory) as tree,
        tempfile.TemporaryDirectory() as lake,
    ):
        write_tree(Path(tree))
        words = [sys.executable, "-c", CHILD, tree, lake, str(SECONDS), str(INTERVAL_S)]
        for _ in range(RUNS):
            done = subprocess.run(words, check=True, capture_output=True, text=True)
            found.append(json.loads(done.stdout))
    own, bare, floor = (
        statistics.median(one[name] for one in found) for name in ("own", "bare", "floor")
    )
    missed = sum(one["missed"] for one in found)
    files, often = found[0]["files"], found[0]["often"]
    return [
        {
            "name": NAMES[0],
            "ratio": None,
            "goal": 0.01,
            "better": "lower",
            "value": own / INTERVAL_S,
            "unit": "of a core",
            "against": f"{PORTS} ports, {files} files, of which {often} at 10 Hz and those without"
            f" a column at 1 Hz; {missed} ticks missed",
            "runs": RUNS,
        },
        {
            "name": NAMES[1],
            "ratio": own / bare,
            "goal": None,
            "better": "lower",
            "value": own,
            "unit": "CPU s a tick",
            "against": f"open, read, int of all files at 10 Hz: {bare:.5f} s, nothing stored",
            "runs": RUNS,
        },
        {
            "name": NAMES[2],
            "ratio": own / floor,
            "goal": None,
            "better": "lower",
            "value": own,
            "unit": "CPU s a tick",
            "against": f"pread of all files, held open, at 10 Hz and nothing else: {floor:.5f} s,"
            f" {floor / INTERVAL_S:.4f} of a core",
            "runs": RUNS,
        },
    ]
