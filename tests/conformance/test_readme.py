"""The README lists every format as ``xtune collect --list`` does."""

from __future__ import annotations

from tests.conformance import formats


def test_the_table_is_what_the_collectors_say() -> None:
    _, inside, _ = formats.split(formats.README.read_text())
    assert inside == formats.table(), "python -m tests.conformance.formats writes it anew"
