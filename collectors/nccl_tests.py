"""nccl-tests and rccl-tests: text, JSON (``-J`` of nccl-tests, ``-Z json`` of rccl-tests), CSV.

What it assumes: a line is an average over the iterations of one size, out-of-place and in-place
(``in_place`` in ``extra``), and is not of one rank: ``rank`` is null, ``comm_size`` is the number
of ranks listed. Size and bandwidths are as the tests define them. A line whose bandwidths
contradict each other, its size and time, or the ranks is rejected.

When it lies: small sizes print bandwidths rounded to 0.00; size and duration tell more. No time of
day is printed unless ``-T 1`` is given, and that one is when the line was written, local time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xtune.collectors._base import Collector, Context, Item, Note, Reject, RowBuffer, Source
from xtune.collectors._json_items import Elements, as_utf8
from xtune.collectors._nccl_tests_row import (
    Measurement,
    Test,
    contradiction,
    op_name,
    program_op,
    row,
)
from xtune.collectors._nccl_tests_table import BEFORE, columns, is_header, table_items
from xtune.collectors._nccl_tests_text import HEADER, TextReader
from xtune.collectors._values import natural, small, text

_OPENING = re.compile(r"# (?:nThread +\d+ +nGpus +\d+ |Collective test starting: |Using devices)")
_TOLD = {
    "warmup_iters": "warmup_iters",
    "iterations": "iters",
    "aggregated_iterations": "agg_iters",
    "validation": "validation",
    "graph": "graph",
}
_JSON = re.compile(r"\{\s*\"|\[\s*\{")
_START = r'\{\s*"(?:size|numCycle)"'


class NcclTests(Collector):
    """Reads what nccl-tests and rccl-tests report."""

    name = "nccl_tests"
    title = "nccl-tests and rccl-tests output (text, JSON, CSV)"
    lines_of = "nccl-tests"
    produce = "all_reduce_perf -b 8 -e 8G -f 2 -g 8 [-J out.json] > all_reduce.log"
    gives = "time, algorithm and bus bandwidth of each size, out-of-place and in-place"
    lacks = "averages only: no rank, no time of day, no single operation"

    def claim(self, path: Path, head: bytes) -> float:
        """Certain where the tests' own header stands in the head."""
        words = head.decode("utf-8", "replace").lstrip("\ufeff \t\r\n")
        if _JSON.match(words):
            return 0.95 if _json_kind(words) else 0.0
        if HEADER.search(words) or len(set(_OPENING.findall(words))) >= 2:
            return 0.97
        if not _is_table(words):
            return 0.0
        lines = words.splitlines()
        at = next(number for number, line in enumerate(lines) if is_header(line))
        layout = columns(lines[at].split(","))
        if not layout.useful:
            return 0.6
        return 0.9 if any(map(layout.measured, lines[at + 1 :])) else 0.0

    def read(self, source: Source, context: Context) -> Iterator[Item]:
        """One row for each half of each line."""
        try:
            words = source.head().decode("utf-8", "replace").lstrip("\ufeff \t\r\n")
        except OSError as error:
            yield Reject("byte 0", f"cannot be read: {error}")
            return
        if _JSON.match(words):
            yield from _json(source, context, "results" if words.startswith("{") else None)
        elif _is_table(words):
            yield from table_items(source, context)
        else:
            yield from TextReader(source, context).items()


def _is_table(words: str) -> bool:
    """Whether one of the first lines is a CSV's header with a bus bandwidth in it."""
    return not HEADER.search(words) and any(map(is_header, words.splitlines()[:BEFORE]))


def _json_kind(words: str) -> bool:
    if words.startswith("{"):
        return '"nccl_version"' in words and '"args"' in words and '"start_time"' in words
    return '"algBw"' in words and '"busBw"' in words and '"inPlace"' in words


def _json(source: Source, context: Context, key: str | None) -> Iterator[Item]:
    rows = RowBuffer("collectives", context)
    elements = Elements(source, key, start=_START)
    test: Test | None = None
    count = 0
    for element in elements:
        if isinstance(element, Reject):
            yield element
            continue
        if test is None:
            test = _test(elements.header)
        for own, measured in _halves(element.value, test):
            wrong = contradiction(own, measured)
            if wrong is not None:
                yield Reject(f"byte {element.offset}", wrong)
                continue
            count += 1
            rows.add(row(own, measured, context))
        if rows.full:
            yield from rows.flush()
    yield from rows.flush()
    if elements.cut is not None:
        yield Note("the file ends within the results: the test was stopped; what is whole is kept")
    if not count:
        yield Note("no result in this report")


def _test(header: dict[str, Any]) -> Test:
    """What the report says of the whole test; the environment in it may hold secrets: left out."""
    test = Test()
    args = header.get("args")
    words = text(as_utf8(args[0])) if isinstance(args, list) and args else None
    known = program_op(words) if words else None
    if known:
        test.program, test.op = known
    config = header.get("config")
    config = config if isinstance(config, dict) else {}
    test.told = {ours: natural(config.get(theirs)) for theirs, ours in _TOLD.items()}
    test.told["nccl_version_code"] = natural(header.get("nccl_version"))
    test.told["started_at"] = text(as_utf8(header.get("start_time")), 64)
    devices = config.get("devices")
    if isinstance(devices, list):
        # One entry a process, which has this many ranks.
        each = small(config.get("nthreads")), small(config.get("ngpus"))
        groups = {str(d.get("group")) for d in devices if isinstance(d, dict)}
        if each[0] and each[1] and len(groups) == 1:
            test.ranks = len(devices) * each[0] * each[1]
        hosts = (text(as_utf8(d.get("hostname")), 255) for d in devices if isinstance(d, dict))
        test.hosts = [host for host in hosts if host]
    return test


def _halves(result: dict[str, Any], test: Test) -> Iterator[tuple[Test, Measurement]]:
    if "inPlace" in result:
        name = text(as_utf8(result.get("name")), 64)
        own = Test(op=op_name(name) if name else None, ranks=small(result.get("ranks")))
        own.told = {"nodes": small(result.get("nodes")), "cycle": natural(result.get("numCycle"))}
        flag = natural(result.get("inPlace"))
        yield own, _measurement(result, result, None if flag is None else flag > 0)
        return
    for key, in_place in (("out_of_place", False), ("in_place", True)):
        half = result.get(key)
        if isinstance(half, dict):
            per = result.get(f"{key}_per_iter")
            yield test, _measurement(result, half, in_place, per if isinstance(per, dict) else {})


def _measurement(
    result: dict[str, Any],
    half: dict[str, Any],
    in_place: bool | None,
    per: dict[str, Any] | None = None,
) -> Measurement:
    per = per or {}
    bitwise = half.get("bitwise")
    return Measurement(
        size=result.get("size"),
        count=result.get("count"),
        dtype=as_utf8(result.get("type")),
        redop=as_utf8(result.get("redop")),
        root=text(as_utf8(result.get("root")), 32),
        in_place=in_place,
        time=half.get("time", half.get("cpu_time")),
        cpu_time="cpu_time" in half,
        algbw=half.get("alg_bw", half.get("algBw")),
        busbw=half.get("bus_bw", half.get("busBw")),
        wrong=half.get("nwrong", half.get("wrong")),
        more={
            "time_is": "cpu" if "cpu_time" in half else None,
            "experiment": text(as_utf8(result.get("experiment_name")), 128),
            "actual_iterations": natural(result.get("actual_iterations")),
            "bit_differences": natural(bitwise.get("different_bits"))
            if isinstance(bitwise, dict)
            else None,
            **{f"iter_{name}": per.get(name) for name in ("min_us", "max_us", "p50_us", "p99_us")},
        },
    )


COLLECTOR = NcclTests()
