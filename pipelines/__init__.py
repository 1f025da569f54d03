"""DuckDB pipelines: raw telemetry to rates, levels, episodes and what they cost."""

from xtune.pipelines.listing import list_episodes, list_ports
from xtune.pipelines.query import query
from xtune.pipelines.rules import EpisodeRules
from xtune.pipelines.runner import RebuildSummary, rebuild

__all__ = ["EpisodeRules", "RebuildSummary", "list_episodes", "list_ports", "query", "rebuild"]
