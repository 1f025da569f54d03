"""What the columns of a table of counters are, by their names.

Tables that people write with a shell loop over sysfs, perfquery or ``ethtool -S`` name their
columns as the kernel or the tool does, and add a time, a host, a device, a port.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from xtune.collectors._ib import U64_MAX, WIDTHS, kernel_name
from xtune.collectors._rate_cells import NAMES as RATES
from xtune.collectors._values import whole
from xtune.tables import COUNTERS


def _words(names: str) -> frozenset[str]:
    return frozenset(names.split())


def _as(role: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), role)


#: Counters of hw_counters without a column (Linux drivers mlx5, irdma, bnxt_re, efa, erdma).
_HW = _words(
    "duplicate_request implied_nak_seq_err req_cqe_error resp_cqe_error req_cqe_flush_error"
    " resp_cqe_flush_error req_remote_access_errors req_remote_invalid_request"
    " resp_remote_access_errors resp_local_length_error req_transport_retries_exceeded"
    " req_rnr_retries_exceeded roce_adp_retrans_to roce_slow_restart_cnps"
    " roce_slow_restart_trans rx_icrc_encapsulated rx_read_requests rx_write_requests"
    " rx_atomic_requests rx_dct_connect rnr_nak_retry_err retry_exceeded naks_recv rdma_read_bytes"
    " rdma_write_bytes rdma_read_wrs rdma_write_wrs rx_ecn_marked_pkts seq_err_naks_rcvd"
)
#: Drivers' names of ``ethtool -S``.
_ETHTOOL = re.compile(
    r"(?:port\.)?[rt]x\d*_[a-z0-9_]+(?:\.nic)?|link_down_events_phy|outbound_pci_stalled_\w+"
    r"|pfc_pri\d_[rt]x_duration_us"
)
_TIME = (
    "ts time timestamp datetime epoch unix_time time_utc timestamp_utc ts_utc collector_time_utc"
    " date_time collected_at sample_time"
)
_UNITS = ("s", "ms", "us", "ns")
_ROLE = {
    **_as("time", _TIME),
    **{f"{n}_{u}": "time" for n in ("ts", "time", "timestamp", "epoch") for u in _UNITS},
    **_as("offset", "elapsed offset t seconds mid_us"),
    **{f"{n}_{u}": "offset" for n in ("elapsed", "offset", "t", "rel") for u in _UNITS},
    **_as("host", "host hostname node server"),
    **_as("device", "device dev hca ibdev ib_dev ca rdma_dev interface iface nic netdev ifname"),
    **_as("port", "port port_num ib_port portnum"),
    **_as("node_guid", "node_guid nodeguid guid"),
    **_as("change", "delta diff"),
    **_as("interval", "interval_s dt dt_s delta_t"),
    **_as("side", "side role"),
    **_as("counter", "counter counter_name metric"),
    **_as("before", "before old old_val"),
    **_as("after", "after new new_val value val"),
}
_DELTA = re.compile(r"(?:delta|d|diff)_(.+)|(.+)_(?:delta|diff)")
_BYTES = re.compile(r"(port_(?:xmit|rcv)_data)_bytes")


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        role: ``counter`` and so on of a long table, ``time``, ``offset``, ``host``, ..., or
            ``kernel``, ``ethtool`` (a counter under a driver's name), ``other``.
        name: The counter's name in the kernel's words, or the column's own.
        delta: Whether it says that its values are differences.
        unit: Bytes of a unit of a data counter.
    """

    role: str
    name: str
    delta: bool = False
    unit: int = 4


def counter_of(name: str) -> str | None:
    """The kernel's name of a counter, ``None`` where the name is none's."""
    if name in COUNTERS or name in WIDTHS or name in _HW:
        return name
    kernel = kernel_name(name)
    return kernel if kernel in COUNTERS or kernel in WIDTHS else None


def column(header: str) -> Column:
    """What a column of this name is."""
    plain = header.strip().lstrip("#").strip()
    lower = plain.lower()
    if lower in RATES:
        return Column("rate", plain)
    if lower in _ROLE:
        return Column(_ROLE[lower], lower)
    known = counter_of(plain)
    if known:
        return Column("kernel", known)
    in_bytes = _BYTES.fullmatch(lower)
    if in_bytes:
        return Column("kernel", in_bytes[1], unit=1)
    delta = _DELTA.fullmatch(plain)
    base = (delta[1] or delta[2]) if delta else None
    if base and (known := counter_of(base)):
        return Column("kernel", known, delta=True)
    if _ETHTOOL.fullmatch(plain):
        return Column("ethtool", plain)
    return Column("other", plain)


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of a table.

    Attributes:
        long: Whether a row is one counter, whose name is a cell.
    """

    columns: tuple[Column, ...]
    long: bool

    @property
    def timed(self) -> bool:
        """Whether each row has its own time, of a clock or since some start."""
        return any(column.role in ("time", "offset") for column in self.columns)

    @classmethod
    def of(cls, headers: Iterable[str], column_map: Mapping[str, str]) -> Layout | None:
        """The layout of a header, ``None`` where it has no counters.

        Args:
            headers: Names of the columns.
            column_map: xtune's name -> the file's; a role's name (``time``, ``device``) or a
                counter's.
        """
        told = {theirs: ours for ours, theirs in column_map.items()}
        found = []
        for header in headers:
            ours = told.get(header.strip())
            found.append(column(ours if ours else header))
        roles = [c.role for c in found]
        if "counter" in roles and "after" in roles:
            return cls(tuple(found), True)
        counters = [c for c in found if c.role in ("kernel", "ethtool")]
        kernel = any(c.role == "kernel" for c in counters)
        return cls(tuple(found), False) if kernel or len(counters) > 1 else None


#: What a table of one counter a row without any header has, in the order of its cells.
HEADERLESS = ("side", "counter", "before", "after", "delta")


def is_headerless(cells: list[str]) -> bool:
    """Whether cells are a side, a known counter, its values before and after, and the change."""
    if len(cells) != len(HEADERLESS) or not counter_of(cells[1]):
        return False
    before, after, change = (whole(cell, low=-U64_MAX, high=U64_MAX) for cell in cells[2:])
    if before is None or after is None or change is None:
        return False
    return before >= 0 and after - before == change
