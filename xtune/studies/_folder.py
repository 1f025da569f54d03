"""A study's folder in the lake, and the calibration that it is for."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from xtune.errors import NoDataError, StudyError
from xtune.files import write_atomically
from xtune.studies._storage import alone, shared, together

if TYPE_CHECKING:
    from xtune.lake import Lake
    from xtune.sim import Calibration

MARK = "calibration.json"  # in a study's folder: which calibration its trials are for


def latest_calibration(lake: Lake) -> Calibration:
    """The calibration written last.

    Raises:
        NoDataError: Nothing is calibrated.
    """
    from xtune.sim import Calibration

    files = sorted(
        (lake.root / "calibrations").glob("*.json"), key=lambda p: (p.stat().st_mtime_ns, p.name)
    )
    if not files:
        raise NoDataError("nothing is calibrated", "run xtune calibrate")
    return Calibration.load(files[-1])


@contextmanager
def held_folder(
    lake: Lake, name: str, fingerprint: str, url: str, folder: Path | None = None
) -> Iterator[tuple[Path, str | None]]:
    """The study's folder, held: nobody moves it meanwhile, and none but those that share it run.

    Args:
        lake: Where it is.
        name: The study's.
        fingerprint: Of the calibration.
        url: The storage.
        folder: Of :func:`kept_folder`, which is not to be moved; ``None``: claim the name's.

    Returns:
        The folder, and where that of another calibration went, if it did.

    Raises:
        StudyError: Another process has it.
    """
    place = lake.root / "studies" / name
    moved = None
    with ExitStack() as stack:
        if not shared(url):
            stack.enter_context(alone(place, url))
        elif folder is None and not _is_of(place, fingerprint):
            with alone(place):  # for the move alone
                moved = claim_folder(lake, name, fingerprint)[1]
        if shared(url):
            stack.enter_context(together(place))
            if folder is None and not _is_of(place, fingerprint):
                raise StudyError(
                    f"{place}: another xtune tune runs this study on another calibration",
                    "wait for it",
                )
        elif folder is None:
            moved = claim_folder(lake, name, fingerprint)[1]
        if folder is not None and not _is_of(folder, fingerprint):
            raise StudyError(f"{folder} was moved meanwhile", "the same command goes on")
        yield folder or place, moved


def _is_of(folder: Path, fingerprint: str) -> bool:
    return _marked(folder / MARK) == fingerprint


def claim_folder(lake: Lake, name: str, fingerprint: str) -> tuple[Path, str | None]:
    """The study's folder; one of another calibration is moved to ``<name>@<fingerprint>``.

    For :func:`held_folder`, under whose lock it is called.

    Returns:
        The folder, and where the old one went, if it did.
    """
    folder = lake.root / "studies" / name
    moved = None
    mark = folder / MARK
    if mark.is_file():
        old = _marked(mark)
        if old != fingerprint:
            aside = folder.with_name(f"{name}@{old}")
            while aside.exists():
                aside = aside.with_name(aside.name + "~")
            os.replace(folder, aside)
            moved = aside.name
            back = folder.with_name(f"{name}@{fingerprint}")
            if back.is_dir():
                os.replace(back, folder)
    folder.mkdir(parents=True, exist_ok=True)
    if not mark.is_file():
        text = json.dumps({"schema": 1, "fingerprint": fingerprint}) + "\n"
        write_atomically(mark, text.encode())
    return folder, moved


def kept_folder(lake: Lake, name: str, fingerprint: str) -> tuple[Path, Calibration]:
    """The folder of ``name@fingerprint``, and its calibration; nothing is moved.

    Raises:
        StudyError: There is no such study, or its calibration is gone.
    """
    from xtune.sim import Calibration

    place = lake.root / "studies"
    path = lake.root / "calibrations" / f"{fingerprint}.json"
    folder = place / f"{name}@{fingerprint}"
    if not folder.is_dir() and _marked(place / name / MARK) == fingerprint:
        folder = place / name
    if not folder.is_dir():
        known = sorted(p.name for p in place.glob(f"{name}@*"))
        raise StudyError(
            f"there is no study {name}@{fingerprint}",
            f"there are: {', '.join(known)}" if known else f"run xtune tune --study {name}",
        )
    if not path.is_file():
        raise StudyError(
            f"the calibration of {name}@{fingerprint} is gone", f"it was {path}; tune anew"
        )
    return folder, Calibration.load(path)


def _marked(mark: Path) -> str:
    """The fingerprint in a study's mark; ``unknown`` where it is not one that we wrote."""
    try:
        found = json.loads(mark.read_text("utf-8"))["fingerprint"]
    except (OSError, ValueError, KeyError, TypeError):
        return "unknown"
    return found if isinstance(found, str) and found.isalnum() else "unknown"
