"""Telemetry with known congestion, from a fluid model of its own, and scores of what is found."""

from tests.planted.build import Planted, generate
from tests.planted.scores import Score, score

__all__ = ["Planted", "Score", "generate", "score"]
