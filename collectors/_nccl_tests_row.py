"""One measurement of nccl-tests or rccl-tests: checked against the tests' own formulas, as a row.

Source: nccl-tests ``doc/PERFORMANCE.md`` and ``src/*.cu`` (``GetBw``): algbw = size / time and
busbw = algbw * factor, GB = 1e9 bytes, size = the whole array. A printed figure is rounded, so
that the formulas hold within half a unit of each figure's last digit.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from typing import Any

from xtune.collectors._base import Context
from xtune.collectors._collective import DTYPE_BYTES, canonical_op, torch_dtype
from xtune.collectors._values import as_extra, natural, real, scaled, small, text

_PROGRAM = re.compile(
    r"(?<![A-Za-z0-9_])(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|all_?to_?all_?v|"
    r"broadcast|reduce|send_?recv|gather|scatter|hypercube|all_reduce_bias|bisection)"
    r"_perf(?:_mpi)?(?![A-Za-z0-9_])"
)
_DTYPES = {"f8e4m3": "fp8e4m3", "fp8_e4m3": "fp8e4m3", "f8e5m2": "fp8e5m2", "fp8_e5m2": "fp8e5m2"}
_SHARED = frozenset({"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"})
_WHOLE = frozenset({"broadcast", "reduce", "send_recv"})
#: Programs whose size is not what their algorithm bandwidth is of.
_OTHER_SIZE = frozenset({"alltoallv", "all_to_all_v", "alltoall_v", "hypercube"})
_SLACK = 0.01  # of algbw against size / time: the time is rounded before and after averaging


@dataclass(frozen=True, slots=True)
class Figure:
    """A number as printed.

    Attributes:
        value: The number.
        half: Half a unit of its last digit.
    """

    value: float
    half: float


def figure(printed: Any) -> Figure | None:
    """The number that ``printed`` (text or a JSON number) is; null for N/A, nan, inf."""
    if isinstance(printed, (int, float)) and not isinstance(printed, bool):
        # Numbers of a JSON file have six decimals (printf %lf, std::to_string), or were rounded.
        value = real(printed)
        if value is None or not math.isfinite(value):
            return None
        decimals = next((n for n in range(6) if round(value, n) == value), 6)
        return Figure(value, 0.5 * 10.0**-decimals if decimals else 5e-7)
    if not isinstance(printed, str) or len(printed) > 32:
        return None
    value = real(printed)
    if value is None or not math.isfinite(value):
        return None
    mantissa, _, exponent = printed.strip().lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    power = int(exponent or 0)
    return Figure(value, 0.5 * 10.0 ** (power - decimals)) if abs(power) < 300 else None


def program_op(words: str) -> tuple[str, str] | None:
    """Program and operation that a line names (``./build/all_reduce_perf -b 8``), the last one."""
    found = list(_PROGRAM.finditer(words[:4096]))
    return (found[-1][0], op_name(found[-1][1])) if found else None


def op_name(name: str) -> str:
    """An operation as the tests write it (AllReduce, alltoall, sendrecv) in our words."""
    return canonical_op(name) or name.lower()


def factor(op: str | None, ranks: int | None) -> float | None:
    """The busbw of an operation by its algbw; null where operation or ranks are not known."""
    if op in _WHOLE:
        return 1.0
    if not ranks:
        return None
    if op == "all_reduce":
        return 2.0 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if op in _SHARED else None


def dtype_name(printed: Any) -> str | None:
    """An element type as the tests write it, in our words."""
    dtype = text(printed, 64)
    return _DTYPES.get(dtype, torch_dtype(dtype) or dtype) if dtype else None


@dataclass(kw_only=True, slots=True)
class Test:
    """What is known of the test that a measurement belongs to."""

    program: str | None = None
    op: str | None = None
    ranks: int | None = None
    hosts: list[str] = field(default_factory=list)
    told: dict[str, Any] = field(default_factory=dict)
    number: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """One half of one line: values as printed, ``time`` in microseconds unless said otherwise."""

    size: Any
    count: Any = None
    dtype: Any = None
    redop: Any = None
    root: Any = None
    in_place: bool | None = None
    time: Any = None
    time_ns: int = 1000
    cpu_time: bool = False
    algbw: Any = None
    busbw: Any = None
    wrong: Any = None
    more: dict[str, Any] = field(default_factory=dict)


def contradiction(test: Test, half: Measurement) -> str | None:
    """Why the figures of a measurement cannot all be right; null where they agree."""
    size = natural(half.size)
    time, algbw, busbw = figure(half.time), figure(half.algbw), figure(half.busbw)
    if size is None:
        return f"{str(half.size)[:40]!r} is not a size"
    if time is None and algbw is None and busbw is None:
        return "neither time nor bandwidth is a number"
    if any(known is not None and known.value < 0 for known in (time, algbw, busbw)):
        return "a negative time or bandwidth"
    times = factor(test.op, test.ranks)
    if algbw and busbw and times is not None:
        allowed = busbw.half + algbw.half * times + 1e-9 * busbw.value
        if abs(busbw.value - algbw.value * times) > allowed:
            return (
                f"bus bandwidth {busbw.value:g} is not {times:g} times {algbw.value:g}, as it is "
                f"for {test.op} among {test.ranks or 'any number of'} ranks"
            )
    comparable = (
        not half.cpu_time
        and (test.program or "").removesuffix("_mpi").removesuffix("_perf") not in _OTHER_SIZE
    )
    if algbw and time and time.value > 0 and comparable:
        expected = size / (time.value * half.time_ns)
        relative = time.half / time.value + _SLACK
        if abs(algbw.value - expected) > algbw.half + expected * relative:
            return (
                f"algorithm bandwidth {algbw.value:g} is not size over time, which is {expected:g}"
            )
    return None


def implied_op(test: Test, half: Measurement) -> str | None:
    """The operation that alone has a line of such columns; null where several may.

    all_reduce and send_recv differ in their bus bandwidth only, and not among two ranks;
    all_gather and all_to_all, gather and scatter in nothing.
    """
    op = _by_columns(half, test.ranks)
    known = replace(test, op=op)
    return op if op and contradiction(known, half) is None else None


def _by_columns(half: Measurement, ranks: int | None) -> str | None:
    size, count, root = natural(half.size), natural(half.count), real(half.root)
    width = DTYPE_BYTES.get(dtype_name(half.dtype) or "")
    if not size or not count or not width:
        return None
    whole, shared = size == count * width, ranks is not None and size == count * width * ranks
    reduces = half.redop is not None and half.redop != "none"
    if root is not None and root >= 0:
        return ("reduce" if reduces else "broadcast") if whole and ranks != 1 else None
    if not reduces or ranks == 1:
        return None
    if shared:
        return "reduce_scatter"
    algbw, busbw = figure(half.algbw), figure(half.busbw)
    if not whole or not algbw or not busbw or busbw.value < 1:
        return None
    if busbw.value - algbw.value > 2 * (algbw.half + busbw.half) + 0.01 * busbw.value:
        return "all_reduce" if busbw.value < 2 * algbw.value + busbw.half + algbw.half else None
    # Tables without a root are older than send_recv.
    return "send_recv" if root is not None and ranks is not None and ranks > 2 else None


def row(test: Test, half: Measurement, context: Context) -> dict[str, Any]:
    """A row of ``collectives``: one measurement, an average over the test's iterations."""
    time, algbw, busbw = figure(half.time), figure(half.algbw), figure(half.busbw)
    hosts = sorted({host.lower() for host in test.hosts})
    return {
        "duration_ns": scaled(time.value, half.time_ns) if time else None,
        "job": context.job,
        "host": hosts[0] if len(hosts) == 1 else None if hosts else context.host,
        "comm_size": small(test.ranks) or None,
        "op": text(test.op, 64),
        "dtype": dtype_name(half.dtype),
        "message_bytes": natural(half.size),
        "algbw_gigabytes_s": algbw.value if algbw else None,
        "busbw_gigabytes_s": busbw.value if busbw else None,
        "state": "completed",
        "extra": as_extra(
            {
                "in_place": None if half.in_place is None else str(half.in_place).lower(),
                "count": natural(half.count),
                "redop": text(half.redop, 64),
                "root": text(str(half.root).strip(), 32) if half.root is not None else None,
                "wrong": natural(half.wrong),
                "test": test.number,
                "program": text(test.program, 128),
                "hosts": ",".join(hosts) or None,
                **test.told,
                **half.more,
            }
        ),
    }
