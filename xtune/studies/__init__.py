"""Studies: searches over a policy's fields, resumable and the same for any number of workers."""

from xtune.studies._base import (
    Constraint,
    Dimension,
    Objective,
    Study,
    all_studies,
    find_study,
)
from xtune.studies._evaluate import Progress
from xtune.studies._folder import latest_calibration
from xtune.studies._options import Options
from xtune.studies._result import load_result, with_provenance
from xtune.studies._run import compare, run_study
from xtune.studies._select import select

__all__ = [
    "Constraint",
    "Dimension",
    "Objective",
    "Options",
    "Progress",
    "Study",
    "all_studies",
    "compare",
    "find_study",
    "latest_calibration",
    "load_result",
    "run_study",
    "select",
    "with_provenance",
]
