"""Arbitrary bytes never raise, and good lines beside bad ones are kept."""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.collectors_ib.helpers import Result, claims, run
from tests.collectors_ib.test_ibdiagnet import WHOLE
from tests.collectors_ib.test_ibnetdiscover import ports_form, topology
from tests.collectors_ib.test_prometheus import EXPOSITION, NODE, matrix, series

AT = 1_737_652_060_000_000_000
LINES = "".join(
    f"infiniband,device=mlx5_{i % 3},host=h,port=1 port_xmit_data={i}i {AT + i}\n"
    for i in range(12)
)
RESPONSE = matrix(
    series("node_infiniband_link_downed_total", NODE, *range(6)),
    series("node_infiniband_port_transmit_wait_total", NODE, *range(6)),
)
BASES = {
    "telegraf": LINES,
    "ibdiagnet": WHOLE,
    "ibnetdiscover": topology(),
    "ibdiagnet_dump": topology(),
    "prometheus": RESPONSE,
    "prometheus_text": EXPOSITION,
}


def read_bytes(kind: str, data: bytes) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "input"
        path.write_bytes(data)
        claims(path)
        return run(kind, path)


@st.composite
def mutated(draw: st.DrawFn, base: bytes) -> bytes:
    """``base`` with a few bytes replaced, removed or put in, and perhaps cut."""
    data = bytearray(base)
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        length = draw(st.integers(0, 12))
        data[at : at + length] = draw(st.binary(max_size=12))
    if draw(st.booleans()):
        del data[draw(st.integers(0, len(data))) :]
    return gzip.compress(bytes(data)) if draw(st.booleans()) else bytes(data)


@pytest.mark.parametrize("kind", sorted(BASES))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_mutated_input_never_raises(kind: str, data: st.DataObject) -> None:
    read_bytes(kind, data.draw(mutated(BASES[kind].encode())))


@pytest.mark.parametrize("kind", sorted(BASES))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.binary(max_size=400))
def test_arbitrary_bytes_never_raise_and_record_nothing(kind: str, data: bytes) -> None:
    result = read_bytes(kind, data)
    assert result.counters == []
    read_bytes(kind, b"\x1f\x8b" + data)


_JUNK = st.text(
    st.characters(codec="utf-8", exclude_characters="\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"),
    max_size=40,
)


def _kept(kind: str, rows: Callable[[Result], list[object]], good: str, junk: list[str]) -> None:
    """Junk lines between good ones change nothing of what the good ones say."""
    lines = good.splitlines()
    step = max(1, len(lines) // (len(junk) + 1))
    for index, text in enumerate(junk):
        # Marked, so that no junk is a good line by chance.
        lines.insert((index + 1) * step + index, f"?junk? {text}")
    mixed = read_bytes(kind, "\n".join(lines).encode() + b"\n")
    assert rows(mixed) == rows(read_bytes(kind, good.encode()))
    assert len(mixed.rejects) >= 1


def _counted(result: Result) -> list[object]:
    # Without a host a link id holds a hash of the content, which junk changes.
    return [
        (r["link"].split("/")[-2:], r["ts"], r["port_xmit_data"], r["symbol_error"])
        for r in result.counters
    ]


def _linked(result: Result) -> list[object]:
    # A link that junk hides at one end is told by its other: later, but the same.
    return sorted(result.links, key=str)


@pytest.mark.parametrize(
    ("kind", "good", "rows"),
    [
        ("telegraf", LINES, _counted),
        ("ibdiagnet", WHOLE, _counted),
        ("ibdiagnet", WHOLE, _linked),
        ("ibnetdiscover", topology(), _linked),
        ("ibnetdiscover", ports_form(), _linked),
        ("prometheus_text", EXPOSITION, _counted),
    ],
)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(junk=st.lists(_JUNK, min_size=1, max_size=5))
def test_good_lines_beside_bad_ones_are_kept(
    kind: str, good: str, rows: Callable[[Result], list[object]], junk: list[str]
) -> None:
    _kept(kind, rows, good, junk)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(cut=st.integers(0, len(RESPONSE)))
def test_a_response_cut_anywhere_keeps_every_whole_sample(cut: int) -> None:
    whole = [[("link_downed", i), ("port_xmit_wait", i)] for i in range(6)]
    told = {pair for row in whole for pair in row}
    result = read_bytes("prometheus", RESPONSE[:cut].encode())
    found = {
        (name, r[name])
        for r in result.counters
        for name in ("link_downed", "port_xmit_wait")
        if r[name] is not None
    }
    assert found <= told
    first, _, second = RESPONSE[:cut].partition('}, {"metric"')
    for text, name in ((first, "link_downed"), (second, "port_xmit_wait")):
        complete = text.count('"]')  # each pair ends like that
        assert {pair for pair in found if pair[0] == name} == {(name, i) for i in range(complete)}
    assert result.rejects or cut == len(RESPONSE)
