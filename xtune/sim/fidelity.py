"""What the simulated loop gives away: its step times against whole runs of the fabric.

The loop (rung C) takes phase times from cells (rung B): sampled at four places, between depths a
quarter octave apart, at sizes a quarter octave apart, beyond a window carried on by a rate, on a
slice of the fabric where the job is large. Here windows of the same background are run on rung A
as they are: at their own depth, place and size, on all hosts, in short steps. What stays out is
what both share: a phase keeps the background that it began with, and the traffic that the loop
adds beside data parallel is left out.

How an error bar carries it. An absolute figure (a step time, a time to target) is off by ``bias``
and uncertain by ``sd`` beside its bootstrap interval: both relative, added in quadrature. A paired
difference of two policies has the same windows in both, where most of the error cancels:
``difference`` gives its bias and sd.

A part that is too large to run whole is compared at the largest size that the budget allows.

``python -m xtune.sim.fidelity --lake DIR``, or ``--scenario NAME``, prints it for the presets.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from xtune.console import note
from xtune.files import writable_cache_folder, write_atomically
from xtune.policies.plan import Plan
from xtune.policies.presets import PRESETS, preset
from xtune.policies.spec import Policy, Routing
from xtune.sim.background import Background, Stretch
from xtune.sim.cache import Key, PhaseCache, Phases, Sample, makers_digest, routing_digest
from xtune.sim.calibration import Calibration, Parameter
from xtune.sim.loop import Step, bucket_seconds, finish_times, ready_shares, simulate, start_up_s
from xtune.sim.network import CLEAR, SAMPLES, Network, State
from xtune.sim.scenarios import SCENARIOS, scenario
from xtune.sim.workload import Wire, Workload

WINDOWS = 8  # stretches of congestion that are compared, and one clear one
MOST_STEPS = 20_000  # of the run whose plans are taken
HORIZON_STEPS = 3000  # clean steps: how long windows are looked for
BUDGET_BYTES = 16 << 32  # of all hosts together in one run: a second; sprayed or to all, several
SIZES_PER_OCTAVE = 64  # of whole runs: a ratio is that of a size within 0.6 %
LONGEST_NS = 60_000_000_000
# Of whole runs. What a step is off by grows as it does: a quarter of the longest steps of cells at
# 400 Gb/s shows three quarters of it, a twelfth of those of slower links nearly all.
LONGEST_STEP_NS = 250
VERSION = 5  # of what is kept: higher when this file computes something else


@dataclass(frozen=True, kw_only=True)
class Fidelity:
    """Relative error of simulated step times, over windows weighted by their share of time.

    Attributes:
        policy: Whose plans and routing.
        bias: Mean error of the step time: simulated over whole run, less one.
        sd: Its standard deviation over windows.
        phase_bias: The same of the sum of the step's transfers, which compute does not hide.
        phase_sd: Its standard deviation.
        windows: Windows compared.
        errors: Of each window's step time; None where the policy was not in it.
        shares: Share of the time that each window stands for.
        cut: Windows that were too large to run whole.
    """

    policy: str
    bias: float
    sd: float
    phase_bias: float
    phase_sd: float
    windows: int
    errors: tuple[float | None, ...] = field(repr=False)
    shares: tuple[float, ...] = field(repr=False)
    cut: int = 0

    def to_json(self) -> dict[str, Any]:
        """What a result shows of it."""
        names = ("policy", "bias", "sd", "phase_bias", "phase_sd", "windows", "cut")
        return {name: getattr(self, name) for name in names}


def difference(one: Fidelity, other: Fidelity) -> tuple[float, float]:
    """Bias and sd of a paired relative difference, ``one`` less ``other``, on common windows."""
    pairs = [
        (a - b, share)
        for a, b, share in zip(one.errors, other.errors, one.shares, strict=True)
        if a is not None and b is not None
    ]
    return _weighted([d for d, _ in pairs], [share for _, share in pairs])


def fidelity(
    policy: Policy, calibration: Calibration, *, cache: PhaseCache | None = None, seed: int = 0
) -> Fidelity:
    """Compare the loop with whole runs of the fabric on windows of one background.

    Args:
        policy: The policy.
        calibration: The cluster and the job.
        cache: Sampled phases; the outcome is kept in its folder too.
        seed: Of the background: the same windows for every policy.

    Returns:
        The comparison; it depends on policy, calibration and seed alone.
    """
    cache = cache or PhaseCache()
    kept = None
    if cache.folder is not None:
        text = f"{VERSION}|{makers_digest()}|{calibration.fingerprint}|{policy.digest()}|{seed}"
        name = hashlib.sha256(text.encode()).hexdigest()[:20]
        kept = cache.folder / f"fidelity-{name}.json"
        found = _read(kept)
        if found is not None:
            return found
    result = _Comparison(policy, calibration, cache).run(seed)
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(kept, json.dumps(asdict(result)).encode())
    return result


def _read(path: Path) -> Fidelity | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return Fidelity(
            **{
                **document,
                "errors": tuple(document["errors"]),
                "shares": tuple(document["shares"]),
            }
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None  # absent or of another make: it is made anew


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """A stretch of the background and the share of all time that it stands for."""

    start_s: float
    stretch: Stretch
    share: float


def windows_of(calibration: Calibration, seed: int) -> list[Window]:
    """The first clear stretch, for all clear time, and the first congested ones."""
    horizon = HORIZON_STEPS * calibration["step_s"]
    background, now = Background(calibration, seed), 0.0
    clear: tuple[float, Stretch] | None = None
    clear_s = 0.0
    congested: list[tuple[float, float, Stretch]] = []
    while now < horizon and len(congested) < WINDOWS:
        stretch = background.at(now)
        lasts = min(stretch.end_s, horizon) - now
        if stretch.state == CLEAR:
            clear = clear or (now, stretch)
            clear_s += lasts
        else:
            congested.append((now, lasts, stretch))
        now = stretch.end_s
    total = clear_s + sum(lasts for _, lasts, _ in congested)
    found = [] if clear is None else [Window(start_s=clear[0], stretch=clear[1],
                                             share=clear_s / total)]  # fmt: skip
    return found + [
        Window(start_s=at, stretch=s, share=lasts / total) for at, lasts, s in congested
    ]


class _Comparison:
    """Step times of one policy, by cells and by whole runs."""

    def __init__(self, policy: Policy, calibration: Calibration, cache: PhaseCache) -> None:
        self.policy, self.calibration, self.cache = policy, calibration, cache
        self.runs = PhaseCache(cache.folder)  # whole ones
        self.workload = Workload(calibration, policy.compression)
        self.latency_s = start_up_s(calibration, self.workload.world)
        self.ready = calibration["compute_s"] * ready_shares(
            calibration, len(self.workload.buckets)
        )
        uncut = Parameter(name="slice_hosts", value=float(1 << 30))
        everywhere = replace(calibration, parameters={**calibration.parameters, uncut.name: uncut})
        self.sliced, self.whole = Network.of(calibration), Network.of(everywhere)
        self.cut = False
        self._ratios: dict[tuple[str, str, int, State, int], float] = {}
        self.scale, self.static_ratio = self._of_clean_collectives()

    def run(self, seed: int) -> Fidelity:
        """Over the windows of a seed."""
        windows = windows_of(self.calibration, seed)
        plans = self._plans(windows, seed)
        errors: list[float | None] = []
        phases: list[float] = []
        cut = 0
        for window, plan in zip(windows, plans, strict=True):
            if plan is None:
                errors.append(None)
                continue
            self.cut = False
            step, comm = self._errors(self.workload.under(plan), window.stretch)
            errors.append(step)
            phases.append(comm)
            cut += self.cut
        shares = [w.share for w in windows]
        used = [s for s, e in zip(shares, errors, strict=True) if e is not None]
        bias, sd = _weighted([e for e in errors if e is not None], used)
        phase_bias, phase_sd = _weighted(phases, used)
        return Fidelity(
            policy=self.policy.name, bias=bias, sd=sd, phase_bias=phase_bias, phase_sd=phase_sd,
            windows=len(used), errors=tuple(errors), shares=tuple(shares), cut=cut,
        )  # fmt: skip

    def _plans(self, windows: Sequence[Window], seed: int) -> list[Plan | None]:
        """The plan that the loop has most often in each window; None where it is in none."""
        last = max((w.stretch.end_s for w in windows if w.stretch.state != CLEAR), default=0.0)
        steps = math.ceil(last / max(self.calibration["compute_s"], 1e-9)) + 50
        trace: list[Step] = []
        simulate(
            self.policy, self.calibration, seed=seed, iterations=min(MOST_STEPS, steps),
            cache=self.cache, trace=trace,
        )  # fmt: skip
        starts = np.array([step.start_s for step in trace])
        plans: list[Plan | None] = []
        for window in windows:
            first, end = np.searchsorted(starts, [window.start_s, window.stretch.end_s])
            inside = Counter(step.plan for step in trace[first:end])
            plans.append(inside.most_common(1)[0][0] if inside else None)
        return plans

    def _errors(self, traffic: Wire, stretch: Stretch) -> tuple[float, float]:
        """Relative error of the step time, and of its transfers, under one stretch."""
        routing, state, place = self.policy.routing, stretch.state, stretch.place
        phases = Phases(self.sliced, routing, self.cache)

        def sampled(pattern: str, size: int) -> float:
            return self.scale * phases.seconds(pattern, size, state, place)

        def whole(pattern: str, size: int) -> float:
            ratio = self._ratio(routing, pattern, size, state, place)
            return sampled(pattern, size) * ratio / self.static_ratio

        ours = bucket_seconds(traffic, self.latency_s, sampled)
        true = bucket_seconds(traffic, self.latency_s, whole)
        compute = self.calibration["compute_s"]
        step_s, true_s = (
            max(compute, float(finish_times(self.ready, takes)[-1])) for takes in (ours, true)
        )
        return step_s / true_s - 1.0, float(ours.sum() / true.sum()) - 1.0

    def _most_bytes(self) -> int:
        """That one host may send in a whole run."""
        return max(1, BUDGET_BYTES // (self.whole.leaves * self.whole.job_per_leaf))

    def _ratio(self, routing: Routing, pattern: str, size: int, state: State, place: int) -> float:
        """Whole run over cells, of a phase as large as the budget allows."""
        most = self._most_bytes()
        self.cut |= size > most
        octaves = round(SIZES_PER_OCTAVE * math.log2(min(size, most))) / SIZES_PER_OCTAVE
        size = round(2**octaves)
        key = (routing.mode, pattern, size, state, place)
        if key not in self._ratios:
            cells = Phases(self.sliced, routing, self.cache)
            at = self._place(state, place, pattern)
            whole_s = self._whole_s(self.whole, routing, pattern, size, state, at)
            self._ratios[key] = whole_s / cells.seconds(pattern, size, state, place)
        return self._ratios[key]

    def _whole_s(
        self, network: Network, routing: Routing, pattern: str, size: int, state: State, at: int
    ) -> float:
        """Seconds of a whole run, kept beside the cells.

        They are most of what a comparison takes, and policies of one routing have them in common,
        as have processes of one folder and a measurement that is begun again.
        """
        key = Key(
            network=f"{network.digest} whole {VERSION}", routing=routing_digest(routing),
            collective=pattern, state=state, size_bin=size, sample=at,
        )  # fmt: skip

        def run() -> Sample:
            found = Phases(network, routing, self.cache).run(
                pattern, size, state, at, limit_ns=LONGEST_NS, longest_step_ns=LONGEST_STEP_NS
            )
            return Sample(
                base_bytes=size, base_s=found.phase_ns * 1e-9, s_per_byte=0.0,
                moves=int(found.moves.sum()), reorder_bytes=int(found.reorder_bytes.max()),
                occupancy=0.0, finished=found.finished,
            )  # fmt: skip

        return self.runs.cell(key, run).base_s

    def _place(self, state: State, place: int, pattern: str) -> int:
        """Where the whole run is struck: anywhere, but by traffic marked as the cell's is.

        Where paths are drawn, a place is also a draw of them, so it is the cell's own: by how much
        draws differ is no error of the loop, which takes another in each stretch.
        """
        if self.whole.ecmp_share > 0:
            return self.sliced.sampled_place(place % self.sliced.samples(pattern))
        if state == CLEAR:
            return place % SAMPLES
        marked = self.sliced.same_lane(place % SAMPLES)
        while self.whole.same_lane(place) is not marked:
            place += self.whole.leaves
        return place

    def _of_clean_collectives(self) -> tuple[float, float]:
        """The loop's scale, and what whole runs are to cells: on paths that never meet."""
        c = self.calibration
        payload = round(c["collective_bytes"] * 2 * (1 - 1 / self.workload.world))
        static = Routing(mode="static")
        sliced, whole = (replace(n, ecmp_share=0.0) for n in (self.sliced, self.whole))
        cells = Phases(sliced, static, self.cache)
        clean = [cells.seconds("ring", payload, CLEAR, k) for k in range(SAMPLES)]
        scale = (c["collective_s"] - self.latency_s) / float(np.mean(clean))
        size = min(payload, self._most_bytes())
        whole_s = self._whole_s(whole, static, "ring", size, CLEAR, 0)
        return scale, whole_s / cells.seconds("ring", size, CLEAR, 0)


def _weighted(values: Sequence[float], weights: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation; NaN of nothing."""
    if not values:
        return math.nan, math.nan
    mean = float(np.average(values, weights=weights))
    spread = float(np.average((np.array(values) - mean) ** 2, weights=weights))
    return mean, math.sqrt(spread)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the fidelity of some policies on a lake's latest calibration, or a scenario's."""
    parser = argparse.ArgumentParser(description="Compare the loop with whole runs.")
    parser.add_argument("--lake", type=Path, default=Path("lake"), help="folder of the lake")
    parser.add_argument("--scenario", choices=SCENARIOS, help="in place of a lake")
    parser.add_argument("--policy", action="append", choices=sorted(PRESETS), help="default: all")
    parser.add_argument("--seed", type=int, default=0, help="of the background")
    given = parser.parse_args(argv)
    if given.scenario:
        calibration = scenario(given.scenario).calibration
        try:
            cache = PhaseCache(writable_cache_folder("phases"))
        except OSError as error:
            note(f"sampled phases are kept in memory alone: {error}")
            cache = PhaseCache()
    else:
        files = (given.lake / "calibrations").glob("*.json")
        newest = max(files, key=lambda p: (p.stat().st_mtime_ns, p.name), default=None)
        if newest is None:
            print(f"{given.lake}: nothing is calibrated: run xtune calibrate")
            return 1
        calibration = Calibration.load(newest)
        cache = PhaseCache(given.lake / "studies" / ".phases")
    print("policy              step bias      sd  phase bias      sd  windows   cut")
    for name in given.policy or PRESETS:
        f = fidelity(preset(name), calibration, cache=cache, seed=given.seed)
        print(
            f"{name:18} {f.bias:+10.2%} {f.sd:7.2%} {f.phase_bias:+11.2%} {f.phase_sd:7.2%}"
            f" {f.windows:8d} {f.cut:5d}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
