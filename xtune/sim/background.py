"""The background of one run: stretches of time with or without a congestion episode.

A semi-Markov process in seconds: clear gaps are exponential, episodes gamma, their depths
log-normal, all with fitted parameters. Other jobs do not wait for ours, so a policy that trains
faster meets fewer episodes on the way. The process depends on the seed alone: every policy meets
the same one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from xtune.sim.calibration import Calibration
from xtune.sim.fit_episodes import clear_gap_s
from xtune.sim.network import CLEAR, State, state_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """A stretch of time in one state; ``place`` says where congestion strikes in it."""

    end_s: float
    state: State
    place: int


class Background:
    """Walks forward through the stretches of one seed.

    Args:
        calibration: Where the process is from.
        seed: Of the run.
    """

    def __init__(self, calibration: Calibration, seed: int) -> None:
        self._random = np.random.default_rng([seed, 0xBAC])
        self._length_s = calibration["episode_length_s"]
        self._shape = calibration["episode_length_shape"]
        rate = calibration["episode_rate_per_h"]
        self._gap_s = clear_gap_s(rate, self._length_s)
        self._hit = calibration["episode_hit_share"]
        self._log_depth = math.log(max(1.0, calibration["episode_slowdown"]))
        self._sigma = calibration["episode_slowdown_sigma"]
        self._edge = calibration["episode_edge_share"]
        self._episode_next = False
        self.now = Stretch(end_s=0.0, state=CLEAR, place=0)

    def at(self, time_s: float) -> Stretch:
        """The stretch at a time; times must not run backwards."""
        while time_s >= self.now.end_s:
            self.now = self._next()
        return self.now

    def _next(self) -> Stretch:
        # Every stretch takes the same number of draws, so that one parameter's value never shifts
        # what another parameter draws.
        uniform = self._random.random(3)
        length, normal = self._random.standard_gamma(self._shape), self._random.standard_normal()
        place = int(uniform[2] * 2**30)
        episode, self._episode_next = self._episode_next, not self._episode_next
        if not episode:
            gap = (
                -math.log1p(-float(uniform[0])) * self._gap_s
                if self._gap_s < math.inf
                else math.inf
            )
            return Stretch(end_s=self.now.end_s + gap, state=CLEAR, place=place)
        state = CLEAR
        if uniform[0] < self._hit:
            depth = math.exp(self._log_depth + self._sigma * normal)
            state = state_of(depth, edge=bool(uniform[1] < self._edge))
        end = self.now.end_s + float(length) / self._shape * self._length_s
        return Stretch(end_s=end, state=state, place=place)
