"""Input in, rows of the lake out: finds files, claims them by content, reads each once."""

from xtune.ingest._collect import collect
from xtune.ingest._follow import Follower
from xtune.ingest.host_map import HostMap
from xtune.ingest.summary import FileResult, IngestSummary

__all__ = ["FileResult", "Follower", "HostMap", "IngestSummary", "collect"]
