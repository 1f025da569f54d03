"""What the CPU kernels are made with: how they are compiled, and what numba has no word for.

Kept on disk, a kernel is compiled again where its own file changed, not where this one did.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba import types
from numba.extending import intrinsic


def compiled(function: Callable[..., Any]) -> Any:
    """Compile at the first call; kept on disk where the folder or the user's cache is writable."""
    try:
        return numba.njit(function, nogil=True, error_model="numpy", cache=True)
    except RuntimeError:  # no place for a cache: compile in every process
        return numba.njit(function, nogil=True, error_model="numpy")


def routine(function: Callable[..., Any]) -> Any:
    """A part of the kernels that Python does not call, so that no wrapper need be compiled."""
    inside: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return numba.njit(function, nogil=True, error_model="numpy", **inside)


def _operation(function: Callable[..., Any]) -> Any:
    """A few instructions of LLVM, merged into the routine around them."""
    return intrinsic(function)


@_operation
def bits_of(_: Any, value: Any) -> Any:
    """The bits of an fp32 as int32, in a register."""

    def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(types.int32))

    return types.int32(types.float32), generate


@_operation
def float_of(_: Any, bits: Any) -> Any:
    """The fp32 of these int32 bits, in a register."""

    def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(types.float32))

    return types.float32(types.int32), generate


@_operation
def pointer(_: Any, source: Any, index: Any) -> Any:
    """Pointer to an element of a flat, contiguous array, or of what a pointer points to.

    An array has to outlive it, as scratch does that is used again in the next round of the loop.
    """
    made: Any = types.CPointer
    is_array = isinstance(source, types.Array)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        start = args[0]
        if is_array:
            start = context.make_array(signature.args[0])(context, builder, start).data
        return builder.gep(start, [args[1]])

    return made(source.dtype)(source, types.int64), generate


@_operation
def float_at(_: Any, address: Any) -> Any:
    """Pointer to the fp32 at an address: so many arrays can be passed as one of integers."""
    made: Any = types.CPointer

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return made(types.float32)(types.int64), generate
