"""Where every number is from."""

from __future__ import annotations

import json
from collections.abc import Sequence

from xtune.reports._base import Block, Grid, Section
from xtune.reports._data import Content
from xtune.reports._figures import moment


def build(content: Content) -> Sequence[Block]:
    """Versions, span, inputs, seeds."""
    rows = []
    for name, value in content.provenance.items():
        if name.endswith("_ns") and isinstance(value, int):
            rows.append((name.removesuffix("_ns"), moment(value) + " UTC"))
        else:
            rows.append((name, value if isinstance(value, str) else json.dumps(value)))
    return (Grid(columns=[content.words("item"), content.words("value")], rows=rows),)


SECTION = Section(name="provenance", order=90, title="Provenance", build=build)
