"""Backlog by netlink against what ``tc`` says of the same queue, in a network of our own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import Any

import pytest

from tests.probe.helpers import LIMIT_S
from xtune.policies.probe.queue import Queue

# Runs in a new network namespace, which goes with the process. A link of 8 kbit/s keeps what it
# is given for minutes; the neighbour is told by hand, so that nothing waits for an answer.
INSIDE = """
import json, socket, subprocess
from xtune.policies.probe.queue import Queue

def call(text):
    return subprocess.run(text.split(), check=True, capture_output=True, text=True).stdout

def said(device):
    (queue,) = [q for q in json.loads(call(f"tc -s -j qdisc show dev {device}")) if q.get("root")]
    return {"backlog": queue["backlog"], "packets": queue["qlen"]}

def quiet(queue, device):
    while True:
        before, share = said(device), queue.read()
        if said(device) == before:
            return before | {"share": share}

call("ip link add a0 type veth peer name b0")
for device, address in (("a0", "198.18.0.1/30"), ("b0", "198.18.0.5/30")):
    call(f"ip address add {address} dev {device}")
    call(f"ip link set {device} up")
call("ip neighbour add 198.18.0.2 lladdr 02:00:00:00:00:01 dev a0 nud permanent")
call("tc qdisc add dev a0 root handle 1: tbf rate 8kbit burst 2000 limit 64000")
found = {}
queue = Queue("a0")
found["idle"] = quiet(queue, "a0")
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for count in (20, 20, 100):
    for _ in range(count):
        sender.sendto(bytes(1000), ("198.18.0.2", 9))
    found[str(count)] = quiet(queue, "a0")
    found["given"] = quiet(Queue("a0", 128000), "a0")
call("tc qdisc replace dev b0 root pfifo limit 50")
found["pfifo"] = quiet(Queue("b0"), "b0")
call("tc qdisc del dev b0 root")
found["none"] = Queue("b0").read()
call("ip link del a0")
try:
    queue.read()
except OSError:
    found["gone"] = True
print(json.dumps(found))
"""


# The socket's buffer is full long before the queue is: what the host itself holds back.
HELD_BACK = """
import json, subprocess, time
from xtune.policies.probe.config import Path
from xtune.policies.probe.lane import Lane
from xtune.policies.probe.packet import Codec
from xtune.policies.probe.sources import Sources

for text in (
    "ip link add a0 type veth peer name b0",
    "ip address add 198.18.0.1/30 dev a0",
    "ip link set a0 up",
    "ip link set b0 up",
    "ip neighbour add 198.18.0.2 lladdr 02:00:00:00:00:01 dev a0 nud permanent",
    "tc qdisc add dev a0 root tbf rate 8kbit burst 2000 limit 10000000",
):
    subprocess.run(text.split(), check=True)
path = Path(name="a", local=("198.18.0.1", 0), remote=("198.18.0.2", 9), dst="b", number=0)
now = [0]
lane = Lane(path, Codec(bytes(16)), 10, Sources(), lambda: now[0], time.time_ns)
for _ in range(2000):
    lane.send()
now[0] = 11
lane.expire(11, [])
reading = lane.reading()
print(json.dumps({"counts": lane.counts, "sent": reading.sent, "lost": reading.lost}))
"""


def run_inside(code: str) -> dict[str, Any]:
    if not all(map(shutil.which, ("unshare", "ip", "tc"))):
        pytest.skip("needs unshare, ip and tc")
    allowed = subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False)
    if allowed.returncode:
        pytest.skip("needs the right to make a network namespace")
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", code],
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return run_inside(INSIDE)


def test_occupancy_is_what_tc_says_over_the_limit(found: dict[str, Any]) -> None:
    assert found["idle"] == {"backlog": 0, "packets": 0, "share": 0.0}
    assert 0 < found["20"]["backlog"] <= 64_000
    for name, limit in (("20", 64_000), ("100", 64_000), ("given", 128_000)):
        assert found[name]["share"] == found[name]["backlog"] / limit
    assert found["100"]["share"] > 0.95  # 140 packets were sent, 61 fit


def test_a_fifo_of_packets_is_limited_in_packets(found: dict[str, Any]) -> None:
    assert found["pfifo"]["share"] == 0.0


def test_without_a_limit_of_its_own_a_queue_is_unknown(found: dict[str, Any]) -> None:
    assert found["none"] is None and found["gone"]


def test_a_device_that_is_not_there_is_an_error_and_not_an_empty_queue() -> None:
    with pytest.raises(OSError):
        Queue("no-such-device").read()


def test_what_the_host_itself_holds_back_is_not_lost_on_the_path() -> None:
    held = run_inside(HELD_BACK)
    unsent = held["counts"].pop("unsent")
    assert held == {"counts": {}, "sent": 2000 - unsent, "lost": 2000 - unsent}
    assert 0 < unsent < 2000
