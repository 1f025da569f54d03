"""Errors of steps, as the proof measures them."""

from __future__ import annotations

import pytest

from xtune.proofs import steps


def test_a_cell_in_its_own_steps_is_within_a_percent(monkeypatch: pytest.MonkeyPatch) -> None:
    found = steps.errors("static", 100.0, places=1)
    assert len(found) == len(steps.SIZES) * len(steps.STATES)
    assert 0.0 < abs(found.mean()) < 0.01
    monkeypatch.setattr(steps, "SHORTER", 1)  # beside itself it is off by nothing
    monkeypatch.setattr(steps, "SIZES", (65536,))
    assert steps.errors("static", 100.0, places=1).tolist() == [0.0, 0.0]
