"""Leases: several processes on one storage do no evaluation twice.

A lease is a trial of a study of its own. Optuna lets one process alone take a waiting trial to
running, whatever the database; all processes take the first of an evaluation's tickets. Its owner
counts a beat up for as long as it lives. One that sees the beat stand still, by its own clock,
issues the next ticket: clocks of several hosts are never compared.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

BEAT_S = 5.0
LEASE_S = 30.0  # without a beat, its owner is dead


class NoLeases:
    """For a storage that one process holds alone."""

    shared = False

    def claim(self, key: str, again: bool) -> str:
        """Everything is free."""
        return "mine"

    def release(self, key: str) -> None:
        """Nothing is held."""


class Leases:
    """The leases of one study.

    Args:
        storage: A database that several processes may write to.
        name: Of Optuna's study that holds the tickets.
        note: Called with a line for the user.
        lease_s: A lease without a beat for that long is lost.
        beat_s: Time between two beats.
    """

    shared = True

    def __init__(
        self,
        storage: BaseStorage,
        name: str,
        note: Callable[[str], None],
        *,
        lease_s: float = LEASE_S,
        beat_s: float = BEAT_S,
    ) -> None:
        import optuna

        self._storage, self._note = storage, note
        self._lease_s, self._beat_s = lease_s, beat_s
        self._study = optuna.create_study(storage=storage, study_name=name, load_if_exists=True)
        self._mine: dict[str, int] = {}  # key -> id of the ticket
        self._seen: dict[int, tuple[Any, float]] = {}  # ticket -> its beat, and since when
        self._end = threading.Event()
        self._beating = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Leases:
        self._beating.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give back what is held: an interrupted process need not be waited for."""
        self._end.set()
        self._beating.join()
        for key in list(self._mine):
            self.release(key)

    def claim(self, key: str, again: bool) -> str:
        """Try to take an evaluation.

        Args:
            key: The evaluation.
            again: Take it though it was released before: its outcome is not what is needed.

        Returns:
            ``mine``; ``held`` by another process; or ``released``: look for its outcome.
        """
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        tickets = self._tickets(key)
        if not tickets:
            return self._issue(key, 0)
        ticket = tickets[-1]
        turn = ticket.user_attrs["turn"]
        first = next(t for t in tickets if t.user_attrs["turn"] == turn)
        if first.state == TrialState.WAITING:
            return self._take(key, first)
        if first.state.is_finished():
            return self._issue(key, turn + 1) if again else "released"
        if self._stands_still(first):
            with suppress(UpdateFinishedTrialError):  # its owner, or another that waited
                self._storage.set_trial_state_values(first._trial_id, TrialState.FAIL)
            self._note("a process that held an evaluation is gone: it is done again")
            return self._issue(key, turn + 1)
        return "held"

    def release(self, key: str) -> None:
        """An evaluation's outcome is stored, or will not be."""
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        ticket = self._mine.pop(key)
        with suppress(UpdateFinishedTrialError):  # it was thought to be lost
            self._storage.set_trial_state_values(ticket, TrialState.COMPLETE, [0.0])

    def _issue(self, key: str, turn: int) -> str:
        """A new ticket; where two processes issue one at a time, the first stands."""
        from optuna.trial import TrialState, create_trial

        self._study.add_trial(
            create_trial(state=TrialState.WAITING, user_attrs={"key": key, "turn": turn})
        )
        same = [t for t in self._tickets(key) if t.user_attrs["turn"] == turn]
        return self._take(key, same[0])

    def _take(self, key: str, ticket: FrozenTrial) -> str:
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        try:
            if not self._storage.set_trial_state_values(ticket._trial_id, TrialState.RUNNING):
                return "held"
        except UpdateFinishedTrialError:
            return "released"
        self._mine[key] = ticket._trial_id
        return "mine"

    def _tickets(self, key: str) -> list[FrozenTrial]:
        """Every ticket of an evaluation, the oldest first."""
        every = self._study.get_trials(deepcopy=False)
        return sorted(
            (t for t in every if t.user_attrs.get("key") == key),
            key=lambda t: (t.user_attrs["turn"], t.number),
        )

    def _stands_still(self, ticket: FrozenTrial) -> bool:
        beat, now = ticket.user_attrs.get("beat"), time.monotonic()
        known = self._seen.get(ticket._trial_id)
        if known is None or known[0] != beat:
            self._seen[ticket._trial_id] = (beat, now)
            return False
        return now - known[1] > self._lease_s

    def _beat(self) -> None:
        count = 0
        while not self._end.wait(self._beat_s):
            count += 1
            for ticket in list(self._mine.values()):
                with suppress(Exception):  # released meanwhile, or the database is away a moment
                    self._storage.set_trial_user_attr(ticket, "beat", count)
