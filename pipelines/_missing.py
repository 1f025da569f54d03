"""Derived files that are gone or torn: nothing is lost, since what they held can be made again."""

from __future__ import annotations

from xtune.lake import Lake, torn
from xtune.tables import DERIVED_TABLES


def forget_missing(lake: Lake) -> int:
    """Take derived files that are gone or torn out of the ledger; how many there were.

    Whoever emptied ``derived/`` by hand gets the tables back from the next rebuild. Where the raw
    rows were pruned meanwhile, there is nothing to make them from.
    """
    files = (file for name in DERIVED_TABLES for file in lake.files(name))
    gone = [file for file, _ in torn(files)]
    if gone:
        with lake.begin() as transaction:
            for file in gone:
                transaction.remove(file)
            transaction.commit()
    return len(gone)
