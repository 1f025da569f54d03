"""``make bench [ONLY=prefix]``: runs every module here and writes bench/results.json."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import platform
from pathlib import Path

FOLDER = Path(__file__).parent


def machine() -> dict[str, object]:
    """What the figures were measured on."""
    model = ""
    if Path("/proc/cpuinfo").is_file():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(
            (x.partition(":")[2].strip() for x in lines if x.startswith("model name")), ""
        )
    return {
        "cpu": model or platform.processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.platform(),
    }


def merged(old: list[dict], new: list[dict]) -> list[dict]:
    """Old results with the new in their places: a part of the benchmarks can be run alone."""
    by_name = {row["name"]: row for row in old} | {row["name"]: row for row in new}
    return [by_name[name] for name in sorted(by_name)]


def main() -> None:
    """Run, print a table, write the results."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", default="", help="modules or names that begin so")
    only = parser.parse_args().only
    results: list[dict] = []
    for info in pkgutil.iter_modules([str(FOLDER)]):
        if info.name.startswith("_"):
            continue
        module = importlib.import_module(f"bench.{info.name}")
        names = getattr(module, "NAMES", ())
        if only and not any(name.startswith(only) for name in (info.name, *names)):
            continue
        for row in module.run():
            results.append(row)
            ratio = "-" if row["ratio"] is None else f"{row['ratio']:.3g}"
            goal = "-" if row["goal"] is None else row["goal"]
            print(
                f"{row['name']:42} {ratio:>8}  goal {goal!s:>6}"
                f"  {row['value']:.4g} {row['unit']}  against {row['against']}",
                flush=True,
            )
    path = FOLDER / "results.json"
    old = json.loads(path.read_text())["results"] if only and path.is_file() else []
    document = {"schema": 1, "machine": machine(), "results": merged(old, results)}
    path.write_text(json.dumps(document, indent=1) + "\n")
    print(f"{path}: {len(document['results'])} results")


if __name__ == "__main__":
    main()
