"""What the studies of a lake found, as Markdown tables.

``python -m xtune.studies LAKE [STUDY ...]`` prints a table a study: the tuned policy
beside the default, the baselines and the ablations, on held-out telemetry where there is some.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from xtune.errors import StudyError
from xtune.studies import load_result

HEAD = (
    "| policy | {objective} | gain of the tuned one, 95 % | over the seeds alone | told apart "
    "| bytes saved, bf16 | rise of perplexity | jitter, s | plan changes |"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m xtune.studies",
        description="What studies found, as Markdown tables.",
    )
    parser.add_argument("lake", type=Path, help="folder of the lake")
    parser.add_argument("study", nargs="*", help="names; default: all that have a result")
    given = parser.parse_args(argv)
    found = sorted(p.parent.name for p in given.lake.glob("studies/*/result.json"))
    try:
        texts = [as_text(_loaded(given.lake, name)) for name in given.study or found]
    except StudyError as error:
        print(f"xtune.studies: {error}", file=sys.stderr)
        return 2
    if not texts:
        print(f"xtune.studies: {given.lake}: no study has a result", file=sys.stderr)
        return 2
    print("\n\n".join(texts))
    return 0


def _loaded(lake: Path, name: str) -> dict[str, Any]:
    document = load_result(lake, name)
    missing = sorted({"counts", "default", "held_out", "recommendation"} - document.keys())
    if missing:
        raise StudyError(
            f"study {name!r} has no {', '.join(missing)}: an older version made its result",
            f"run xtune tune --study {name} again",
        )
    return document


def as_text(document: Mapping[str, Any]) -> str:
    """A study's heading, its table and its recommendation."""
    best = document["best"]
    if best is None:
        return f"`{document['study']}`: no trial was completed."
    made, counts = document["provenance"], document["counts"]
    ends = ", ".join(f"{count} {state}" for state, count in counts.items())
    part = document["held_out"] or document
    where = "held-out telemetry" if document["held_out"] else "fresh seeds"
    heading = (
        f"`{document['study']}`, random seed {document['seed']}, {len(made['fresh_seeds'])} seeds,"
        f" {made['iterations']} iterations, calibration {document['calibration']}; {ends};"
        f" on {where}, simulated:"
    )
    objective = document["objective"]["name"]
    head = HEAD.format(objective=objective)
    rows = [_row(f"tuned (trial {best['number']})", part["best"])]
    others = [part["default"], *part["baselines"], *part["ablations"]]
    named = {row["name"]: row for row in others if row is not None}  # the default is one of them
    rows += [_row(f"`{name}`", row) for name, row in named.items()]
    rule = "|" + "---|" * (head.count("|") - 1)
    said = document["recommendation"]["text"]
    return "\n".join([heading, "", head, rule, *rows, "", said])


def _row(name: str, row: Mapping[str, Any]) -> str:
    if row.get("mean") is None:
        return f"| {name} | {row['state']}: {row.get('reason', '')} |" + " |" * 7
    metrics, gain = row["metrics"], row.get("gain_of_best") or {}
    apart = {True: "yes", False: "no", None: ""}[gain.get("told_apart")]
    cells = [
        f"{row['mean']:.0f} {_span(row, '.0f')}" if row["mean"] >= 100 else f"{row['mean']:z.4g}",
        f"{gain['mean']:z.1%} {_span(gain, 'z.1%')}" if gain.get("mean") is not None else "",
        _span(gain.get("over_seeds") or {}, "z.1%"),
        apart,
        _known(metrics.get("ratio_vs_bf16"), "z.1%"),
        _known(metrics.get("perplexity_penalty"), "z.2%"),
        _known(metrics.get("jitter_s"), "z.2f"),
        _known(metrics.get("control_changes"), ".1f"),
    ]
    return f"| {name} | {' | '.join(cells)} |"


def _span(figures: Mapping[str, Any], form: str) -> str:
    if figures.get("low") is None:
        return ""
    return f"[{figures['low']:{form}}, {figures['high']:{form}}]"


def _known(value: float | None, form: str) -> str:
    return "" if value is None else f"{value:{form}}"


if __name__ == "__main__":
    sys.exit(main())
