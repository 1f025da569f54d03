"""The bus end to end: probes to readings to the router, its level to ratios, and bytes back."""

from __future__ import annotations

import json
import socket
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.compress.ranks import run
from tests.compress.training import (
    attached,
    optimizer,
    policy,
    same_everywhere,
    train,
    weights,
    wrapped,
)
from tests.probe.helpers import LIMIT_S, serve, until
from xtune.policies import Rail, Router, Steering
from xtune.policies.probe.feed import Feed
from xtune.policies.probe.readings import ReadingsReader
from xtune.policies.spec import Routing

PERIOD = 4
LIMIT = 64  # of each queue, in what its file counts
RAILS = [Rail(address="127.0.0.2"), Rail(address="127.0.0.3")]
NAMES = ("rail0", "rail1")
FLOW = ("here", "there", 0)
LIMIT_NS = int(LIMIT_S * 1e9)
# Depths of the two queues on rank 0's host, for some periods each; rank 1's are empty.
PHASES = {
    "clear": ((0, 0), 1),
    "one": ((60, 0), 1),
    "both": ((60, 60), 2),
    "less": ((24, 24), 1),
    "clear again": ((0, 0), 1),
}


def _fill(folder: Path, rank: int, depths: tuple[int, int]) -> None:
    for name, depth in zip(NAMES, depths, strict=True):
        fresh = folder / f"{name}.{rank}.new"
        fresh.write_text(f"{depth}\n")
        fresh.replace(folder / f"{name}.{rank}")


def _train(rank: int, world: int, folder: str) -> dict[str, Any]:
    here = Path(folder)
    made = policy(period=PERIOD)
    made = replace(made, routing=Routing(forecast="reading", stale_ns=10**10))
    rails = [[name] for name in NAMES]
    router = Router({FLOW[:2]: rails}, made, link_gbps=10.0)
    feed = Feed(here / f"table{rank}", router, stale_ns=LIMIT_NS)
    steering = Steering(router, [FLOW], feeds=[feed])
    model = wrapped()
    log = {"XTUNE_DECISIONS": str(here / "decisions")}
    handle = attached(model, made, rails=RAILS, steering=steering, environ=log)
    steps, out, step = optimizer(model), [], 0
    reader = ReadingsReader(here / f"table{rank}", stale_ns=LIMIT_NS)
    for name, (depths, periods) in PHASES.items():
        depths = depths if rank == 0 else (0, 0)
        _fill(here, rank, depths)
        until(lambda wanted=depths: _read(reader) == wanted, f"{depths} in the readings")  # type: ignore[misc]
        steering.send(0)  # as for a bucket, of which nothing is sent
        for _ in range(2):  # so that the bus has nothing of the phase before
            router.publish(time.monotonic_ns())
            router.choose(FLOW)
        dist.barrier()
        for _ in range(periods):
            train(model, handle, steps, rank, step, step + PERIOD - 1)
            before = handle.metrics()
            train(model, handle, steps, rank, step + PERIOD - 1, step + PERIOD)
            step += PERIOD
            metrics, told = handle.metrics(), router.bus.compression
            out.append((name, metrics["rung"], metrics["rail_shares"], told.ratio, told.ratio_cap))
    said = router.bus.compression
    handle.detach()
    reader.close()
    feed.close()
    return {
        "out": out,
        "level": router.bus.routing.level,
        "wire_bytes": said.wire_bytes,
        "transfer_s": said.transfer_s,
        "last_s": metrics["transfer_s"] - before["transfer_s"],
        "rail_bytes": sum(metrics["rail_bytes"]) - sum(before["rail_bytes"]),
        "same": same_everywhere(weights(model)),
    }


def _read(reader: ReadingsReader) -> tuple[int, ...]:
    """Depths of the queues as the agent last read them; -1 where it has not."""
    readings = [reader.read(place) for place in range(len(NAMES))]
    known = [None if reading is None else reading.occupancy for reading in readings]
    return tuple(-1 if share is None else round(share * LIMIT) for share in known)


def _port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_a_full_queue_moves_stripes_and_where_all_are_full_raises_the_ratio(
    tmp_path: Path,
) -> None:
    port = _port()
    reflector = {
        "readings": str(tmp_path / "reflector"),
        "listen": [{"local": f"127.0.0.1:{port}"}],
    }
    with ExitStack() as stack:
        stack.enter_context(serve("reflect", reflector, tmp_path))
        for rank in range(2):
            _fill(tmp_path, rank, (0, 0))
            paths = [
                {
                    "name": name,
                    "local": "127.0.0.1",
                    "remote": f"127.0.0.1:{port}",
                    "sources": {"occupancy": {"file": str(tmp_path / f"{name}.{rank}"),
                                              "limit": LIMIT}},
                }
                for name in NAMES
            ]  # fmt: skip
            config = {"readings": str(tmp_path / f"table{rank}"), "rate_hz": 200,
                      "timeout_s": LIMIT_S, "paths": paths}  # fmt: skip
            stack.enter_context(serve("agent", config, tmp_path))
        results = run(2, _train, str(tmp_path))
    plans = [result["out"] for result in results]
    assert plans[0] == plans[1] and all(result["same"] for result in results)
    phases, rungs, shares, ratios, caps = zip(*plans[0], strict=True)
    assert phases == ("clear", "one", "both", "both", "less", "clear again")
    # One rung a period, up while both queues are full, down once they are not.
    assert rungs == (1, 1, 2, 3, 1, 1)
    assert ratios[1] == ratios[0] < ratios[2] < ratios[3] and ratios[4:] == ratios[:2]
    # A queue on one host empties that rail on both of them, until it is short again.
    assert shares[1] == [0.0, 1.0]
    assert min(min(shares[place]) for place in (0, 4, 5)) > 0.0
    # Of a free network nine tenths are planned with, so that the lowest rung's bytes fit.
    assert caps[0] == pytest.approx(1.0 - 0.9 * (1.0 - ratios[0]))
    assert caps[0] < caps[4] < caps[3] and caps[5] < caps[4] and caps[3] > 0.9
    for rank, result in enumerate(results):
        assert result["level"] == 0
        assert result["transfer_s"] == pytest.approx(result["last_s"])
        # Headers go elsewhere.
        assert 0.95 < result["rail_bytes"] / result["wire_bytes"] < 1.0
        assert _changes(tmp_path, rank, "ratio") == [
            (step, f"{before:.6g}", f"{after:.6g}")
            for step, before, after in (
                (3 * PERIOD, ratios[1], ratios[2]),
                (4 * PERIOD, ratios[2], ratios[3]),
                (5 * PERIOD, ratios[3], ratios[4]),
            )
        ]
        rails = _changes(tmp_path, rank, "rails")
        assert rails == _changes(tmp_path, 0, "rails") and rails[1][2] == "0/1"


def _changes(folder: Path, rank: int, kind: str) -> list[tuple[int, str, str]]:
    lines = (folder / f"decisions.rank{rank}").read_text().splitlines()
    told = [line for line in map(json.loads, lines) if line["kind"] == kind]
    return [(line["step"], line["before"], line["after"]) for line in told]
