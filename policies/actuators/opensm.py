"""Text for OpenSM's configuration: routing engine, several LIDs a port, adaptive routing.

An administrator puts it into ``opensm.conf`` and restarts the subnet manager; nothing here does.
Adaptive routing is in NVIDIA's OpenSM alone: the upstream one ignores its options and does not
know its engines (NVIDIA, InfiniBand Cluster Bring-up Procedure v1.0, "Adaptive Routing").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ENGINES: tuple[str, ...] = ("minhop", "updn", "dnup", "file", "ftree", "lash", "dor", "torus-2QoS")
ENGINES += ("nue", "dfsssp", "sssp")
ADAPTIVE_ENGINES = ("ar_updn", "ar_ftree", "ar_torus", "ar_dor")
MOST_LMC = 7  # 3 bits of PortInfo


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenSmSettings:
    """How the subnet manager lays paths.

    Attributes:
        engines: Routing engines in the order in which they are tried, of `ENGINES`, or of
            `ADAPTIVE_ENGINES` for NVIDIA's OpenSM. Where all fail, min hop is used.
        lmc: A port has 2**lmc LIDs, and so that many paths to choose from by destination LID.
        adaptive_sls: Service levels on which switches may choose the port; empty for none. NCCL
            picks one by NCCL_IB_SL.

    Raises:
        ValueError: An unknown engine, or numbers out of range, or adaptive engines and service
            levels without each other.
    """

    engines: Sequence[str]
    lmc: int = 0
    adaptive_sls: Sequence[int] = ()

    def __post_init__(self) -> None:
        unknown = [e for e in self.engines if e not in ENGINES + ADAPTIVE_ENGINES]
        if unknown or not self.engines or len(set(self.engines)) < len(self.engines):
            raise ValueError(f"routing engines {list(self.engines)}: each once, of {ENGINES}, "
                             f"or of {ADAPTIVE_ENGINES}")  # fmt: skip
        if not 0 <= self.lmc <= MOST_LMC:
            raise ValueError(f"lmc={self.lmc}: must be 0 to {MOST_LMC}")
        if not all(0 <= sl <= 15 for sl in self.adaptive_sls):
            raise ValueError(f"service levels are 0 to 15: {list(self.adaptive_sls)}")
        if bool(self.adaptive_sls) != any(e in ADAPTIVE_ENGINES for e in self.engines):
            raise ValueError(
                "adaptive routing needs an adaptive engine and a service level that uses it"
            )

    @property
    def paths(self) -> int:
        """LIDs of a port, which is how many paths a sender can choose from."""
        return 1 << self.lmc

    def text(self) -> str:
        """Lines for ``opensm.conf``."""
        lines = [
            f"routing_engine {','.join(self.engines)}",
            f"lmc {self.lmc}",
        ]
        if self.adaptive_sls:
            mask = sum(1 << sl for sl in set(self.adaptive_sls))
            lines += ["enable_ar_by_device_cap TRUE", f"ar_sl_mask 0x{mask:04X}"]
        return "\n".join(lines) + "\n"
