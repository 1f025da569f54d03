"""docs/compression.md says what was measured and what the engine does."""

from __future__ import annotations

import re

from tests.proofs import docs
from xtune.policies.compress.exchange import FAILURES_IN_ROW
from xtune.policies.compress.wire import plan_wire_bytes, saved_share
from xtune.policies.spec import PARAMETERS


def test_the_table_is_what_was_measured() -> None:
    _, inside, _ = docs.LISTED.split(docs.LISTED.page.read_text())
    assert inside == docs.table(), "python -m tests.proofs.docs writes it anew"


def test_parameters_that_the_page_names_are_the_policys() -> None:
    page = docs.LISTED.page.read_text()
    known = {path.rpartition(".")[2] for path in PARAMETERS}
    named = set(re.findall(r"`(residual_\w+|allocation|error_budget|head_share|dense_\w+_elements|"
                           r"warmup_iterations)\b", page))  # fmt: skip
    assert len(named) >= 8
    assert named <= known


def test_ratios_in_the_page_are_those_of_the_formula() -> None:
    page = docs.LISTED.page.read_text()
    size, world = 10**9, 64
    dense = {2: 2 * 63 * 2 * size // 64, 4: 2 * 63 * 4 * size // 64}
    for bits in (4, 8):
        sent = plan_wire_bytes([size], [bits], world)
        for width in (2, 4):
            saved = saved_share(sent, dense[width])
            assert f"{100 * (saved or 0):.1f} %" in page
    assert f"after {FAILURES_IN_ROW} buckets in a row" in page
