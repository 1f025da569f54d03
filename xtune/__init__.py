"""xtune: congestion episodes from cluster telemetry, and a tuned policy to act on them."""

__version__ = "0.1.0"
