"""Each of the 23 known bugs of other tools has a test here, named for the right behaviour.

A test's docstring begins with the numbers of its cases and names where the bug was: ``pytest
tests/bugs -v`` and the docstrings are the table.
"""

from __future__ import annotations

import re

from tests.bugs import test_counters, test_losses, test_nccl

CASES = range(1, 24)


def test_no_case_is_missing() -> None:
    found: dict[int, list[str]] = {}
    for module in (test_counters, test_nccl, test_losses):
        for name, value in vars(module).items():
            case = re.match(r"Case (\d+)\. \S", value.__doc__ or "") if callable(value) else None
            if case:
                found.setdefault(int(case[1]), []).append(name)
    assert sorted(found) == list(CASES), found
