"""What decides rows beside the inputs: the source of the pipelines, and the rules."""

from __future__ import annotations

from functools import cache
from importlib import resources

from xtune.pipelines._state import digest
from xtune.pipelines.rules import EpisodeRules


@cache
def source_digest() -> str:
    """Digest of the source of the pipelines."""
    folder = resources.files("xtune.pipelines")
    sources = [*folder.iterdir(), *(folder / "sql").iterdir()]
    return digest(
        {path.name: path.read_text() for path in sources if path.name.endswith((".py", ".sql"))}
    )


def code_digest(rules: EpisodeRules) -> str:
    """Digest of the source and the rules."""
    return digest(source_digest(), rules.to_json())
