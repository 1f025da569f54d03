"""docs/pipelines.md says what the code does: tables, thresholds, causes."""

from __future__ import annotations

import re

from tests.pipelines import docs
from xtune.cli._episode_text import _PHRASES
from xtune.pipelines import EpisodeRules
from xtune.tables import TABLES


def test_the_list_of_tables_is_that_of_the_contracts() -> None:
    _, inside, _ = docs.LISTED.split(docs.LISTED.page.read_text())
    assert inside == docs.table(), "python -m tests.pipelines.docs writes it anew"


def test_thresholds_are_the_rules() -> None:
    rules, page = EpisodeRules(), docs.LISTED.page.read_text()
    rows = re.findall(r"^\| .*(?:share|packets/s).* \| ([\d., ]+) \| ([\d., ]+) \|$", page, re.M)
    found = [tuple(tuple(map(_number, cell.split(", "))) for cell in row) for row in rows]
    assert found == [
        (rules.enter_wait, rules.exit_wait),
        (rules.enter_marks, rules.exit_marks),
        (rules.enter_discards, rules.exit_discards),
    ]
    assert rules.min_length_s == 2.0 and "at least 2 s and two samples" in page
    assert (rules.min_samples, rules.max_gap_s, rules.report_level) == (2, 10.0, 2)


def _number(text: str) -> float:
    return float(text.replace(" ", ""))


def test_every_cause_of_the_contract_is_told() -> None:
    [column] = [c for c in TABLES["derived/episodes"].columns if c.name == "cause"]
    told = re.findall(
        r"^\| `(\w+)` \| ", docs.LISTED.page.read_text().split("told apart")[1], re.M
    )
    assert sorted(told) == sorted(column.meaning.split(", "))


def test_evidence_named_in_the_docs_is_shown_in_a_line() -> None:
    causes = docs.LISTED.page.read_text().split("told apart")[1].split("## ")[0]
    named = {name for row in causes.splitlines() if row.startswith("| `")
             for name in re.findall(r"`(\w+)`", row.rsplit("|", 2)[1])}  # fmt: skip
    shown = set(_PHRASES) | {"errors_counted_by", "siblings"}  # in another key's phrase
    assert named and named <= shown
