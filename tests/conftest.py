"""What holds for every test."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

# A time limit on an example would fail where the machine is busy; CI's own profile has none.
settings.register_profile("untimed", settings(), deadline=None)
settings.load_profile("untimed")


@pytest.fixture(autouse=True, scope="session")
def _no_wait_for_the_disk() -> Iterator[None]:
    """No test cuts the power: what a killed process wrote, others read without a flush too.

    A descriptor that is closed is an error all the same.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        yield
