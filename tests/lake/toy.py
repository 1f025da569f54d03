"""Two small collectors: lines of steps, and a folder that is one input."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from xtune.collectors._base import (
    Collector,
    Context,
    Item,
    Note,
    Reject,
    RowBuffer,
    Source,
)

HEAD = b"#steps\n"


class Lines(Collector):
    """``#steps``, then lines of time in ns (or ``-``), step, loss and optionally a host."""

    name = "lines"
    title = "steps in lines"

    def claim(self, path: Path, head: bytes) -> float:
        return 0.9 if head.startswith(HEAD) else 0.0

    def read(self, source: Source, context: Context) -> Iterator[Item]:
        steps = RowBuffer("steps", context, capacity=500)
        gpus = RowBuffer("gpu_samples", context)
        with source.open() as stream:
            for number, line in enumerate(stream, 1):
                if line.startswith(b"#"):
                    continue
                words = line.decode().split()
                try:
                    ts = None if words[0] == "-" else int(words[0])
                    if len(words) == 4:
                        gpus.add({"ts": ts, "host": words[3], "gpu": "0"})
                    steps.add({"ts": ts, "job": context.job, "step": int(words[1])})
                except (ValueError, IndexError):
                    yield Reject(f"line {number}", "not three words", "check it")
                if steps.full:
                    yield from steps.flush()
        yield from steps.flush()
        yield from gpus.flush()
        if context.tz:
            yield Note(f"zone {context.tz}")


class Folder(Collector):
    """A folder with a file ``MARK``: one row of ports a file."""

    name = "folder"
    title = "a folder"

    def claim(self, path: Path, head: bytes) -> float:
        return 0.9 if path.is_dir() and (path / "MARK").exists() else 0.0

    def read(self, source: Source, context: Context) -> Iterator[Item]:
        ports = RowBuffer("ports", context)
        for path in sorted(source.path.iterdir()):
            ports.add({"device": path.name, "state": path.read_text()})
        yield from ports.flush()


class Named(Lines):
    """Takes something from the file's name."""

    name = "named"
    name_tells = True

    def claim(self, path: Path, head: bytes) -> float:
        return 0.9 if head.startswith(b"#named\n") else 0.0


class Broken(Collector):
    """Yields a row, then fails."""

    name = "broken"
    title = "a collector with a bug"

    def claim(self, path: Path, head: bytes) -> float:
        return 0.9 if head.startswith(b"#broken") else 0.0

    def read(self, source: Source, context: Context) -> Iterator[Item]:
        rows = RowBuffer("steps", context, capacity=500)
        rows.add({"step": 1})
        yield from rows.flush()
        raise RuntimeError("a bug\nover two lines")


COLLECTORS: dict[str, Collector] = {c.name: c for c in (Lines(), Folder(), Named(), Broken())}


def context(**given: object) -> Context:
    return Context(now_ns=time.time_ns, **given)  # type: ignore[arg-type]


def lines(*steps: int, first: int = 1_700_000_000_000_000_000) -> bytes:
    """A file with these steps, a second apart."""
    return HEAD + b"".join(b"%d %d 0.5\n" % (first + s * 10**9, s) for s in steps)
