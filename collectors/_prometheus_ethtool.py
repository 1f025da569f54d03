"""Rows of ``link_counters`` and ``ports`` made of node_exporter's ethtool collector.

node_exporter (collector/ethtool_linux.go) writes a driver's names in lower case, other characters
than letters and digits as ``_``, the words ``rx`` and ``tx`` as ``received`` and ``transmitted``;
seven common ones end in ``_total``. The names are turned back, then read as ``ethtool -S`` is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from xtune.collectors._base import Context, RowBuffer, Rows
from xtune.collectors._ethtool import counters
from xtune.collectors._ib import link_id
from xtune.collectors._prometheus import Group
from xtune.collectors._prometheus_names import host_of
from xtune.collectors._prometheus_samples import NO_TIME

_WORDS = {"received": "rx", "transmitted": "tx"}
_WORD = re.compile(r"(?<![a-z0-9])(received|transmitted)(?![a-z0-9])")
_COMMON = frozenset(
    f"{way}_{what}" for way in ("rx", "tx") for what in ("bytes", "dropped", "errors", "packets")
)


def driver_name(metric: str) -> str:
    """``node_ethtool_received_prio3_pause`` -> ``rx_prio3_pause``."""
    name = _WORD.sub(lambda m: _WORDS[m[1]], metric.removeprefix("node_ethtool_"))
    base = name.removesuffix("_total")
    return base if base in _COMMON else name


class Ethernet:
    """Makes rows of the series of network interfaces."""

    def __init__(self, context: Context) -> None:
        self.unknown = ""
        self._context = context
        self._counted = RowBuffer("link_counters", context)
        self._seen = RowBuffer("ports", context)

    def add(self, group: Group) -> Iterator[Rows]:
        """Take all series of one interface."""
        labels = dict(group.labels)
        device = labels.pop("device", "")
        host = host_of(labels.get("instance", "")) or self._context.host
        host = host.lower() if host else None
        same = {"host": host, "device": device or None, "port": 1, "labels": labels or None}
        same["link"] = link_id(None, host, device, 1, self.unknown)
        moments: dict[int, dict[str, int]] = {}
        for metric, gauge in group.gauges.items():
            name = driver_name(metric)
            for ts, value in gauge.items():
                if 0 <= value < 2**64 and value == int(value):
                    moments.setdefault(ts, {})[name] = int(value)
        for ts in sorted(moments):
            # A driver's -1 is all ones of 64 bits, which a double rounds up to 2^64.
            row = {**counters(moments[ts]), **same, "ts": None if ts == NO_TIME else ts}
            self._counted.add(row)
            if self._counted.full:
                yield from self._counted.flush()
        if moments:
            first = min(moments)
            port = {**same, "netdev": device, "link_layer": "Ethernet"}
            self._seen.add({**port, "ts": None if first == NO_TIME else first})

    def finish(self) -> Iterator[Rows]:
        """Yield what is left."""
        yield from self._seen.flush()
        yield from self._counted.flush()
