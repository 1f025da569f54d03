"""``python -m <package>.probe agent|reflect --config FILE``, ``show READINGS``."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence

from .agent import Agent
from .config import load_config
from .packet import load_key
from .readings import ReadingsReader
from .reflector import Reflector
from .serving import serve


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: Of the command line; the process's own by default.

    Returns:
        Exit status: 0 after a signal to end, 1 where it cannot run.
    """
    parser = argparse.ArgumentParser(prog="probe", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (("agent", "send probes"), ("reflect", "answer probes")):
        command = commands.add_parser(name, help=text)
        command.add_argument("--config", required=True, help="a .toml or a JSON file")
    show = commands.add_parser("show", help="print what an agent or a reflector knows")
    show.add_argument("readings", help="its file")
    chosen = parser.parse_args(arguments)
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    try:
        if chosen.command == "show":
            _show(chosen.readings)
        else:
            config = load_config(chosen.config)
            kind = Agent if chosen.command == "agent" else Reflector
            serve(kind(config, load_key(config.key_file)))
    except (OSError, ValueError) as error:
        print(f"probe: {error}", file=sys.stderr)
        return 1
    return 0


def _show(path: str) -> None:
    reader = ReadingsReader(path)
    print(json.dumps({"alive": reader.alive(), "generation": reader.generation}))
    print(json.dumps(reader.counters()))
    for index, name in enumerate(reader.names):
        reading = reader.read(index)
        print(json.dumps({"name": name} | ({} if reading is None else reading._asdict())))
    reader.close()


if __name__ == "__main__":
    sys.exit(main())
