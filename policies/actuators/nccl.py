"""NCCL's environment: how many queue pairs a connection has, and how switches may treat them.

NCCL reads it when the first communicator is made, so a choice holds for the whole job. Names,
ranges and defaults are those of NCCL's user guide.
"""

from __future__ import annotations

import sys
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar

from .base import Actuator, Refused, checked

_MOST_QUEUE_PAIRS = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class NcclSettings:
    """What NCCL is told about paths; None leaves a variable as it is.

    Attributes:
        qps_per_connection: Queue pairs of a connection, 1 to 128; a hash gives each its path.
        split_data_on_qps: 1 splits a message over them, 0 gives them messages by turns.
        tc: Traffic class of data, 0 to 255; on RoCE the DSCP is its upper 6 bits.
        fifo_tc: Traffic class of control messages, 0 to 255.
        sl: Service level, 0 to 15; on InfiniBand the subnet manager allows adaptive routing by it.
        adaptive_routing: 1 sends data so that switches may reorder it.
        ar_threshold: Bytes above which they may.

    Raises:
        ValueError: Out of range, or a setting that another one would leave without effect.
    """

    qps_per_connection: int | None = None
    split_data_on_qps: int | None = None
    tc: int | None = None
    fifo_tc: int | None = None
    sl: int | None = None
    adaptive_routing: int | None = None
    ar_threshold: int | None = None

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and (type(value) is not int or not low <= value <= high):
                raise ValueError(f"{_variable(name)}={value!r}: must be {low} to {high}")
        if self.split_data_on_qps == 1 and self.qps_per_connection == 1:
            raise ValueError(
                "NCCL_IB_SPLIT_DATA_ON_QPS=1 does nothing with NCCL_IB_QPS_PER_CONNECTION=1"
            )
        if self.ar_threshold is not None and self.adaptive_routing == 0:
            raise ValueError("NCCL_IB_AR_THRESHOLD does nothing with NCCL_IB_ADAPTIVE_ROUTING=0")

    def environment(self) -> dict[str, str]:
        """The variables that are set, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {_variable(name): str(v) for name, v in values.items() if v is not None}

    def shell(self) -> str:
        """The same as lines of a shell script."""
        return "".join(f"export {k}={v}\n" for k, v in self.environment().items())


_RANGES = {
    "qps_per_connection": (1, _MOST_QUEUE_PAIRS),
    "split_data_on_qps": (0, 1),
    "tc": (0, 255),
    "fifo_tc": (0, 255),
    "sl": (0, 15),
    "adaptive_routing": (0, 1),
    "ar_threshold": (0, 2**31 - 1),
}


def _variable(name: str) -> str:
    return f"NCCL_IB_{name.upper()}"


class NcclEnvironment(Actuator):
    """Gives each connection queue pairs for its paths, before NCCL starts.

    NCCL deals data evenly over its queue pairs and leaves their source ports to the driver. So
    paths in use get equal shares, and which path a queue pair takes is the fabric's hash; unequal
    shares are refused.

    Args:
        environment: Where the variables are set, such as ``os.environ``.
        paths: How many paths there are.
        settings: What else NCCL is told; must leave the queue pairs open.
        per_path: Queue pairs for each path in use: several make it likelier that a hash finds
            each path.

    Raises:
        ValueError: Too many queue pairs, or settings that fix them.
    """

    name: ClassVar[str] = "NCCL environment"
    needs: ClassVar[tuple[str, ...]] = ("no process group in this process yet",)

    def __init__(
        self,
        environment: MutableMapping[str, str],
        paths: int,
        settings: NcclSettings | None = None,
        *,
        per_path: int = 1,
    ) -> None:
        self._settings = NcclSettings() if settings is None else settings
        if paths < 1 or not 1 <= per_path * paths <= _MOST_QUEUE_PAIRS:
            raise ValueError(f"{per_path} queue pairs for each of {paths} paths: 1 to 128 in all")
        if (self._settings.qps_per_connection, self._settings.split_data_on_qps) != (None, None):
            raise ValueError("the settings must leave queue pairs to the shares")
        self._environment = environment
        self.path_count = paths
        self._paths = paths
        self._per_path = per_path
        self._before: dict[str, str | None] = {}
        self._ours: dict[str, str] = {}

    def check(self) -> str | None:
        """See `Actuator.check`; looks at torch only where it is loaded."""
        distributed = sys.modules.get("torch.distributed")
        available = distributed is not None and distributed.is_available()
        if distributed is not None and available and distributed.is_initialized():
            return "a process group exists already, so NCCL may have read its environment"
        return None

    def apply(self, shares: Sequence[float]) -> None:
        """See `Actuator.apply`; the shares above 0 must be equal."""
        used = [share for share in checked(shares, self._paths) if share]
        if max(used) - min(used) > 1e-9:
            raise Refused(f"{self.name}: queue pairs share data evenly; these shares differ")
        pairs = self._per_path * len(used)
        block = self._settings.environment()
        block["NCCL_IB_QPS_PER_CONNECTION"] = str(pairs)
        block["NCCL_IB_SPLIT_DATA_ON_QPS"] = str(int(pairs > 1))
        for name, value in block.items():
            self._before.setdefault(name, self._environment.get(name))
            self._environment[name] = value
        self._ours = block

    def undo(self) -> None:
        """See `Actuator.undo`; a variable that somebody else has changed since stays."""
        for name, before in self._before.items():
            if self._environment.get(name) != self._ours.get(name):
                continue
            if before is None:
                del self._environment[name]
            else:
                self._environment[name] = before
        self._before, self._ours = {}, {}
