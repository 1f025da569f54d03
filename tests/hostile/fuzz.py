"""Feeds damaged inputs to every collector: ``python -m tests.hostile.fuzz`` (``make fuzz``).

Each collector runs in processes of its own, with a limit on memory and a watch on time. The input
that is being read lies in a file, so that a hang, a kill or a crash leaves it behind.
"""

from __future__ import annotations

import argparse
import faulthandler
import gzip
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import FrameType

from tests.hostile.mutate import damaged
from tests.hostile.rows import Found, WrongRowError, gather
from tests.hostile.seed import Seed
from tests.hostile.seeds import SEEDS
from tests.memory import peak_bytes
from xtune.collectors import Collector, Context, Source, all_collectors

READ_LIMIT_S = 2.0
#: A read that does not come back to Python within this ends its process.
STUCK_LIMIT_S = 20.0
RSS_LIMIT_BYTES = 512 << 20
AT_NS = 1_700_000_000_000_000_000
CHUNK = 1000
GARBAGE = b"\x00\xff?junk? [{\x1b=,|\n"


class TooSlowError(BaseException):
    """Not an Exception: nothing that catches those may catch it."""


class FuzzError(AssertionError):
    """What a damaged input brought to light."""


def _late(_signal: int, _frame: FrameType | None) -> None:
    raise TooSlowError(f"more than {READ_LIMIT_S} s of processor time for one input")


@contextmanager
def watched(limit_s: float = READ_LIMIT_S) -> Iterator[None]:
    """Raise TooSlowError if the block takes too long; end the process if it is stuck in C.

    Processor time counts, so that a busy machine finds nothing that is not there; a read that
    sleeps meets the other limit.
    """
    old = signal.signal(signal.SIGPROF, _late)
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    faulthandler.dump_traceback_later(limit_s + STUCK_LIMIT_S, exit=True)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGPROF, old)


class Bench:
    """Reads inputs with one collector, in a folder of its own.

    Args:
        folder: Where the input of the moment lies.
        name: The collector.
        limit_memory: Whether this process is for one collector alone.
    """

    def __init__(self, folder: Path, name: str, *, limit_memory: bool = True) -> None:
        self.name = name
        self.seed: Seed = SEEDS[name]
        self.collector: Collector = all_collectors()[name]
        self._root = folder
        self._limit = RSS_LIMIT_BYTES if limit_memory else sys.maxsize
        self._others = [data for key in sorted(SEEDS) for data in SEEDS[key].inputs]
        self._context = Context(now_ns=lambda: AT_NS, **dict(self.seed.context))

    def read(self, data: bytes) -> Found:
        """All that the collector makes of ``data``.

        Raises:
            WrongRowError: A row that cannot be.
            TooSlowError: It takes too long.
        """
        folder = self._root / "now"
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir()
        path = self.seed.place(folder, data)
        with watched():
            source = Source(path, path.name)
            confidence = self.collector.claim(path, source.head())
            if not 0 <= confidence <= 1:
                raise WrongRowError(f"claims {confidence}")
            found = gather(self.collector.read(source, self._context))
        if peak_bytes() > self._limit:
            raise FuzzError(f"peak memory {peak_bytes() >> 20} MB")
        return found

    def one(self, rng: Random) -> bytes:
        """A damaged input."""
        if self.seed.remake is not None and rng.random() < 0.4:
            return self.seed.remake(rng)
        return damaged(rng, rng.choice(self.seed.inputs), self._others)

    def related(self, rng: Random, data: bytes, found: Found) -> None:
        """Read the input changed in a way that must not matter, or must only take away.

        Raises:
            FuzzError: It does matter.
        """
        how = rng.randrange(4)
        if how == 0 and self.seed.form != "tree" and not data.startswith(b"\x1f\x8b"):
            self._same(found, self.read(gzip.compress(data, 1)), "gzip")
        elif how == 1:
            self._same(found, self.read(data), "a second read")
        elif how == 2 and self.seed.form != "tree":
            data = rng.choice(self.seed.inputs)
            self.cut(data, rng.randrange(len(data) + 1))
        elif how == 3 and self.seed.stands:
            whole = rng.choice(self.seed.inputs)
            longer = self.read(whole + GARBAGE)
            if lost := self.read(whole).bag(self.seed.stands) - longer.bag(self.seed.stands):
                raise FuzzError(f"garbage after the end takes rows away: {lost}")

    def cut(self, data: bytes, at: int) -> None:
        """A cut input may lose rows and values, and never has others.

        Raises:
            FuzzError: It has.
        """
        whole = self.read(data)
        kept = data[:at]
        cut = self.read(kept)
        if self.seed.last and re.search(self.seed.last.encode() + rb"\d+$", kept):
            return
        if (more := cut.cells() - whole.cells()) and not self.seed.named_late:
            raise FuzzError(f"a cut input has values that the whole has not: {sorted(more)[:4]}")
        stands = self.seed.stands
        if stands and (rows := cut.bag(stands) - whole.bag(stands)):
            raise FuzzError(f"a cut input has rows that the whole has not: {rows}")

    @staticmethod
    def _same(one: Found, other: Found, what: str) -> None:
        if one.bag() != other.bag():
            difference = (one.bag() - other.bag()) + (other.bag() - one.bag())
            raise FuzzError(f"{what} gives other rows: {str(difference)[:400]}")


def attempt(bench: Bench, seed: str) -> int:
    """Read the input of one seed; how many inputs were read.

    Raises:
        Exception: A finding.
    """
    rng = Random(seed)
    data = bench.one(rng)
    found = bench.read(data)
    if rng.random() < 0.15:
        bench.related(rng, data, found)
        return 2
    return 1


def _child(name: str, seed: int, first: int, count: int, folder: Path) -> None:
    """Read ``count`` inputs; what is found goes as JSON lines to stdout."""
    sys.setrecursionlimit(1000)
    bench = Bench(folder, name)
    read = 0
    for index in range(first, first + count):
        key = f"{seed}:{name}:{index}"
        (folder / "seed").write_text(key)
        try:
            read += attempt(bench, key)
        except (Exception, TooSlowError) as error:
            import traceback

            where = traceback.format_exception(error)
            kept = keep(folder, key)
            print(json.dumps({"seed": key, "error": "".join(where[-4:]), "input": kept}))
            if peak_bytes() > RSS_LIMIT_BYTES:
                break
    print(json.dumps({"read": read, "peak_mb": peak_bytes() >> 20}))


def keep(folder: Path, key: str) -> str:
    """Copy the input of the moment beside the others that were found; its name."""
    kept = folder.parent / "findings" / key.replace(":", "-")
    kept.parent.mkdir(exist_ok=True)
    now = next((folder / "now").glob("*"), None)
    if now is None:
        return ""
    if now.is_dir():
        shutil.copytree(now, kept, dirs_exist_ok=True)
    else:
        shutil.copyfile(now, kept)
    return str(kept)


def _run_child(
    name: str, seed: int, first: int, count: int, root: Path
) -> list[dict[str, object]]:
    folder = root / name
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "tests.hostile.fuzz", "--child", name, "--first", str(first)]
    command += ["--seed", str(seed), "--count", str(count), "--folder", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = [json.loads(line) for line in done.stdout.splitlines()]
    if done.returncode:
        key = (folder / "seed").read_text() if (folder / "seed").exists() else f"{seed}:{name}"
        last = f"exit status {done.returncode}: {done.stderr[-800:]}"
        said.append({"seed": key, "error": last, "input": keep(folder, key)})
    return said


def main() -> int:
    """Run until every collector had its share and the time is over; 1 if something was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long, at least a round")
    parser.add_argument("--least", type=int, default=100_000, help="inputs, within twice the time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="one collector")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=CHUNK)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        _child(args.child, args.seed, args.first, args.count, args.folder)
        return 0
    names = [args.only] if args.only else sorted(SEEDS)
    root = Path(tempfile.mkdtemp(prefix="xtune-fuzz-"))
    print(f"seed {args.seed}; inputs of findings are kept in {root / 'findings'}", flush=True)
    read: Counter[str] = Counter()
    peak: Counter[str] = Counter()
    findings: list[dict[str, object]] = []
    end = time.monotonic() + args.seconds
    first = args.first

    def over() -> bool:
        late = time.monotonic() - end
        return bool(late > (args.seconds if read.total() < args.least else 0))

    while first == args.first or not over():
        for name in names:
            if first > args.first and over():
                break
            for said in _run_child(name, args.seed, first, args.count, root):
                if "error" in said:
                    findings.append(said)
                    print(f"FOUND {said['seed']}: {said['error']}", flush=True)
                else:
                    read[name] += int(str(said["read"]))
                    peak[name] = max(peak[name], int(str(said["peak_mb"])))
        first += args.count
    for name in names:
        print(f"{name:24} {read[name]:8} inputs, peak {peak[name]} MB")
        shutil.rmtree(root / name, ignore_errors=True)
    print(f"{read.total()} inputs, {len(findings)} findings")
    if not findings:
        shutil.rmtree(root, ignore_errors=True)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
