"""Suites that an addition to xtune passes, by subclassing, in its own tests."""

from xtune.testing.collectors import CollectorConformance

__all__ = ["CollectorConformance"]
