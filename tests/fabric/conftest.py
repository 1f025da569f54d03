"""The fabric that these tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fabric._fat_tree import FatTree
from tests.fabric._simulator import Simulator


@pytest.fixture(scope="session")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulator]:
    """Four spines, eight leaves, 64 hosts, with a subnet manager that has brought it up."""
    simulator = Simulator(tmp_path_factory.mktemp("fabric"), FatTree())
    yield simulator
    simulator.stop()
