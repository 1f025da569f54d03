"""Several processes on one database: each evaluation is done once, and none is lost."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.studies.analytic import OPTIONS, STUDY, Runs, lake_in, search
from tests.studies.postgres import server
from xtune.errors import StudyError
from xtune.policies.spec import Policy
from xtune.studies._leases import Leases
from xtune.studies._storage import opened


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with server() as (url, _):
        yield url


def quiet(text: str) -> None:
    raise AssertionError(text)


@contextmanager
def process(url: str, name: str, note: Callable[[str], None] = quiet, **how: Any) -> Iterator[Any]:
    """Leases on a storage of its own, as another process has."""
    with opened(Path(), url) as storage, Leases(storage, name, note, **how) as leases:
        yield leases


def test_one_of_two_gets_it_and_what_is_released_is_said(postgres: str) -> None:
    with process(postgres, "a#leases") as one, process(postgres, "a#leases") as two:
        assert one.claim("x", again=False) == "mine"
        assert two.claim("x", again=False) == "held"
        assert two.claim("y", again=False) == "mine"
        one.release("x")
        assert two.claim("x", again=False) == "released"
        assert two.claim("x", again=True) == "mine"
        assert one.claim("x", again=True) == "held"


@pytest.mark.slow
def test_of_many_at_once_one_gets_it(postgres: str) -> None:
    """Eight threads with connections of their own, on ten keys."""
    start = threading.Barrier(8)
    got: dict[str, list[str]] = {str(k): [] for k in range(10)}

    def contend() -> None:
        with process(postgres, "b#leases") as leases:
            start.wait()
            for key, answers in got.items():
                answers.append(leases.claim(key, again=False))
            start.wait()

    with process(postgres, "b#leases"):
        threads = [threading.Thread(target=contend) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for answers in got.values():
        assert sorted(answers) == ["held"] * 7 + ["mine"]


def test_what_a_dead_process_held_is_taken_over_and_said(postgres: str) -> None:
    """A beat that stands still is told from one that goes on by the clock of who waits."""
    said: list[str] = []
    with ExitStack() as stack:
        quick: dict[str, Any] = {"lease_s": 0.6, "beat_s": 0.1}
        # It beats too seldom: as one that was killed.
        dead = stack.enter_context(process(postgres, "c#leases", lease_s=99.0, beat_s=99.0))
        alive = stack.enter_context(process(postgres, "c#leases", **quick))
        waits = stack.enter_context(process(postgres, "c#leases", said.append, **quick))
        assert dead.claim("x", again=False) == "mine"
        assert alive.claim("y", again=False) == "mine"
        deadline = time.monotonic() + 30
        while (answer := waits.claim("x", again=False)) == "held":
            assert waits.claim("y", again=False) == "held"
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert answer == "mine"
        assert waits.claim("y", again=False) == "held"
        dead.release("x")  # it was only slow: nothing breaks
        assert alive.claim("x", again=False) == "held"
    assert said == ["a process that held an evaluation is gone: it is done again"]


class Slow(Runs):
    """Takes long enough that another process finds work."""

    def submit(self, *args: Any, **named: Any) -> Any:
        time.sleep(0.01)
        return super().submit(*args, **named)


@pytest.mark.slow
def test_processes_on_one_postgres_share_a_study_and_do_nothing_twice(
    postgres: str, tmp_path: Path
) -> None:
    """Three coordinators at once; the result is that of one alone on a journal."""
    whole = lake_in(tmp_path / "whole")
    alone = Runs()
    expected = search(whole, alone)
    options = replace(OPTIONS, storage=postgres)
    lakes = [lake_in(tmp_path / str(i)) for i in range(3)]
    runs = [Slow() for _ in lakes]
    documents: dict[int, Any] = {}

    def coordinate(i: int) -> None:
        documents[i] = search(lakes[i], runs[i], options=options)

    threads = [threading.Thread(target=coordinate, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [documents[i] for i in range(3)] == [expected] * 3
    assert sorted(run for each in runs for run in each.ran) == sorted(alone.ran)
    assert sum(bool(each.ran) for each in runs) >= 2


@pytest.mark.slow
def test_an_interrupted_search_in_a_database_goes_on_at_once(
    postgres: str, tmp_path: Path
) -> None:
    """It gave its leases back: nobody waits for them."""
    few = replace(STUDY, name="few", trials=5)
    options = replace(OPTIONS, storage=postgres)
    lake = lake_in(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        search(lake, Runs(stop_after=9), study=few, options=options)
    began = time.monotonic()
    document = search(lake, study=few, options=options)
    assert time.monotonic() - began < 25  # a lease lasts 30 s
    assert document == search(lake_in(tmp_path / "other"), study=few)


@pytest.mark.slow
def test_a_database_that_goes_away_is_one_line(tmp_path: Path) -> None:
    with server() as (url, stop):

        def lose(policy: Policy, metrics: dict[str, float]) -> None:
            if len(runs.ran) == 20:
                stop()

        runs = Runs(rule=lose)
        secret = url.replace("xtune@", "xtune:s3cret@")
        with pytest.raises(StudyError, match=r"storage .* was lost: ") as caught:
            search(lake_in(tmp_path), runs, options=replace(OPTIONS, storage=secret))
        assert "\n" not in str(caught.value)
        assert "s3cret" not in "".join(traceback.format_exception(caught.value))
