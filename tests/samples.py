"""Where the public sample files are, for tests marked ``shared_samples``."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def samples(*parts: str) -> Path:
    """Path below XTUNE_SAMPLES; skips the test, saying so, where it is absent."""
    root = os.environ.get("XTUNE_SAMPLES")
    if not root:
        pytest.skip("XTUNE_SAMPLES is not set: public sample files are not here")
    path = Path(root).joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{path} does not exist")
    return path
