"""The table of what was measured in docs/compression.md, from the stored measurement.

``python -m tests.proofs.docs`` writes it anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.pages import ROOT, Listed
from xtune.sim.measured import load

LISTED = Listed(
    page=ROOT / "docs" / "compression.md",
    begin="<!-- measured: xtune/sim/measured_response.json -->\n",
    end="<!-- end of measured -->",
)
HEADINGS = (
    "method", "perplexity", "95 % interval", "by seed", "saved vs bf16", "vs fp32",
    "warm start counted: vs bf16", "vs fp32", "iterations to the same loss",
)  # fmt: skip


def table() -> str:
    """Provenance in a line, and Markdown, one row a method."""
    document = load()
    lines = [_about(document), ""]
    lines += [f"| {' | '.join(HEADINGS)} |", f"|{'---|' * len(HEADINGS)}"]
    lines += [f"| {' | '.join(_cells(row))} |" for row in document["methods"].values()]
    return "\n".join(lines) + "\n"


def _about(document: Mapping[str, Any]) -> str:
    about = document["provenance"]
    settings, corpus = about["settings"], about["corpus"]
    return (
        f"`{about['command']}`: {about['parameters']:,} parameters, {settings['world']} ranks, "
        f"{settings['steps']} iterations after a full-precision warm start of {settings['warm']}, "
        f"{len(about['seeds'])} random seeds; text: {corpus['name']}, "
        f"{corpus['tokenizer']}, {corpus['bytes_per_token']:.2f} bytes a token; "
        f"torch {about['torch']}."
    )


def _cells(row: Mapping[str, Any]) -> list[str]:
    change, extra = row["perplexity_change"], row["extra_iterations"]
    spread = (
        "" if change["low"] is None else f"{_percent(change['low'])} to {_percent(change['high'])}"
    )
    return [
        row["label"],
        _percent(change["mean"]),
        spread,
        ", ".join(_percent(value) for value in row["perplexity_changes"]),
        *(
            f"{100 * row[name]:.1f} %"
            for name in (
                "saved_vs_bf16", "saved_vs_fp32",
                "saved_vs_bf16_with_warm_start", "saved_vs_fp32_with_warm_start",
            )
        ),
        "never" if extra is None else f"{100 * extra:+.1f} %",
    ]  # fmt: skip


def _percent(share: float) -> str:
    return f"{100 * share:+.2f} %"


if __name__ == "__main__":
    LISTED.write(table())
