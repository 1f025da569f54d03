"""Dumps of 16 ranks, twice; the companion texts tell which ranks were made to fail."""

from tests.expected._expected import Expected

_HOW = "len(pickle.load(f)['entries']) in Python; an empty dump is one row that says so"


def _dump(entries: int) -> Expected:
    return Expected(kind="flight_recorder", rows={"collectives": max(entries, 1)}, how=_HOW)


#: Ranks 9 and 14 were hung: in the second folder they could not answer at all.
_ENTRIES = {
    "gpu_error_2nd": {
        rank: 11 if rank < 8 else 20 if rank in (9, 14) else 25 for rank in range(16)
    },
    "lock_gil_1st": {rank: 11 if rank < 8 else 0 if rank in (9, 14) else 9 for rank in range(16)},
}

EXPECTED = {
    f"{folder}/_dump_{rank}": _dump(entries)
    for folder, ranks in _ENTRIES.items()
    for rank, entries in ranks.items()
} | {
    f"{folder}/{name}": Expected(kind=None, rejects=1, state="unknown", how=how)
    for folder in _ENTRIES
    for name, how in (
        ("fault_injection.log", "cat: four lines that name the ranks made to fail"),
        ("reference_output.txt", "cat: another tool's verdict on the dumps, a table of two lines"),
    )
}
