"""The lake: Parquet files, and a ledger that says which of them count.

A reader asks the ledger, never the folder, so it sees whole files only. A writer collects what it
writes in a transaction that appears with one rename, or not at all.
"""

from xtune.lake._conflict import BusyError, ConflictError
from xtune.lake._inputs import Inputs
from xtune.lake._lake import Lake
from xtune.lake._records import DataFile, InputRecord, InputState
from xtune.lake._rejected import REJECTED
from xtune.lake._transaction import Transaction
from xtune.lake.health import Health, inspect, mend_of, torn
from xtune.lake.names import link_names
from xtune.lake.prune import Pruned, prune

__all__ = [
    "REJECTED",
    "BusyError",
    "ConflictError",
    "DataFile",
    "Health",
    "InputRecord",
    "InputState",
    "Inputs",
    "Lake",
    "Pruned",
    "Transaction",
    "inspect",
    "link_names",
    "mend_of",
    "prune",
    "torn",
]
