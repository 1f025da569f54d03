"""What gradient compression does to training, measured: ``python -m xtune.proofs.convergence``.

Each random seed is warmed up in full precision once; every method branches from that state, with
its optimizer and data order. Differences are paired by seed. A second call goes on where the
first one ended, also after it was killed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import xtune
from xtune.errors import UsageError, XtuneError
from xtune.files import write_atomically
from xtune.proofs.course import Settings
from xtune.proofs.methods import methods
from xtune.proofs.output import as_markdown, as_text, draw
from xtune.proofs.study import Study
from xtune.proofs.summary import BASELINE, response, summarise
from xtune.sim.measured import KINDS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and print the table; the exit status."""
    given = _parser().parse_args(arguments)
    try:
        names = _chosen(given.methods)
        if given.response is not None:
            _check_kinds(names)
        settings = Settings(warm=given.warm, steps=given.steps)
        study = Study(given.out, settings, given.corpus)
        study.run(names, range(given.seeds), given.jobs)
        document = write(study, names, command=_command(given))
        if given.response is not None:
            write_json(given.response, document)
    except XtuneError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"error: {error.filename or given.out}: {error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130  # as shells report an interrupted command
    return 0


def _check_kinds(names: Sequence[str]) -> None:
    """Before hours of training: a response without these would leave the simulator without."""
    lacking = set(KINDS) - {methods()[name].kind for name in names}
    if lacking:
        raise UsageError(f"--response: no method of kind {', '.join(sorted(lacking))} is chosen")


def write(study: Study, names: Sequence[str], *, command: str) -> dict[str, Any]:
    """Print the table of what is there, and keep table, plot and summary beside the runs."""
    runs = study.results()
    known = methods()
    per_token = study.corpus.bytes_per_token
    table = {
        name: summarise(known[name], runs, study.settings, per_token)
        for name in names
        if name in runs
    }
    about = _about(study, sorted(runs[BASELINE]))
    provenance = _provenance(study, runs, command)
    document = response(table, runs, study.settings, provenance)
    print(as_text(table, about))
    write_atomically(study.folder / "table.md", as_markdown(table, about).encode())
    draw(table, document["phases"], about, study.folder / "plot.html")
    write_json(study.folder / "response.json", document)
    return document


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Plain numbers in seven digits: more are noise."""
    text = json.dumps(_rounded(document), indent=1, allow_nan=False)
    write_atomically(path, (text + "\n").encode())


def _about(study: Study, seeds: Sequence[int]) -> str:
    settings, corpus = study.settings, study.corpus.about
    return (
        f"{settings.steps} iterations after {settings.warm} in full precision, {settings.world} "
        f"ranks, {settings.world * settings.windows * settings.shape.context} tokens an "
        f"iteration, {len(seeds)} seeds; changes against {BASELINE}, paired by seed.\n"
        f"Corpus: {corpus['name']}, {corpus['bytes']} bytes; {corpus['tokenizer']}, "
        f"{study.corpus.bytes_per_token:.3f} bytes a token. Perplexity is per token.\n"
        "Saved: bytes sent per rank against a ring all-reduce, headers and scales counted; with "
        "warm start: its iterations as the baseline sends them."
    )


def _provenance(study: Study, runs: Any, command: str) -> dict[str, Any]:
    first = next(iter(runs[BASELINE].values()))
    digests = {run["engine_sha256"] for seeds in runs.values() for run in seeds.values()}
    return {
        "command": command,
        "seeds": sorted(runs[BASELINE]),
        "settings": study.settings.to_json(),
        "parameters": first["parameters"],
        "buckets": first["buckets"],
        "corpus": study.corpus.about,
        "xtune": xtune.__version__,
        "engine_sha256": sorted(digests),
        "torch": torch.__version__,
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value


def _chosen(text: str | None) -> list[str]:
    """Methods to run: full precision first, the rest in the order of the list or as given."""
    known = list(methods())
    if text is None:
        return known
    asked = [name for name in text.split(",") if name]
    if not asked:
        raise UsageError("--methods names none", f"there are {', '.join(known)}")
    unknown = [name for name in asked if name not in known]
    if unknown:
        raise UsageError(f"no method {', '.join(unknown)}", f"there are {', '.join(known)}")
    return [BASELINE, *(name for name in dict.fromkeys(asked) if name != BASELINE)]


def _command(given: argparse.Namespace) -> str:
    words = [f"--seeds {given.seeds}", f"--steps {given.steps}", f"--warm {given.warm}"]
    if given.methods:
        words.append(f"--methods {given.methods}")
    if given.corpus:
        words.append(f"--corpus {given.corpus.name}")
    return " ".join(["python -m xtune.proofs.convergence", *words])


def _count(text: str) -> int:
    """A whole number of at least 1, for the parser."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Measure what compression does to training.")
    parser.add_argument("--seeds", type=_count, default=3, help="random seeds, from 0")
    parser.add_argument("--steps", type=_count, default=1000, help="iterations of each branch")
    parser.add_argument("--warm", type=_count, default=200, help="iterations of the warm start")
    parser.add_argument("--methods", help="names with commas; default: all")
    parser.add_argument("--out", type=Path, default=Path("convergence"), help="folder of the runs")
    parser.add_argument("--corpus", type=Path, help="text file or folder; default: a package")
    parser.add_argument("--jobs", type=_count, default=2, help="processes at the same time")
    parser.add_argument("--response", type=Path, help="also keep the summary in this file")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
