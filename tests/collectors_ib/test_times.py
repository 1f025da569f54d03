"""Times of files: stamps with and without a zone, names, epoch digits of any unit."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.collectors_ib.helpers import context
from xtune.collectors import Source
from xtune.collectors import _ib_time as times

NOON = 1_769_860_800 * 10**9  # 2026-01-31T12:00:00Z


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("2026-01-31 12:00:00 UTC +0000", NOON),
        ("# Running timestamp : 2026-01-31 12:00:00 UTC +0000", NOON),
        ("2026-01-31T12:00:00Z", NOON),
        ("2026-01-31T12:00:00.25Z", NOON + 250_000_000),
        ("2026-01-31T13:00:00+01:00", NOON),
        ("2026-01-31 12:00:00", None),  # no zone
        ("2026-02-31T12:00:00Z", None),  # no such day
        ("1066-10-14T09:00:00Z", None),
        ("", None),
    ],
)
def test_stamps_with_a_zone(text: str, wanted: int | None) -> None:
    assert times.parse_utc_stamp(text) == wanted


def test_a_local_stamp_needs_a_zone() -> None:
    text = "# Topology file: generated on Sat Jan 31 12:00:00 2026"
    assert times.parse_ctime(text, None) is None
    assert times.zone(context(tz="No/Such")) is None
    assert times.parse_ctime(text, times.zone(context(tz="UTC"))) == NOON
    tokyo = times.parse_ctime(text, times.zone(context(tz="Asia/Tokyo")))
    assert tokyo == NOON - 9 * 3600 * 10**9
    assert times.parse_ctime("generated some day", UTC) is None


@pytest.mark.parametrize(
    ("name", "tz", "wanted"),
    [
        ("sysfs-2026-01-31T12:00:00Z", None, NOON),
        ("2026-01-31T14-00-00+0200/class", None, NOON),
        ("node17_20260131-120000.tar", "UTC", NOON),
        ("node17_20260131-120000.tar", None, None),  # local, and no zone was named
        ("dump.1769860800.txt", None, NOON),
        ("dump.1769860800000.txt", None, NOON),
        ("1769860800000000000", None, NOON),
        ("mlx5_0", "UTC", None),
        ("20261399-999999", "UTC", None),
    ],
)
def test_names(name: str, tz: str | None, wanted: int | None) -> None:
    assert times.name_time(name, context(tz=tz)) == wanted


@given(st.datetimes(datetime(1974, 1, 1), datetime(2262, 1, 1)))
def test_epoch_units_by_size(moment: datetime) -> None:
    seconds = int(moment.replace(tzinfo=UTC, microsecond=0).timestamp())
    wanted = seconds * 10**9
    assert times.scale_epoch(seconds) == (wanted, "s")
    assert times.scale_epoch(seconds * 10**3) == (wanted, "ms")
    assert times.scale_epoch(seconds * 10**6) == (wanted, "us")
    assert times.scale_epoch(seconds * 10**9) == (wanted, "ns")


def test_fallbacks(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("")
    source = Source(path, "x")
    assert times.fallback_time(source, context()) is None
    assert times.fallback_time(source, context(time_from="mtime")) == path.stat().st_mtime_ns
    assert times.fallback_time(source, context(time_from="name")) is None
    gone = Source(tmp_path / "gone", "gone")
    assert times.fallback_time(gone, context(time_from="mtime")) is None
    assert times.content_id(gone).startswith("unknown-")
