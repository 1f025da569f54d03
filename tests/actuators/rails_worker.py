"""One rank over rails, told what to do line by line: ``rails_worker.py RANK STORE TIMEOUT_S``."""

from __future__ import annotations

import hashlib
import json
import sys

import numpy as np
import torch
from torch._C._distributed_c10d import FileStore

from xtune.policies.actuators.process_groups import StripedGroups
from xtune.policies.actuators.rails import Rail

WORLD = 2


def values(rank: int, size: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """What a rank adds: of many magnitudes, so that the order of a sum shows in its bits."""
    rng = np.random.default_rng(rank)
    scales = np.float32(10.0) ** rng.integers(-4, 4, size).astype(np.float32)
    return (rng.standard_normal(size, dtype=np.float32) * scales).astype(np.float32)


def digest(result: np.ndarray[tuple[int], np.dtype[np.float32]]) -> str:
    """Of the bits."""
    return hashlib.sha256(result.tobytes()).hexdigest()


def answer(groups: StripedGroups, rank: int, told: dict[str, object]) -> dict[str, object]:
    """Do one thing that all ranks are told to do."""
    if told["do"] == "reduce":
        size = told["size"]
        assert isinstance(size, int)
        buffer = torch.from_numpy(values(rank, size))
        groups.all_reduce(buffer)
        return {"digest": digest(buffer.numpy()), "alive": groups.alive}
    shares = told["shares"] if told["do"] == "apply" else groups.proposal()
    assert isinstance(shares, list)
    groups.apply(shares)
    return {"shares": groups.shares}


def main() -> None:
    """Open the rails, then answer each line with one."""
    rank, store, timeout_s = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    torch.set_num_threads(1)
    groups = StripedGroups(
        FileStore(store, WORLD), rank, WORLD,
        [Rail(interface="up1"), Rail(interface="up2")],
        control=Rail(interface="control"), timeout_s=timeout_s,
    )  # fmt: skip
    with groups:
        for line in sys.stdin:
            print(json.dumps(answer(groups, rank, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
