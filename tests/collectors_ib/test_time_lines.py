"""Lines that hold nothing but a time, as a shell loop writes them between outputs of a tool."""

from __future__ import annotations

import pytest

from tests.collectors_ib.helpers import context
from xtune.collectors._stamps import StampReader
from xtune.collectors._time_lines import TimeLines

AT = 1_754_496_683_000_000_000  # 2025-08-06 16:11:23 UTC
HOUR = 3600 * 10**9


@pytest.mark.parametrize(
    ("line", "zone", "ns"),
    [
        ("1754496683", None, AT),
        ("1754496683.5", None, AT + 500_000_000),
        ("1754496683,25", None, AT + 250_000_000),
        ("1754496683000", None, AT),
        ("=== 2025-08-06T16:11:23Z ===", None, AT),
        ("[2025-08-06 18:11:23+02:00]", None, AT),
        ("2025-08-06 18:11:23", "Europe/Berlin", AT),
        ("Wed Aug  6 16:11:23 UTC 2025", None, AT),
        ("Wed Aug  6 16:11:23 UTC 2025", "Europe/Berlin", AT),
        ("Wed Aug  6 04:11:23 PM UTC 2025", None, AT),
        ("Wed Aug  6 12:11:23 AM UTC 2025", None, AT - 16 * HOUR),
        ("Wed Aug  6 18:11:23 CEST 2025", "Europe/Berlin", AT),
        ("Wed Aug  6 18:11:23 2025", "Europe/Berlin", AT),
        # Zones without letters, such as Sao Paulo's: the offset counts, whatever the user says.
        ("Wed Aug  6 13:11:23 -03 2025", None, AT),
        ("Wed Aug  6 21:41:23 +0530 2025", "UTC", AT),
        # A name that the user's zone does not have then, contradicts it.
        ("Wed Aug  6 18:11:23 CEST 2025", "UTC", None),
        ("Wed Aug  6 18:11:23 CST 2025", "Asia/Shanghai", AT - 6 * HOUR),
        # No zone, no time; and what no calendar or clock has.
        ("Wed Aug  6 18:11:23 CEST 2025", None, None),
        ("Wed Aug  6 18:11:23 2025", None, None),
        ("Wed Aug 46 18:11:23 UTC 2025", None, None),
        ("Wed Aug  6 18:11:23 +9900 2025", "UTC", None),
        ("9999999999999999999", None, None),
        ("9223372036.99", None, None),
    ],
)
def test_lines_that_are_a_time(line: str, zone: str | None, ns: int | None) -> None:
    assert TimeLines(context(tz=zone)).take(line) == (True, ns)


@pytest.mark.parametrize(
    "line", ["", "rx_bytes: 1754496683", "12", "port 1", "2025-08-06", "=" * 99]
)
def test_other_lines_are_none(line: str) -> None:
    assert TimeLines(context()).take(line) == (False, None)


def test_local_times_without_a_zone_are_counted() -> None:
    times = TimeLines(context())
    for line in ("Wed Aug  6 18:11:23 2025", "2025-08-06 18:11:23"):
        times.take(line)
    assert [(n.text, n.count) for n in times.stamps.notes()] == [
        ("local times without a zone are null: give --tz", 2)
    ]


@pytest.mark.parametrize("odd", ["12:00:61Z", "12:00:00+25:00", "12:00:00-0375", "25:00:00Z"])
def test_a_stamp_of_no_clock_is_null_not_utc(odd: str) -> None:
    stamps = StampReader(context(tz="UTC"))
    assert stamps.last(f"2025-08-06 {odd}") is None
    assert [n.text for n in stamps.notes()] == ["times that no calendar has: null"]


def test_a_leap_second_is_one() -> None:
    stamps = StampReader(context())
    after = stamps.last("2017-01-01T00:00:00Z")
    assert after == stamps.last("2016-12-31T23:59:60Z") == 1_483_228_800_000_000_000
