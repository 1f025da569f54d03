"""What ``--study`` names: a study of xtune, a user's file, or an older study of a lake."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from xtune.errors import StudyError
from xtune.studies._base import Study, all_studies
from xtune.studies._folder import kept_folder
from xtune.studies._space import near
from xtune.studies._toml import STUDY_FILE, Own, load_study

if TYPE_CHECKING:
    from xtune.lake import Lake
    from xtune.sim import Calibration


@dataclass(frozen=True, kw_only=True, slots=True)
class Selected:
    """A study that is to be run.

    Attributes:
        own: The study.
        calibration: That of ``NAME@FINGERPRINT``; ``None``: the latest.
        folder: Its folder there; ``None``: the one of its name.
    """

    own: Own
    calibration: Calibration | None = field(default=None)
    folder: Path | None = None

    @property
    def study(self) -> Study:
        """The study itself."""
        return self.own.study


def select(text: str, lake: Lake) -> Selected:
    """Resolve ``--study``.

    Raises:
        StudyError: There is no such study, or its file is wrong.
    """
    if text.endswith(".toml"):
        return Selected(own=load_study(Path(text)))
    name, at, fingerprint = text.partition("@")
    folder, calibration = kept_folder(lake, name, fingerprint) if at else (None, None)
    known = all_studies()
    if name in known:
        own = Own(study=known[name], base=None)
    else:
        file = (folder or lake.root / "studies" / name) / STUDY_FILE
        if not file.is_file():
            users = sorted(p.parent.name for p in lake.root.glob(f"studies/*/{STUDY_FILE}"))
            raise StudyError(f"there is no study {name!r}", near(name, [*known, *users]))
        own = load_study(file)
    return Selected(own=own, calibration=calibration, folder=folder)
