"""The thresholds again, searched by a Gaussian process: fewer trials, each dearer to draw."""

from __future__ import annotations

from dataclasses import replace

from xtune.studies import thresholds

STUDY = replace(
    thresholds.STUDY,
    name="thresholds_gp",
    title="thresholds, searched by a Gaussian process",
    sampler="gp",
    trials=60,
)
