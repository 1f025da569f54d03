"""Records a real training run: two gloo ranks on this machine, profiler trace and loss log.

    python data_samples/record_training.py --out data_samples/training

What it writes is a measurement of the machine it ran on, so it differs from run to run.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

STEPS = 40
PROFILED = 3
RANKS = 2


def train(rank: int, out: Path, rendezvous: str) -> None:
    """One rank: a small language-model-shaped network on random tokens with structure."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=RANKS)
    vocab, width = 256, 128
    net = torch.nn.Sequential(
        torch.nn.Embedding(vocab, width),
        torch.nn.Linear(width, 4 * width),
        torch.nn.GELU(),
        torch.nn.Linear(4 * width, width),
        torch.nn.Linear(width, vocab),
    )
    model = DistributedDataParallel(net, bucket_cap_mb=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(100 + rank)
    log = []
    wait = STEPS - PROFILED - 2
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=wait, warmup=1, active=PROFILED, repeat=1),
    ) as profiler:
        for step in range(STEPS):
            began = time.time()
            tokens = torch.randint(0, vocab, (16, 64), generator=generator)
            targets = (tokens * 7 + 3) % vocab
            loss = torch.nn.functional.cross_entropy(
                model(tokens).reshape(-1, vocab), targets.reshape(-1)
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            log.append(
                {
                    "time": began,
                    "step": step + 1,
                    "loss": round(float(mean) / RANKS, 6),
                    "step_time_s": round(time.time() - began, 6),
                    "tokens": 16 * 64 * RANKS,
                }
            )
            profiler.step()
    plain = out / f"trace_rank{rank}.json"
    profiler.export_chrome_trace(str(plain))
    with gzip.GzipFile(str(plain) + ".gz", "wb", 9, mtime=0) as packed:
        packed.write(plain.read_bytes())
    plain.unlink()
    if rank == 0:
        (out / "loss.jsonl").write_text("".join(json.dumps(row) + "\n" for row in log))
    dist.destroy_process_group()


def main() -> None:
    """Spawn the ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    meeting = options.out.resolve() / f".rendezvous-{os.getpid()}"
    try:
        mp.spawn(train, args=(options.out, f"file://{meeting}"), nprocs=RANKS)
    finally:
        meeting.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
