"""``xtune simulate --scenario``: a job and a fabric that need no telemetry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from xtune.cli._common import share
from xtune.console import emit_json, note, progress, say, table
from xtune.files import writable_cache_folder

if TYPE_CHECKING:
    from xtune.policies.spec import Policy
    from xtune.studies import Options

Brief = Mapping[str, float | None]


def run_named(name: str, policy: Policy, options: Options, workers: int, *, json: bool) -> None:
    """Run a scenario and show it; sampled phases are kept, so that an interrupt loses little.

    Args:
        name: Of the scenario.
        policy: The whole, beside the baselines and its halves.
        options: Seeds and iterations.
        workers: Processes.
        json: One JSON document in place of tables.

    Raises:
        InputError: The workload file is not there, or is none.
        UsageError: There is no such scenario.
    """
    from xtune.executor import open_executor
    from xtune.sim.scenarios import scenario
    from xtune.sim.scenarios.experiment import policies_of, run_scenario

    chosen = scenario(name)
    runs = len(policies_of(policy)) * options.seeds
    with (
        _phases() as folder,
        progress(name, runs) as update,
        open_executor("local", workers) as executor,
    ):
        found = run_scenario(
            chosen, policy, seeds=options.all_seeds, iterations=options.iterations,
            executor=executor, cache_dir=folder, progress=update,
        )  # fmt: skip
    if json:
        emit_json(found)
    else:
        show(found)


@contextmanager
def _phases() -> Iterator[Path | None]:
    """Folder that sampled phases are kept in.

    Where the user's cannot be written, one for this run, since its processes share them; where
    there is none either, memory (None).
    """
    try:
        kept = writable_cache_folder("phases")
    except OSError as error:
        note(f"sampled phases are kept for this run alone: {error}")
    else:
        yield kept
        return
    try:
        passing = TemporaryDirectory(prefix="xtune-phases-")
    except OSError:
        yield None
        return
    with passing as folder:
        yield Path(folder)


def show(found: dict[str, Any]) -> None:
    """Tables of what ``run_scenario`` found."""
    seeds = f"{found['iterations']} iterations, {len(found['seeds'])} seeds, 95 % intervals"
    table(
        f"{found['scenario']}, simulated: {found['title']}; {seeds}",
        ("policy", "TFLOPS/card", "throughput", "iterations", "time", "exposed", "perplexity"),
        [
            (
                row["name"],
                _span(row["metrics"].get("tflops_per_card"), "{:.2f}"),
                *(_change(row["against"], what) for what in ("throughput", "iterations", "time")),
                _span(row["metrics"]["exposed_share"], "{:.1%}"),
                _span(row["metrics"]["perplexity_penalty"], "{:+.2%}"),
            )
            for row in found["policies"]
        ],
    )
    if found["claims"]:
        _show_claims(found)
    table(
        "assumed, every one of them",
        ("name", "value", "unit", "why"),
        [(p["name"], p["value"], p["unit"], p["why"]) for p in found["assumed"]],
        text=True,
    )
    for text in found["notes"]:
        note(text)


def _show_claims(found: dict[str, Any]) -> None:
    table(
        f"{found['policy']} against {found['policies'][0]['name']}: changes",
        ("of", "simulated here", "the founding document's claim"),
        [
            (answer["metric"], _span(answer["simulated"], "{:+.1%}"), answer["text"])
            for answer in found["claims"]
        ],
    )
    exposed = found["exposed"]
    say(
        f"the claimed throughput needs at least {share(exposed['needed'])} exposed communication"
        f" of the baseline; simulated: {_span(exposed['baseline'], '{:.1%}')}"
    )


def _change(against: Mapping[str, Brief] | None, what: str) -> str | None:
    return None if against is None else _span(against[what], "{:+.1%}")


def _span(brief: Brief | None, form: str) -> str | None:
    """Mean and interval as text; none where a seed did not reach the target."""
    if brief is None or brief["mean"] is None:
        return None
    mean, low, high = (form.format(brief[part]) for part in ("mean", "low", "high"))
    return f"{mean} ({low} to {high})"
