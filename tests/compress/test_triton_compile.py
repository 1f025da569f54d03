"""The Triton kernels through the real compiler, which needs no GPU: what the machine code is like.

Everything is compiled in a process of its own, with a cache of its own.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .ranks import run

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton has no build for this system"
)

BLOCK = 256
THREADS = 128
WIDE = 16  # bytes of a 128-bit access
MOST_REGISTERS = 64  # as many as let 1,024 threads share a multiprocessor
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True, kw_only=True)
class Variant:
    kernel: str
    bits: int
    element: str = "fp32"  # of the gradient, or of what is decoded
    block: int = BLOCK
    unit: int = 8
    world: int = 4
    add: bool = False
    fuse: bool = False


@dataclass(frozen=True, kw_only=True)
class Built:
    ptx: str
    sass: str
    registers: int
    stack: int
    local: int
    rows: int

    def count(self, instruction: str) -> int:
        return len(re.findall(rf"\b{re.escape(instruction)}\b(?!\.)", self.sass))


HOT = (  # every kernel at both widths; a gradient and an accumulator in bf16
    *(Variant(kernel=kernel, bits=bits, add=True)
      for kernel in ("encode", "reduce", "decode") for bits in (4, 8)),
    Variant(kernel="encode", bits=4, element="bf16"),
    Variant(kernel="decode", bits=4, element="bf16", add=True),
    Variant(kernel="decode", bits=4),
)  # fmt: skip


def _source(variant: Variant) -> tuple[Any, int]:
    """What the compiler is given for a launch with aligned tensors, and the rows of a program."""
    from triton.compiler import ASTSource

    from xtune.policies.compress import triton_kernels as kernels

    # As the codec does: the residuals, in fp32, are the bulk of what is encoded.
    width = BYTES[variant.element] if variant.kernel == "decode" else 4
    constants = {
        "WORLD": variant.world,
        "UNIT": variant.unit,
        "BITS": variant.bits,
        "BLOCK": variant.block,
        "ROWS": kernels.rows(variant.bits, variant.block, width),
        "PIECES": kernels.pieces(variant.bits),
        "CARRY": True,
        "KEEP": True,
        "ADD": variant.add,
        "INTERPRETED": False,
    }
    types = {"gain": "fp32", "part": "fp32", "starts": "*i32", "words": "*i32"}
    types |= dict.fromkeys(("message", "received", "share", "gathered"), "*u8")
    types |= dict.fromkeys(("gradient", "out"), f"*{variant.element}")
    types |= dict.fromkeys(("residual", "fresh"), "*fp32")
    kernel = getattr(kernels, variant.kernel)
    signature, constexprs, attributes = {}, {}, {}
    for i, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
            constexprs[(i,)] = constants[name]
        else:
            signature[name] = types.get(name, "i32")
            if signature[name].startswith("*"):
                attributes[(i,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=constexprs, attrs=attributes)
    return source, int(str(constants["ROWS"]))


def _build(
    _rank: int, _world: int, folder: str, architecture: int, variants: tuple[Variant, ...]
) -> list[Built]:
    os.environ["TRITON_CACHE_DIR"] = folder  # before triton is imported
    import triton
    from triton.backends.compiler import GPUTarget

    from xtune.policies.compress.triton_kernels import OPTIONS

    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    built = []
    for variant in variants:
        source, rows = _source(variant)
        options = OPTIONS | {"enable_fp_fusion": True} if variant.fuse else OPTIONS
        target = GPUTarget("cuda", architecture, 32)
        compiled = triton.compile(source, target=target, options=options)
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(compiled.asm["cubin"])
        told = [
            subprocess.run(
                [tools / tool, option, cubin], capture_output=True, text=True, check=True
            )
            for tool, option in (("cuobjdump", "-res-usage"), ("nvdisasm", "-c"))
        ]
        used = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", told[0].stdout)
        assert used is not None
        registers, stack, local = map(int, used.groups())
        built.append(
            Built(
                ptx=compiled.asm["ptx"], sass=told[1].stdout, registers=registers, stack=stack,
                local=local, rows=rows,
            )
        )  # fmt: skip
    return built


def _built(folder: Path, architecture: int, variants: tuple[Variant, ...]) -> list[Built]:
    result: list[Built] = run(0, _build, str(folder), architecture, variants)[0]
    return result


def _spills(built: Built) -> int:
    """Bytes and instructions of thread-local memory."""
    return built.stack + built.local + len(re.findall(r"\b(?:LDL|STL)\b", built.sass))


def _nothing_is_spilled_and_registers_leave_room(hot: dict[Variant, Built]) -> None:
    for variant, built in hot.items():
        assert _spills(built) == 0, variant
        assert built.registers <= MOST_REGISTERS, variant


def _full_blocks_move_in_128_bit_accesses(hot: dict[Variant, Built]) -> None:
    """As many wide accesses as carry all values of a program, the codes apart."""
    for variant, built in hot.items():
        values = built.rows * BLOCK
        fp32 = values * 4
        own = values * BYTES[variant.element]
        if variant.kernel == "encode":
            loaded, stored = fp32 + (own if own == fp32 else 0), fp32
        elif variant.kernel == "reduce":
            loaded = stored = fp32
        else:
            loaded, stored = own if variant.add else 0, own
        assert built.count("LDG.E.128") * WIDE * THREADS >= loaded, variant
        assert built.count("STG.E.128") * WIDE * THREADS >= stored, variant
        if variant.kernel == "encode" and own != fp32:  # bf16 beside the fp32 residual
            assert built.count("LDG.E.64") * WIDE // 2 * THREADS >= own, variant


def _codes_are_stored_in_words(hot: dict[Variant, Built]) -> None:
    """Four bytes of a thread at once, where the stride of a message is a multiple of them."""
    for variant, built in hot.items():
        assert built.count("LDG.E.U8") == 0, variant
        if variant.kernel != "decode":
            full = built.rows * BLOCK * variant.bits // 8
            assert built.count("STG.E") * 4 * THREADS >= full, variant


def _products_are_rounded_before_they_are_added(hot: dict[Variant, Built]) -> None:
    for variant, built in hot.items():
        assert "fma." not in built.ptx, variant
        # Without a rounding mode the assembler would be free to contract.
        assert not re.search(r"\b(?:add|sub|mul)(?:\.ftz)?\.f32", built.ptx), variant
        assert re.search(r"\bmul\.rn\.f32", built.ptx), variant
        if variant.kernel == "decode":  # the rest divides, which takes fused steps of its own
            assert built.count("FFMA") == 0, variant


def _divisions_are_the_correctly_rounded_ones(hot: dict[Variant, Built]) -> None:
    for variant, built in hot.items():
        kinds = set(re.findall(r"\b((?:div|rcp)\.[\w.]+)", built.ptx))
        expected = set() if variant.kernel == "decode" else {"div.rn.f32", "rcp.rn.f32"}
        assert kinds <= expected, variant
        assert ".ftz" not in built.ptx, variant  # small residuals are not flushed


def _narrow_results_are_rounded_to_nearest_even(hot: dict[Variant, Built]) -> None:
    for variant, built in hot.items():
        if variant.kernel == "decode" and variant.element == "bf16":
            assert set(re.findall(r"\bcvt\.\w+\.bf16\w*\.f32", built.ptx)) <= {
                "cvt.rn.bf16x2.f32",
                "cvt.rn.bf16.f32",
            }
            assert "cvt.rn.bf16" in built.ptx


@pytest.mark.parametrize("architecture", [80, 90])
def test_machine_code_of_the_kernels_in_use(architecture: int, tmp_path: Path) -> None:
    """One test, so that they are compiled once."""
    hot = dict(zip(HOT, _built(tmp_path, architecture, HOT), strict=True))
    _nothing_is_spilled_and_registers_leave_room(hot)
    _full_blocks_move_in_128_bit_accesses(hot)
    _codes_are_stored_in_words(hot)
    _products_are_rounded_before_they_are_added(hot)
    _divisions_are_the_correctly_rounded_ones(hot)
    _narrow_results_are_rounded_to_nearest_even(hot)


def test_without_the_options_a_product_is_contracted(tmp_path: Path) -> None:
    fused = Variant(kernel="encode", bits=4, fuse=True)
    assert "fma.rn.f32" in _built(tmp_path, 80, (fused,))[0].ptx


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [80, 90])
@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("kernel", ["encode", "reduce", "decode"])
def test_no_width_block_or_alignment_spills(
    kernel: str, bits: int, architecture: int, tmp_path: Path
) -> None:
    variants = tuple(
        Variant(
            kernel=kernel, bits=bits, element=element, block=block, unit=unit, world=world,
            add=True,
        )
        for element in (("fp32",) if kernel == "reduce" else ("fp32", "fp16"))
        for block, unit, world in ((16, 8, 1), (64, 2, 3), (256, 2, 1024), (1024, 8, 2))
    )  # fmt: skip
    for variant, built in zip(variants, _built(tmp_path, architecture, variants), strict=True):
        assert _spills(built) == 0, variant
