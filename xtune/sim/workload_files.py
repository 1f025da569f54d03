"""Reads the training step of a rank from public workload files: SimAI's text, AICB's CSV.

Both are written by AICB (github.com/aliyun/aicb; the form of SimAI's text is in its
workload_generator/SimAI_training_workload_generator.py). A text has, a line, a layer's compute
time in ns and transfer for its forward pass, input gradient and weight gradient. A CSV has the
transfers alone, in order.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from xtune.errors import InputError

MAIN_GRADIENT_BYTES = 4  # Megatron reduces gradients in fp32
COLUMNS = 12
HYBRID = "HYBRID_TRANSFORMER_FWD_IN_BCKWD"
# A transfer's group where its name does not say one: that of the pass it belongs to.
PASS_GROUPS = ("tp", "tp", "dp")
# Rows of the text whose forward transfer is of parameters, not of activations.
PARAMETER_ROWS = ("grad", "norm", "moe_grad")
# The norms' gradients, which have the size of all parameters here; AICB's own CSV of the same job
# reduces none.
MISSIZED_ROWS = ("layernorm",)
SUFFIX_GROUPS = {"_DP_EP": "dp_ep", "_EP": "ep"}
HEADER_SIZES = {
    "model_parallel_NPU_group": "tp", "ep": "ep", "pp": "pp", "vpp": "vpp", "ga": "ga",
    "all_gpus": "gpus", "pp_comm": "pp_bytes",
}  # fmt: skip
SIMAI_KINDS = {
    "ALLREDUCE": "all_reduce", "ALLGATHER": "all_gather", "ALLTOALL": "all_to_all",
    "REDUCESCATTER": "reduce_scatter", "BROADCAST": "broadcast",
}  # fmt: skip
# CommType of AICB's utils/utils.py, without its epoch_end.
AICB_KINDS = (
    "all_reduce", "isend", "irecv", "broadcast", "all_gather", "reduce_scatter", "barrier",
    "reduce", "reduce_scatter_tensor", "all_gather_into_tensor", "computation", "all_to_all",
)  # fmt: skip
MOST_BYTES = 1 << 40  # of one transfer: more than a card's memory
MOST_NS = 10**12  # of one pass of a layer: a quarter of an hour
MOST_DIGITS = 18  # sums of them fit in a double, and Python's own limit is far


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfers:
    """Equal-named transfers of a step: how many, and all their bytes."""

    count: int = 0
    total_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Work:
    """A rank's step.

    Attributes:
        name: Of the file.
        compute_s: Time it computes; None where the file has none.
        transfers: By collective in lower case, such as ``reduce_scatter``, and group: ``tp``,
            ``dp``, ``ep`` or ``dp_ep``.
        sizes: Of the header: ``tp``, ``ep``, ``pp``, ``vpp``, ``ga``, ``gpus``, ``pp_bytes``;
            those that it gives.
        blocks: Transformer blocks of the rank.
    """

    name: str
    compute_s: float | None
    transfers: dict[tuple[str, str], Transfers]
    sizes: dict[str, int] = field(default_factory=dict)
    blocks: int = 1

    def gradient_elements(self, group: str = "dp") -> int:
        """Elements whose gradients the step reduces in a group."""
        kinds = ("reduce_scatter", "all_reduce")
        found = (self.transfers.get((kind, group), Transfers()) for kind in kinds)
        return sum(t.total_bytes for t in found) // MAIN_GRADIENT_BYTES


def read_workload(path: Path) -> Work:
    """A SimAI text or an AICB CSV.

    Raises:
        InputError: It cannot be read, or a line of it is wrong; the message names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise InputError(f"{path}: {reason}", "a SimAI text or an AICB CSV") from error
    first = lines[0] if lines else ""
    if first.startswith(HYBRID):
        return _simai(path, lines)
    if any("comm_type" in line and "msg_size" in line for line in lines[:2]):
        return _aicb(path, lines)
    if first.startswith("MICRO"):
        raise InputError(f"{path}: a test of one collective, not a training step", "take another")
    raise InputError(
        f"{path}: neither SimAI's text nor AICB's CSV", f"a text starts with {HYBRID}"
    )


def _simai(path: Path, lines: list[str]) -> Work:
    sizes = _header(path, lines[0])
    rows = [line for line in lines[2:] if line.strip()]
    declared = _integer(path, 2, lines[1].strip() if len(lines) > 1 else "")
    if declared != len(rows):
        raise InputError(f"{path}: {len(rows)} layers, its line 2 says {declared}", "is it whole?")
    compute_ns, blocks = 0, 0
    found: list[tuple[str, str, int]] = []
    for number, line in enumerate(lines[2:], 3):
        if not line.strip():
            continue
        cells = line.split()
        if len(cells) != COLUMNS:
            raise InputError(f"{path}:{number}: {len(cells)} columns, not {COLUMNS}")
        blocks += cells[0] in ("attention_layer", "attention_column")
        for part, (compute, kind, size) in enumerate(
            zip(cells[2:11:3], cells[3:11:3], cells[4:11:3], strict=True)
        ):
            pass_ns = _integer(path, number, compute)
            if pass_ns > MOST_NS:
                raise InputError(f"{path}:{number}: computes {pass_ns} ns", f"at most {MOST_NS}")
            compute_ns += pass_ns
            amount = _bytes(path, number, size)
            if kind != "NONE" and amount and cells[0] not in MISSIZED_ROWS:
                found.append((*_kind(path, number, cells[0], kind, part), amount))
    return Work(
        name=path.name, compute_s=compute_ns * 1e-9, transfers=_summed(found), sizes=sizes,
        blocks=max(1, blocks // sizes.get("ga", 1)),
    )  # fmt: skip


def _header(path: Path, line: str) -> dict[str, int]:
    """Numbers of the first line under the names of :class:`Work`.

    Raises:
        InputError: One is none, or is 0 and does not count bytes.
    """
    sizes = {}
    for name, text in pairwise([*re.split(r"[:\s]+", line.strip()), ""]):
        if name not in HEADER_SIZES:
            continue
        # AICB divides the pipeline's bytes in floating point.
        read = _bytes if name == "pp_comm" else _integer
        size = read(path, 1, text.removesuffix(".0"))
        if not size and name != "pp_comm":
            raise InputError(f"{path}:1: {name} is 0", "1 or more")
        if size:
            sizes[HEADER_SIZES[name]] = size
    return sizes


def _kind(path: Path, number: int, row: str, kind: str, part: int) -> tuple[str, str]:
    """Collective and group of a transfer of SimAI's text.

    Raises:
        InputError: It is a collective that SimAI does not have.
    """
    whole, group = kind, PASS_GROUPS[part]
    if row.startswith(PARAMETER_ROWS) and not kind.startswith("ALLREDUCE"):
        group = "dp"
    for suffix, other in SUFFIX_GROUPS.items():
        if kind.endswith(suffix):
            kind, group = kind.removesuffix(suffix), other
            break
    if kind not in SIMAI_KINDS:
        raise InputError(f"{path}:{number}: unknown collective {whole!r}")
    return SIMAI_KINDS[kind], group


def _aicb(path: Path, lines: list[str]) -> Work:
    start = next(i for i, line in enumerate(lines) if "comm_type" in line)
    ranks = re.fullmatch(r"\[rank0 ~ rank(\w+)\]", lines[0].strip())
    sizes = {"gpus": _integer(path, 1, ranks[1]) + 1} if ranks else {}
    found: list[tuple[str, str, int]] = []
    blocks, ended = 0, False
    for number, row in enumerate(csv.DictReader(lines[start:]), start + 2):
        kind = (row.get("comm_type") or "").removeprefix("CommType.")
        group = (row.get("comm_group") or "").removeprefix("CommGroup.").removesuffix("_group")
        if kind == "epoch_end":
            ended = True
            continue
        if ended:  # what came before set the job up, or was an earlier step
            found, blocks, ended = [], 0, False
        if kind not in AICB_KINDS:
            raise InputError(f"{path}:{number}: unknown collective {kind!r}")
        if group not in ("tp", "dp", "ep", "pp", "dp_ep", "ep_dp"):
            raise InputError(f"{path}:{number}: unknown group {group!r}")
        size = _bytes(path, number, row.get("msg_size") or "")
        if group in ("tp", "ep", "pp"):
            sizes[group] = _integer(path, number, row.get("comm_group_size") or "")
        blocks += "forward.MegatronRowLinear" in (row.get("stage") or "")
        if size:
            found.append((kind, "dp_ep" if group == "ep_dp" else group, size))
    return Work(
        name=path.name, compute_s=None, transfers=_summed(found), sizes=sizes,
        blocks=max(1, blocks // 2),  # one of attention and one of the feed-forward part
    )  # fmt: skip


def _summed(found: Iterable[tuple[str, str, int]]) -> dict[tuple[str, str], Transfers]:
    sums: dict[tuple[str, str], Transfers] = {}
    for kind, group, size in found:
        old = sums.get((kind, group), Transfers())
        sums[kind, group] = Transfers(count=old.count + 1, total_bytes=old.total_bytes + size)
    return sums


def _bytes(path: Path, number: int, text: str) -> int:
    """The size of a transfer.

    Raises:
        InputError: It is none, or more than a card can hold.
    """
    size = _integer(path, number, text)
    if size > MOST_BYTES:
        raise InputError(f"{path}:{number}: a transfer of {size} bytes", f"at most {MOST_BYTES}")
    return size


def _integer(path: Path, number: int, text: str) -> int:
    """A number of a cell, not below 0.

    Raises:
        InputError: It is none.
    """
    if not (text.isascii() and text.isdecimal()):
        raise InputError(f"{path}:{number}: {text[:40]!r} is not a whole number, 0 or more")
    if len(text) > MOST_DIGITS:
        raise InputError(
            f"{path}:{number}: {text[:8]}... has {len(text)} digits", f"at most {MOST_DIGITS}"
        )
    return int(text)
