"""The table of what could not be read."""

from __future__ import annotations

from xtune.tables import STR, TS, Column, Table

#: Written by ingest beside the rows of the same input, in the same transaction, so that an input
#: that is read anew replaces its rejects too.
REJECTED = Table(
    "rejected",
    "one piece of an input that could not be read",
    "ts",
    (
        Column("ts", TS, "", "when it was rejected"),
        Column("file", STR, "", "the input, as the user named it"),
        Column("offset", STR, "", "where in it: byte 4711, line 12, a file of a folder"),
        Column("reason", STR, "", "what is wrong with it"),
        Column("hint", STR, "", "what to do about it"),
        Column("collector", STR, "", "the collector that read it; null where none claimed it"),
    ),
    sort=("file", "ts"),
)
