"""Bit error rates: that none was seen is one thing, that nothing was said another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.collectors_ib.helpers import run_text
from xtune.collectors._ber import bit_error_rate


@pytest.mark.parametrize(
    ("printed", "rate", "none_seen"),
    [
        ("1E-11", 1e-11, False),
        (" 1.5e-10 ", 1.5e-10, False),
        (2e-9, 2e-9, False),
        ("0.001", 0.001, False),
        ("15E-255", None, True),
        ("1.5E-254", None, True),
        ("0E-0", None, True),
        (0.0, None, True),
        ("2.0", None, False),  # more errors than bits
        ("garbage", None, False),
        ("1E-", None, False),
        ("nan", None, False),
        (None, None, False),
    ],
)
def test_rates(printed: Any, rate: float | None, none_seen: bool) -> None:
    assert bit_error_rate(printed) == (rate, none_seen)


@pytest.mark.parametrize(
    ("printed", "extra"), [("cut", []), ("15E-255", [{"raw_ber_is": "no error observed"}])]
)
def test_a_damaged_rate_is_not_a_clean_link(
    tmp_path: Path, printed: str, extra: list[dict[str, str]]
) -> None:
    text = f"timestamp,node_guid,port_num,Raw_BER\n1709652347161873,0x1,1,{printed}\n"
    signal = run_text("ufm", tmp_path, text).rows("link_signal")
    assert [row["extra"] for row in signal] == extra
    assert all(row["raw_ber"] is None for row in signal)
