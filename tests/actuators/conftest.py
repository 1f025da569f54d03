"""What several tests of actuators need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.actuators.namespaces import Fabric


@pytest.fixture
def fabric() -> Iterator[Fabric]:
    made = Fabric()
    yield made
    made.close()
