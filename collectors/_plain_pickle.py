"""Load a pickle that holds plain data only: dicts, lists, tuples, text, numbers.

A pickle is a program. Before it runs, each of its opcodes is looked at: those that import, call
or build anything, and those by which a few bytes claim much memory or time, are refused. What is
left runs in an unpickler that cannot look up a class, so that nothing rests on one check alone.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any, NoReturn

MAX_BYTES = 1 << 27
# Each may make an empty dict, of 64 bytes: 320 MB at the most.
MAX_OPCODES = 5_000_000
MAX_INTEGER_BYTES = 16

_SCALARS = frozenset(
    {
        "NONE",
        "NEWTRUE",
        "NEWFALSE",
        "BININT",
        "BININT1",
        "BININT2",
        "LONG1",
        "BINFLOAT",
        "BINUNICODE",
        "SHORT_BINUNICODE",
        "BINUNICODE8",
        "BINSTRING",
        "SHORT_BINSTRING",
        "BINBYTES",
        "SHORT_BINBYTES",
        "BINBYTES8",
    }
)
_EMPTY = frozenset({"EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE"})
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_PUTS = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
_GETS = frozenset({"GET", "BINGET", "LONG_BINGET"})
_CALLS = frozenset(
    {
        "GLOBAL",
        "STACK_GLOBAL",
        "REDUCE",
        "INST",
        "OBJ",
        "NEWOBJ",
        "NEWOBJ_EX",
        "BUILD",
        "EXT1",
        "EXT2",
        "EXT4",
        "PERSID",
        "BINPERSID",
    }
)
_MARK, _SCALAR, _CONTAINER = 0, 1, 2


class UnsafePickleError(ValueError):
    """The pickle is not plain data, or claims more than a file of its kind needs."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise UnsafePickleError(f"asks for {module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise UnsafePickleError("asks for an object from outside")


def load_plain(data: bytes, *, max_opcodes: int = MAX_OPCODES) -> Any:
    """The value that ``data`` holds.

    Raises:
        UnsafePickleError: An opcode that is not plain data, or one that claims too much.
        ValueError: Not a pickle, or a damaged one.
    """
    _check(data, max_opcodes)
    try:
        return _Unpickler(io.BytesIO(data)).load()
    except UnsafePickleError:
        raise
    except Exception as error:  # the unpickler raises almost anything on damaged input
        raise ValueError(f"damaged pickle: {error}") from None


def _check(data: bytes, max_opcodes: int) -> None:
    """Run the pickle on kinds instead of values, and refuse what plain data does not need.

    Keys must be scalars: the hash of a deep or shared tuple overflows the stack or takes time
    exponential in the bytes.
    """
    stack: list[int] = []
    memo: dict[int, int] = {}

    def above_mark() -> list[int]:
        top = len(stack) - 1
        while top >= 0 and stack[top] != _MARK:
            top -= 1
        if top < 0:
            raise ValueError("damaged pickle: no mark")
        values = stack[top + 1 :]
        del stack[top:]
        return values

    def pop(count: int) -> list[int]:
        if len(stack) < count or _MARK in stack[-count:]:
            raise ValueError("damaged pickle: nothing to take")
        values = stack[-count:]
        del stack[-count:]
        return values

    def top(kind: int = _CONTAINER) -> int:
        if not stack or stack[-1] == _MARK or kind > stack[-1]:
            raise ValueError("damaged pickle: nothing to fill")
        return stack[-1]

    def check_keys(pairs: list[int]) -> None:
        if len(pairs) % 2 or _CONTAINER in pairs[::2]:
            raise UnsafePickleError("a key of a dict is not text or a number")

    seen = 0
    argument: Any
    try:
        for opcode, argument, position in pickletools.genops(data):
            seen += 1
            name = opcode.name
            if seen > max_opcodes:
                raise UnsafePickleError(f"more than {max_opcodes} values")
            if name in _SCALARS:
                if name == "LONG1" and abs(argument) >> (8 * MAX_INTEGER_BYTES):
                    raise UnsafePickleError(f"byte {position}: an integer too large to be data")
                stack.append(_SCALAR)
            elif name in _EMPTY:
                stack.append(_CONTAINER)
            elif name in _PUTS or name == "MEMOIZE":
                index = len(memo) if name == "MEMOIZE" else int(argument)
                if not 0 <= index <= seen:  # the unpickler allocates a table as long as this
                    raise UnsafePickleError(f"byte {position}: memo index {index} is too large")
                memo[index] = top(_SCALAR)
            elif name in _GETS:
                if int(argument) not in memo:
                    raise ValueError("damaged pickle: nothing remembered")
                stack.append(memo[int(argument)])
            elif name == "MARK":
                stack.append(_MARK)
            elif name in _TUPLES:
                pop(_TUPLES[name])
                stack.append(_CONTAINER)
            elif name in {"TUPLE", "LIST", "DICT"}:
                values = above_mark()
                if name == "DICT":
                    check_keys(values)
                stack.append(_CONTAINER)
            elif name == "APPEND":
                pop(1)
                top()
            elif name == "APPENDS":
                above_mark()
                top()
            elif name == "SETITEM":
                check_keys(pop(2))
                top()
            elif name == "SETITEMS":
                check_keys(above_mark())
                top()
            elif name in _CALLS:
                raise UnsafePickleError(f"byte {position}: {name} would run code")
            elif name not in {"PROTO", "FRAME", "STOP"}:
                raise UnsafePickleError(f"byte {position}: {name} is not plain data")
    except UnsafePickleError:
        raise
    except Exception as error:  # pickletools raises ValueError, UnicodeError, struct.error, ...
        raise ValueError(f"not a whole pickle: {error}") from None
