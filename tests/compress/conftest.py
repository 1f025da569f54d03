"""What tests of several files share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .interpreter import Interpreters, interpreting


@pytest.fixture(scope="session")
def interpreters() -> Iterator[Interpreters]:
    """Processes that interpret Triton's kernels, of tests in the group ``triton``."""
    with interpreting() as processes:
        yield processes
