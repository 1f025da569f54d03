"""``python -m <package>.decider run --config FILE``, ``show FILE``."""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
import time
from collections.abc import Sequence
from typing import Any

from ..probe.packet import load_key  # noqa: TID252 - exported under another name
from ..probe.serving import serve  # noqa: TID252 - exported under another name
from .config import load_config
from .packet import Entry
from .server import Decider
from .weights import Block, WeightsReader


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: Of the command line; the process's own by default.

    Returns:
        Exit status: 0 after a signal to end, 1 where it cannot run.
    """
    parser = argparse.ArgumentParser(prog="decider", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="take reports, push snapshots")
    run.add_argument("--config", required=True, help="a .toml or a JSON file")
    show = commands.add_parser("show", help="print what a decider or a host knows")
    show.add_argument("file", help="the decider's state, or a host's weights")
    chosen = parser.parse_args(arguments)
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    try:
        if chosen.command == "show":
            _show(chosen.file)
        else:
            config = load_config(chosen.config)
            serve(Decider(config, load_key(config.key_file)))
    except (OSError, ValueError) as error:
        print(f"decider: {error}", file=sys.stderr)
        return 1
    return 0


def _show(path: str) -> None:
    reader = WeightsReader(path)
    print(json.dumps({"alive": reader.alive()} | reader.counters()))
    notes, now_ns = reader.notes(), time.monotonic_ns()
    for note in notes:
        heard_ns = note.pop("heard_ns", None)
        heard = {} if heard_ns is None else {"heard_s": (now_ns - heard_ns) / 1e9}
        print(json.dumps(note | heard))
    blocks, now_ns = reader.blocks(), time.monotonic_ns()  # the writer goes on: the time after
    for block in blocks:
        for entry in block.entries():
            print(json.dumps(_link(block, entry, now_ns)))
    reader.close()


def _link(block: Block, entry: Entry, now_ns: int) -> dict[str, Any]:
    """One link as it is shown; what is unknown is null."""
    known = entry.age_us is not None and not math.isnan(entry.weight)
    blacklisted = entry.age_us is not None and math.isinf(entry.weight)
    since_s = (now_ns - block.at_ns) / 1e9
    return {
        "link": entry.link,
        "weight": entry.weight if known and not blacklisted else None,
        "blacklisted": blacklisted,
        "age_s": None if entry.age_us is None else since_s + entry.age_us / 1e6,
        "reporters": entry.reporters,
        "version": block.version,
    }


if __name__ == "__main__":
    sys.exit(main())
