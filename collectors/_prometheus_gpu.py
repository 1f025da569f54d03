"""Rows of ``gpu_samples`` made of the series of dcgm-exporter and DLRover's xpu_timer.

Units (dcgm-exporter's etc/default-counters.csv): utilization in per cent, memory in MiB, power in
watts; ratios of the profiling fields are 0..1, also where their help says per cent. What it does
not take for bytes: ``DCGM_FI_PROF_NVLINK_TX_BYTES`` is a rate in bytes per second, and
``DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL`` one in MB/s, also where an exporter calls them counters;
they are in ``extra`` under their own names, as is every other field.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from xtune.collectors._base import Context, RowBuffer, Rows
from xtune.collectors._prometheus import Group
from xtune.collectors._prometheus_names import DCGM, host_of
from xtune.collectors._prometheus_samples import NO_TIME

_MIB = 1 << 20
#: dcgm_structs.h: values from these on stand for "not supported", "not found" and the like.
_BLANKS = (0x7FFFFFF0, 140737488355328.0, float(0x7FFFFFFFFFFFFFF0))
_UTILIZATION = ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_UTIL_RATIO")
_ENGINE = ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO")
_ACTIVE = ("DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_SM_UTIL_RATIO")
_MEMORY = ("DCGM_FI_DEV_FB_USED",)
_POWER = ("DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_BOARD_POWER_WATTS")
_SENT = ("DCGM_FI_DEV_NVLINK_COUNT_TX_BYTES", "DCGM_FI_DEV_NVLINK_TX_BYTES_TOTAL")
_RECEIVED = ("DCGM_FI_DEV_NVLINK_COUNT_RX_BYTES", "DCGM_FI_DEV_NVLINK_RX_BYTES_TOTAL")
#: Labels that only some series of one GPU have, which must not part its rows.
DCGM_OWN = frozenset({"err_code", "err_msg", "window_size_in_ms"})
XPU_OWN = frozenset({"dtype", "level", "operation", "name"})
_UNSET = frozenset({"", "NOT_SET", "unknown", "UNKNOWN"})


def xpu_meaning(meaning: str, labels: Mapping[str, str]) -> str:
    """``mm_kernel_avg_latency{bf16,Matmul,level 7}``: a GPU has many series of one name."""
    told = [labels.get("dtype"), labels.get("operation") or labels.get("name")]
    if labels.get("level"):
        told.append(f"level {labels['level']}")
    text = ",".join(part for part in told if part)
    return f"{meaning}{{{text}}}" if text else meaning


class Gpus:
    """Makes rows of the series of GPUs."""

    def __init__(self, context: Context) -> None:
        self.notes: Counter[str] = Counter()
        self._context = context
        self._rows = RowBuffer("gpu_samples", context)

    def add(self, group: Group) -> Iterator[Rows]:
        """Take all series of one GPU."""
        host, gpu = self._identity(group)
        labels = {k: v for k, v in group.labels.items() if k not in DCGM_OWN | XPU_OWN}
        moments: dict[int, dict[str, float]] = {}
        for meaning, gauge in group.gauges.items():
            for ts, value in gauge.items():
                moments.setdefault(ts, {})[meaning] = value
        for ts in sorted(moments):
            row: dict[str, Any] = {"ts": None if ts == NO_TIME else ts, "host": host, "gpu": gpu}
            left = moments[ts]
            if group.exporter == DCGM:
                row |= self._columns(left)
            extra = {name: _text(value) for name, value in left.items()}
            self._rows.add({**row, "labels": labels or None, "extra": extra or None})
            if self._rows.full:
                yield from self._rows.flush()

    def finish(self) -> Iterator[Rows]:
        """Yield what is left."""
        yield from self._rows.flush()

    def _identity(self, group: Group) -> tuple[str | None, str | None]:
        """Host, and index of the GPU on it; of a MIG instance ``0/7``: the GPU and the instance.

        ``Hostname`` is the exporter's word for the node (in a pod, the pod's name).
        """
        labels = group.labels
        if group.exporter == DCGM:
            host = labels.get("Hostname") or labels.get("hostname")
            host = host or host_of(labels.get("instance", ""))
            gpu = labels.get("gpu") or labels.get("UUID") or labels.get("uuid")
            if gpu and labels.get("GPU_I_ID"):
                gpu = f"{gpu}/{labels['GPU_I_ID']}"
        else:
            host, gpu = xpu_host(labels), labels.get("local_rank")
        host = host or self._context.host
        return (host.lower() if host else None), gpu or None

    def _columns(self, left: dict[str, float]) -> dict[str, Any]:
        """Columns of a moment; their fields are taken out of ``left``."""
        for name in [n for n, value in left.items() if _blank(value)]:
            del left[name]
            self.notes["DCGM's words for no value (not supported, not found): null"] += 1
        utilization = self._share(_take(left, _UTILIZATION), 100)
        if utilization is None:
            utilization = self._share(_take(left, _ENGINE), 1)
        memory = _take(left, _MEMORY)
        return {
            "utilization": utilization,
            "sm_active": self._share(_take(left, _ACTIVE), 1),
            "memory_used_bytes": None if memory is None else round(memory * _MIB),
            "power_w": _take(left, _POWER),
            "nvlink_tx_bytes": _count(_take(left, _SENT)),
            "nvlink_rx_bytes": _count(_take(left, _RECEIVED)),
        }

    def _share(self, value: float | None, whole: float) -> float | None:
        if value is not None and not 0 <= value <= whole:
            self.notes["shares of time outside 0..1: null"] += 1
            return None
        return None if value is None else value / whole


def xpu_host(labels: Mapping[str, str]) -> str | None:
    """The pod, as it calls itself, else its address."""
    named = (labels.get("pod_name", ""), labels.get("ip", ""))
    return next((name for name in named if name not in _UNSET), None)


def _take(left: dict[str, float], names: tuple[str, ...]) -> float | None:
    """The first of some fields that is there, taken out; negative ones are no values."""
    for name in names:
        if name in left:
            value = left.pop(name)
            return value if 0 <= value < 2**63 else None
    return None


def _count(value: float | None) -> int | None:
    return None if value is None else round(value)


def _blank(value: float) -> bool:
    return any(0 <= value - blank < 16 for blank in _BLANKS)


def _text(value: float) -> str:
    whole = isinstance(value, float) and value == int(value) and abs(value) < 2**63
    return str(int(value)) if whole else repr(value)
