"""The README lists every format as ``xtune collect --list`` does."""

from __future__ import annotations

import re

from tests.conformance import formats
from xtune.collectors import all_collectors
from xtune.collectors._mapping import unknown_columns


def test_the_table_is_what_the_collectors_say() -> None:
    _, inside, _ = formats.LISTED.split(formats.LISTED.page.read_text())
    assert inside == formats.table(), "python -m tests.conformance.formats writes it anew"


def test_maps_give_our_name_first() -> None:
    """As the command line takes them: ``--map loss=train/loss``."""
    for name, collector in all_collectors().items():
        said = " ".join((collector.produce, collector.gives, collector.lacks))
        for ours in re.findall(r"--map (\w+)=", said):
            assert ours == "NAME" or not unknown_columns([ours]), f"{name}: {ours}"
