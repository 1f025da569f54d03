"""What collectives are called, what they carry, and how large nccl-tests calls them.

nccl-tests (PERFORMANCE.md) states size as the whole array: for all_gather, reduce_scatter and
all_to_all that is n times the count of the NCCL call, which is per rank.
"""

from __future__ import annotations

import json
import re
from typing import Any

from xtune.collectors._values import small

#: NCCL's ncclDataType_t by number (nccl.h): 9 since 2.10, 10 and 11 since 2.24.
NCCL_DTYPES = (
    "int8",
    "uint8",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "fp16",
    "fp32",
    "fp64",
    "bf16",
    "fp8e4m3",
    "fp8e5m2",
)
#: NCCL's ncclRedOp_t by number: 4 since 2.10; above are made by the user (PreMulSum).
NCCL_REDOPS = ("sum", "prod", "max", "min", "avg")

DTYPE_BYTES = {
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "fp8e4m3": 1,
    "fp8e5m2": 1,
    "int16": 2,
    "uint16": 2,
    "fp16": 2,
    "bf16": 2,
    "int32": 4,
    "uint32": 4,
    "fp32": 4,
    "int64": 8,
    "uint64": 8,
    "fp64": 8,
    "complex64": 8,
    "complex128": 16,
}
# PyTorch's ScalarType names (Flight Recorder, record_param_comms) and C++ names ("Input type").
_TORCH_DTYPES = {
    "char": "int8",
    "signed char": "int8",
    "byte": "uint8",
    "unsigned char": "uint8",
    "short": "int16",
    "short int": "int16",
    "int": "int32",
    "long": "int64",
    "long int": "int64",
    "half": "fp16",
    "c10::half": "fp16",
    "bfloat16": "bf16",
    "c10::bfloat16": "bf16",
    "float": "fp32",
    "float16": "fp16",
    "float32": "fp32",
    "float64": "fp64",
    "double": "fp64",
    "bool": "bool",
    "uint16": "uint16",
    "uint32": "uint32",
    "uint64": "uint64",
    "float8_e4m3fn": "fp8e4m3",
    "float8_e5m2": "fp8e5m2",
    "c10::float8_e4m3fn": "fp8e4m3",
    "c10::float8_e5m2": "fp8e5m2",
    "complexfloat": "complex64",
    "complexdouble": "complex128",
}
_OPS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "allgatherv": "all_gather",
    "reducescatter": "reduce_scatter",
    "reducescatterv": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "alltoallpivot": "all_to_all",
    "broadcast": "broadcast",
    "bcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "allreducebarrier": "barrier",
    "send": "send",
    "recv": "recv",
    "sendrecv": "send_recv",
}
_HASH = re.compile(r"[0-9a-fA-F]{1,16}")
_DECORATION = re.compile(r"(_base|_oop|_coalesced|_into_tensor|_tensor|_single|_sparse)(?=_|$)")

POINT_TO_POINT = frozenset({"send", "recv", "send_recv"})
#: PyTorch's marks that are no operation, in lower case: a wait has no data, the others frame a
#: group of operations.
PSEUDO_OPS = frozenset({"wait", "init", "startcoalescing", "endcoalescing", "coalesced"})


def canonical_op(name: str) -> str | None:
    """Name an operation as xtune does: ``nccl:_all_gather_base`` and ``AllGather`` -> all_gather.

    ``None`` where the name is none that NCCL, RCCL or PyTorch gives a collective.
    """
    bare = name.rpartition(":")[2].strip().partition(" ")[0].lower().lstrip("_")
    previous = None
    while previous != bare:
        previous, bare = bare, _DECORATION.sub("", bare)
    flat = bare.replace("_", "")
    return _OPS.get(flat) or _OPS.get(flat.removesuffix("base"))


def torch_dtype(name: str) -> str | None:
    """Name a PyTorch element type as xtune does; ``None`` where it is not known."""
    bare = name.strip().lower().removeprefix("torch.")
    return _TORCH_DTYPES.get(bare) or (bare if bare in DTYPE_BYTES else None)


def size_from_call(op: str, call_bytes: int, ranks: int | None) -> int | None:
    """nccl-tests' size of an NCCL call whose count times element size is ``call_bytes``."""
    if op in {"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"}:
        return call_bytes * ranks if ranks else None
    return call_bytes


def size_from_tensors(op: str, sent: int, received: int, ranks: int | None) -> int | None:
    """nccl-tests' size of an operation with these input and output bytes on one rank.

    A rank that is not the root of a gather or scatter holds one share: ``ranks`` times that.
    """
    if op == "barrier":
        return None
    if op == "all_gather":
        return received if received >= sent else sent * ranks if ranks else None
    if op == "reduce_scatter":
        return sent if sent >= received else received * ranks if ranks else None
    if op == "gather":
        return sent * ranks if ranks else None
    if op == "scatter":
        return received * ranks if ranks else None
    if op == "all_to_all":
        return sent or received
    return max(sent, received)


def ranks_of(listed: Any) -> list[int] | None:
    """Global ranks of a PyTorch process group, a list or its text; null where it was shortened."""
    if isinstance(listed, str):
        try:
            listed = json.loads(listed)
        except (ValueError, RecursionError):
            return None
    if not isinstance(listed, (list, tuple)) or not listed:
        return None
    ranks = [rank for rank in map(small, listed) if rank is not None]
    return ranks if len(ranks) == len(listed) else None


def group_comm(name: str) -> str:
    """``comm`` of a PyTorch process group: its name, which is equal on all its ranks.

    Flight Recorder and Kineto both print it, so that one operation seen by both has one ``comm``.
    """
    return f"pg:{name}"


def named_comm(name: str) -> str:
    """``comm`` of an id as text: the hash where it is hexadecimal digits, else as it stands."""
    digits = name.removeprefix("0x")
    return hash_comm(int(digits, 16)) if _HASH.fullmatch(digits) else name


def hash_comm(value: int) -> str:
    """``comm`` of an NCCL communicator: the hash of its unique id, equal on all its ranks.

    NCCL's log prints it as commId, Inspector as id.
    """
    return f"{value:#x}"
