"""``calibrate``: from the tables of a lake to a calibration."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from xtune.errors import CalibrationError
from xtune.sim._inputs import Inputs
from xtune.sim.cache import PhaseCache
from xtune.sim.calibration import Calibration, Parameter
from xtune.sim.fit_control import fit_change, read_changes
from xtune.sim.fit_days import for_held_out, held_out_from, stationarity_notes
from xtune.sim.fit_episodes import (
    busy_intervals,
    covered_intervals,
    fit_background,
    fit_episodes,
    read_episodes,
    read_rates,
)
from xtune.sim.fit_loss import fit_loss
from xtune.sim.fit_steps import read_steps
from xtune.sim.fit_topology import fit_layers, fit_topology, links_of_hosts, read_links
from xtune.sim.fit_traffic import fit_traffic, read_members
from xtune.sim.measured import read
from xtune.sim.response import assumed_response, with_response
from xtune.sim.validation import read_observed, validate

if TYPE_CHECKING:
    from pathlib import Path

    from xtune.lake import Lake

# Seconds of one regulation that a training job pays in the controller, an upper bound of what
# ``python -m xtune.sim.regulation_cost`` prints (64 layers, one core). A constant, since a time
# measured anew would give each machine another fingerprint.
CONTROLLER_S = 2e-5
# Bytes of memory traffic per element to quantise, sum and dequantise, over the bandwidth of an
# H100's memory (data sheet: 3.35e12 byte/s, of which 90 % are reachable).
CODEC_S_PER_ELEMENT = 22.0 / 3.0e12


def calibrate(
    lake: Lake,
    *,
    job: str | None = None,
    held_out_days: int | None = None,
    response: Path | None = None,
    cache_dir: Path | None = None,
) -> Calibration:
    """Fit the simulator to a lake, and check it against days that it was not fitted on.

    Args:
        lake: With training steps, collectives and link rates; ``xtune rebuild`` has run.
        job: The job to fit; by default the one with most steps.
        held_out_days: How many of the last days are held out; by default a quarter of them, at
            least one where there are two. 0 fits on all of them.
        response: File of convergence runs of one's own, from which the response to compression
            is fitted instead of assumed; the rest of it stays assumed.
        cache_dir: Folder of sampled phases, which the check against held-out days runs.

    Returns:
        Every parameter with its interval and source; what could not be fitted is marked assumed.

    Raises:
        CalibrationError: The lake does not hold enough, with what is missing and how to get it.
    """
    own = None if response is None else read(response)
    calibration = _by_days(Inputs(lake), job, held_out_days, cache_dir)
    return calibration if own is None else with_response(calibration, *own)


def _by_days(
    inputs: Inputs, job: str | None, held_out_days: int | None, cache_dir: Path | None
) -> Calibration:
    """Fitted on the days before the held-out ones, and checked on those."""
    covered = covered_intervals(read_rates(inputs))
    cut = held_out_from(covered, held_out_days)
    if cut is None:
        return _fit(inputs, job)
    before, after = inputs.within(None, cut), inputs.within(cut, None)
    try:
        tuning = _fit(before, job)
    except CalibrationError as error:
        if held_out_days is not None:
            raise
        whole = _fit(inputs, job)
        note = f"no day is held out: without the last, {error.message}"
        return replace(whole, notes=(*whole.notes, note))
    held_out = _held_out(after, tuning)
    tuning = replace(tuning, held_out=held_out, inputs=dict(inputs.digests))
    notes = stationarity_notes(read_episodes(inputs), covered)
    return replace(
        tuning,
        notes=(*tuning.notes, *notes),
        validation=validate(tuning, read_observed(after, tuning.job), PhaseCache(cache_dir)),
    )


def _held_out(inputs: Inputs, tuning: Calibration) -> Calibration:
    """Of the days after those that ``tuning`` was fitted on: at least their background."""
    covered = covered_intervals(read_rates(inputs))
    try:
        alone, why = tuple(_fit(inputs, tuning.job).parameters.values()), ""
    except CalibrationError as error:
        hosts = read_members(inputs, tuning.job).hosts
        edge = links_of_hosts(read_links(inputs), hosts)
        alone, why = fit_episodes(read_episodes(inputs), covered, edge), error.message
    return for_held_out(tuning, alone, covered, why)


def _fit(inputs: Inputs, job: str | None) -> Calibration:
    """Of what the inputs hold, all of which is fitted on."""
    episodes = read_episodes(inputs)
    busy = busy_intervals(episodes)
    rates = read_rates(inputs)
    covered = covered_intervals(rates)
    steps = read_steps(inputs, job, busy, covered)
    traffic = fit_traffic(inputs, steps, busy)
    links = read_links(inputs)
    parameters = {p.name: p for p in traffic.parameters}
    ranks = int(parameters["ranks"].value)
    for p in fit_topology(inputs, links, traffic.hosts, ranks):
        parameters[p.name] = p
    for p in fit_episodes(episodes, covered, links_of_hosts(links, traffic.host_names)):
        parameters[p.name] = p
    rate_gbps = parameters["rate_gbps"].value
    step_bytes = sum(traffic.buckets)
    own = 2 * (ranks - 1) / ranks * step_bytes * 8e-9 / parameters["step_s"].value
    loss_kind, loss = fit_loss(inputs, steps.job, covered)
    element_bytes = int(parameters["element_bytes"].value)
    layers, note = fit_layers(inputs, steps.job, traffic.buckets, element_bytes)
    latency_s = parameters["link_latency_ns"].value * 1e-9
    for p in (
        fit_background(rates, busy, own, rate_gbps),
        *loss,
        Parameter(
            name="regulation_s", unit="s", assumed=True,
            # A small all-reduce: a tree up and down, four hops between hosts under two leaves.
            value=CONTROLLER_S + 2 * math.ceil(math.log2(max(2, ranks))) * 4 * latency_s,
            why="timed on the controller, plus one small tree all-reduce at the link latency",
            needs="nothing that is collected: it is far below the spread of a step",
        ),
        fit_change(inputs, steps.job),
        Parameter(
            name="codec_s_per_element", value=CODEC_S_PER_ELEMENT, unit="s", assumed=True,
            why="22 bytes of memory traffic an element at 3e12 byte/s (H100 data sheet)",
            needs="a profile of the codec's kernels on the job's own device",
        ),
        *assumed_response(),
    ):  # fmt: skip
        parameters[p.name] = p
    notes = [*traffic.notes]
    if note:
        notes.append(note)
    if steps.others and job is None:
        notes.append(f"{steps.others + 1} jobs have steps: fitted on the one with most of them")
    changes = len(read_changes(inputs, steps.job))
    notes.append(
        "telemetry is taken to be of dense gradients on static paths"
        + (f", though a policy changed what is sent {changes} times" if changes else "")
    )
    return Calibration(
        job=steps.job,
        parameters=parameters,
        buckets=traffic.buckets,
        layers=layers,
        loss_kind=loss_kind,
        inputs=dict(inputs.digests),
        notes=tuple(notes),
        span_ns=(int(covered[0, 0]), int(covered[-1, 1])),
    )
