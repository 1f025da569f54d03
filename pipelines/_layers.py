"""``reorder_depth`` (N3) and ``layer_statistics`` (C3): one SQL model each."""

from __future__ import annotations

from xtune.pipelines._tables import DayTable

REORDER = DayTable(name="reorder_depth", inputs=("collectives", "decisions"), rests_on=())
LAYERS = DayTable(name="layer_statistics", inputs=("layer_gradients",), rests_on=())
