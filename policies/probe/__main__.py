"""``python -m <package>.probe agent|reflect --config FILE``, ``show READINGS``."""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
from collections.abc import Sequence

from .agent import Agent
from .config import load_config
from .packet import load_key
from .readings import ReadingsReader
from .reflector import Reflector


class _Stop:
    """Set by SIGTERM and SIGINT."""

    def __init__(self) -> None:
        self._told = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._tell)

    def __call__(self) -> bool:
        return self._told

    def _tell(self, number: int, frame: object) -> None:
        self._told = True


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
            _serve(Agent if chosen.command == "agent" else Reflector, chosen.config)
    except (OSError, ValueError) as error:
        print(f"probe: {error}", file=sys.stderr)
        return 1
    return 0


def _serve(kind: type[Agent] | type[Reflector], path: str) -> None:
    """Run an agent or a reflector until a signal; its counts are printed at the end."""
    stop = _Stop()
    config = load_config(path)
    server = kind(config, load_key(config.key_file))
    try:
        print("ready", flush=True)
        server.run(stop)
        print(json.dumps(server.counters()), flush=True)
    finally:
        server.close()


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
