"""Output of nccl-tests as the tests print it, made of what is measured."""

from __future__ import annotations

from pathlib import Path

from tests.collectors_nccl.helpers import Read, read_bytes
from xtune.collectors._base import Source
from xtune.collectors.nccl_tests import COLLECTOR

HEAD = """\
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
"""  # noqa: E501


def printed(value: float, width: int) -> str:
    """As the tests print a figure: as many decimals as fit."""
    for decimals in (2, 1, 0):
        word = f"{value:.{decimals}f}"
        if len(word) <= width:
            return word.rjust(width)
    return f"{value:.1e}".rjust(width)


def half(size: int, time_us: float, factor: float, wrong: str) -> str:
    algbw = size / time_us / 1e3
    last = "    N/A" if wrong == "N/A" else f"  {wrong:>6}"
    return f"  {printed(time_us, 7)}  {printed(algbw, 6)}  {printed(algbw * factor, 6)}{last}"


def line(
    size: int,
    times: tuple[float, float],
    factor: float,
    *,
    redop: str = "sum",
    wrong: tuple[str, str] = ("0", "0"),
) -> str:
    halves = "".join(half(size, t, factor, w) for t, w in zip(times, wrong, strict=True))
    return f"{size:12}  {size // 4:12}  {'float':>8}  {redop:>6}  {-1:>6}{halves}\n"


def log(program: str, ranks: int, *lines: str, average: float | None = None) -> str:
    devices = "".join(
        f"#  Rank {r:2} Group  0 Pid {100 + r:6} on {f'Node-{r // 2}':>10} device {r % 2:2} "
        f"[0000:{r:02x}:00] Some GPU\n"
        for r in range(ranks)
    )
    end = f"# Out of bounds values : 0 OK\n# Avg bus bandwidth    : {average}\n#\n"
    return (
        "# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807\n"
        f"# Collective test starting: {program}\n"
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 1024 step: 2(factor) warmup iters: 5 iters: 20 "
        "agg iters: 1 validation: 1 graph: 0\n#\n# Using devices\n" + devices + HEAD
    ) + ("".join(lines) + (end if average is not None else ""))


def of(text: str, folder: Path) -> Read:
    return read_bytes(COLLECTOR, text.encode(), folder)


def claim(data: bytes, folder: Path) -> float:
    path = folder / "claimed"
    path.write_bytes(data)
    return COLLECTOR.claim(path, Source(path, "claimed").head())
