"""DuckDB pipelines: raw telemetry to rates, levels, episodes and what they cost."""

from xtune.pipelines._summary import RebuildSummary, ShardSummary
from xtune.pipelines._work import Shard
from xtune.pipelines.listing import list_episodes, list_ports
from xtune.pipelines.query import query
from xtune.pipelines.rules import EpisodeRules
from xtune.pipelines.runner import Engine, plan_rebuild, rebuild, rebuild_shard

__all__ = [
    "Engine",
    "EpisodeRules",
    "RebuildSummary",
    "Shard",
    "ShardSummary",
    "list_episodes",
    "list_ports",
    "plan_rebuild",
    "query",
    "rebuild",
    "rebuild_shard",
]
