"""What training logs call their measures, and rows of the table ``steps`` made from them.

Only a name that means one thing is taken by itself: a loss per epoch, a loss over samples, an
auxiliary loss or a running total of tokens is left for the user to map (``--map loss=NAME``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from xtune.collectors._base import Context, Note
from xtune.collectors._stamps import STAMP, StampReader
from xtune.collectors._values import natural, real, scaled, text

#: Columns that ``--map`` may name a field for.
MAPPABLE = ("step", "ts", "split", "run", "loss", "grad_norm", "learning_rate", "tokens",
            "step_time_s", "skipped")  # fmt: skip
MEASURES = ("loss", "grad_norm", "learning_rate", "tokens", "step_time_s", "skipped")

_SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "eval", "evaluation"), "validation"),
}
_NOISE = frozenset({"lm", "batch", "global", "avg", "average", "mean"})
_MEANING: dict[frozenset[str], tuple[str, float]] = {
    frozenset({"loss"}): ("loss", 1.0),
    frozenset({"loss", "step"}): ("loss", 1.0),  # Lightning's, beside its mean over the epoch
    frozenset({"grad", "norm"}): ("grad_norm", 1.0),
    frozenset({"gradnorm"}): ("grad_norm", 1.0),
    frozenset({"gradient", "norm"}): ("grad_norm", 1.0),
    frozenset({"lr"}): ("learning_rate", 1.0),
    frozenset({"learning", "rate"}): ("learning_rate", 1.0),
    frozenset({"step", "time"}): ("step_time_s", 1.0),
    frozenset({"step", "time", "s"}): ("step_time_s", 1.0),
    frozenset({"step", "time", "ms"}): ("step_time_s", 1e-3),
    frozenset({"iteration", "time"}): ("step_time_s", 1.0),
    frozenset({"elapsed", "time", "per", "iteration", "ms"}): ("step_time_s", 1e-3),
    frozenset({"elapsed", "time", "per", "iteration", "s"}): ("step_time_s", 1.0),
    frozenset({"number", "of", "skipped", "iterations"}): ("skipped", 1.0),
}
_STEP_NAMES = ("step", "_step", "global_step", "iteration", "iter", "train/global_step",
               "trainer/global_step", "current_step", "current_steps")  # fmt: skip
_TIME_NAMES = ("ts", "timestamp", "_timestamp", "wall_time", "wall time", "time")
_SPLIT_NAMES = ("split", "mode", "phase")


@dataclass(frozen=True, slots=True)
class Measure:
    """What a value of a log is: a column of ``steps``, for a split, after a factor."""

    column: str
    split: str = "train"
    scale: float = 1.0


@lru_cache(maxsize=4096)
def measure_of(name: str) -> Measure | None:
    """The measure that a name means by itself, else ``None``."""
    words = [word for word in re.split(r"[^a-z0-9]+", name[:256].lower()) if word]
    splits = {_SPLITS[word] for word in words if word in _SPLITS}
    rest = frozenset(word for word in words if word not in _SPLITS and word not in _NOISE)
    found = _MEANING.get(rest)
    if found is None or len(splits) > 1 or ("validation" in splits and "step" in rest):
        return None
    return Measure(found[0], splits.pop() if splits else "train", found[1])


@dataclass(slots=True)
class Plan:
    """Which field of a record is what. Made once for records of the same fields.

    Attributes:
        step, time, split, run: Name of the field, or null.
        measures: Field -> measure.
        left: Fields that mean nothing to xtune.
    """

    step: str | None = None
    time: str | None = None
    split: str | None = None
    run: str | None = None
    measures: dict[str, Measure] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, names: Iterable[str], mapping: Mapping[str, str]) -> Plan:
        """Plan for records with ``names``; ``mapping`` (xtune's column -> field) comes first."""
        names = list(names)
        by_lower = {name.strip().lower(): name for name in reversed(names)}

        def pick(column: str, usual: tuple[str, ...]) -> str | None:
            if column in mapping:
                return mapping[column] if mapping[column] in names else None
            return next((by_lower[name] for name in usual if name in by_lower), None)

        plan = cls(
            step=pick("step", _STEP_NAMES),
            time=pick("ts", _TIME_NAMES),
            split=pick("split", _SPLIT_NAMES),
            run=pick("run", ()),
        )
        taken = {plan.step, plan.time, plan.split, plan.run}
        mapped = set()
        for column in MEASURES:
            name = mapping.get(column)
            if name in names and name is not None:
                known = measure_of(name)
                plan.measures[name] = Measure(column, known.split if known else "train")
                mapped.add(column)
        for name in names:
            known = measure_of(name)
            if name in plan.measures or name in taken:
                continue
            if known is None or (known.column in mapped and known.split == "train"):
                plan.left.append(name)
            elif known not in plan.measures.values():
                plan.measures[name] = known
        return plan

    @property
    def useful(self) -> bool:
        """Whether a record has a step and something measured at it."""
        return self.step is not None and bool(self.measures)

    def rows(
        self, record: Mapping[str, Any], context: Context, stamps: StampReader
    ) -> Iterator[dict[str, Any]]:
        """One row a split that the record has a value of; none without a step."""
        step = natural(record.get(self.step)) if self.step is not None else None
        if step is None:
            return
        named = str(record.get(self.split)).strip().lower() if self.split is not None else ""
        found: dict[str, dict[str, Any]] = {}
        for name, measure in self.measures.items():
            value = record.get(name)
            if value is None or value == "":
                continue
            split = _SPLITS.get(named, measure.split)
            row = found.setdefault(split, {})
            row.setdefault(measure.column, as_column(measure, value))
        ts = when(record.get(self.time), stamps) if self.time is not None else None
        run = text(record.get(self.run), 256) if self.run is not None else None
        for split, values in found.items():
            if any(value is not None for value in values.values()):
                yield {
                    "ts": ts,
                    "job": context.job,
                    "run": run or context.run,
                    "step": step,
                    "split": split,
                    **values,
                }


def as_column(measure: Measure, value: Any) -> float | int | None:
    """``value`` in the unit and type of its column; NaN and infinities stay."""
    if measure.column in {"tokens", "skipped"}:
        return natural(value)
    number = real(value)
    if measure.column == "step_time_s":
        number = lasting(number)
    return None if number is None else number * measure.scale


def lasting(value: float | None) -> float | None:
    """``value`` as a length of time: null where it is negative or not finite."""
    return value if value is not None and 0 <= value < math.inf else None


def when(value: Any, stamps: StampReader) -> int | None:
    """Nanoseconds since the epoch of a time field: a number of s, ms, us or ns, or a stamp.

    The unit follows from the size, which is unmistakable from 2001 to 2286; smaller numbers are
    seconds since some start: null, and counted, as is text that is no time.
    """
    if isinstance(value, str) and STAMP.search(value):
        return stamps.last(value)
    if value is None or value == "":
        return None
    number = real(value) or 0.0
    for scale, low in ((1, 10**18), (10**3, 10**15), (10**6, 10**12), (10**9, 10**9)):
        if low <= number < low * 10:
            return scaled(value if isinstance(value, int) else number, scale)
    stamps.unread()
    return None


class Attempts:
    """Notices where a run went back to an earlier step, as it does after a restart.

    Rows of both passes are kept; ``extra`` of the later ones has ``attempt``, from 1 up: the row
    of the highest attempt is the one that training went on from.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[Any, Any], int] = {}
        self._attempt: dict[Any, int] = {}
        self._restarts = 0

    def mark(self, row: dict[str, Any]) -> dict[str, Any]:
        """Add ``attempt`` to a row where it is not the first."""
        run, split = row.get("run"), row["split"]
        if row["step"] <= self._last.get((run, split), -1):
            self._attempt[run] = self._attempt.get(run, 0) + 1
            self._restarts += 1
            # The other splits of the run go back with this one: that is the same restart.
            self._last = {key: step for key, step in self._last.items() if key[0] != run}
        self._last[run, split] = row["step"]
        if run in self._attempt:
            row["extra"] = {**row.get("extra", {}), "attempt": str(self._attempt[run])}
        return row

    def notes(self) -> Iterator[Note]:
        """Say that steps came again."""
        if self._restarts:
            yield Note(
                "steps went back (a restart): rows of both passes are kept, the later ones have"
                " attempt in extra",
                self._restarts,
            )
