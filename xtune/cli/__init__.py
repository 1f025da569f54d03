"""The command line. Commands import what is heavy inside their bodies."""

from __future__ import annotations

import os
import sys

import typer

from xtune import __version__
from xtune.config import hide_secrets
from xtune.console import note
from xtune.errors import XtuneError

app = typer.Typer(
    name="xtune",
    help="Congestion episodes from cluster telemetry, and a tuned routing and compression policy.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

INTERRUPTED = 130
INTERRUPTION = "interrupted: what was finished is kept; the same command goes on"

COMMANDS = (
    "collect",
    "rebuild",
    "episodes",
    "query",
    "calibrate",
    "simulate",
    "tune",
    "export",
    "report",
    "place",
    "prune",
    "doctor",
    "config",
    "demo",
)

#: Options of commands that people put before the command's name.
_COMMANDS_OWN = ("--lake", "--json", "--strict", "--debug")


def _version(value: bool) -> None:
    if value:
        print(f"xtune {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Root of all commands."""


def _register() -> None:
    from importlib import import_module

    for name in COMMANDS:
        module = import_module(f"xtune.cli.{name}")
        app.command(name, no_args_is_help=False)(module.run)


_register()


def main() -> int:
    """Entry point: known errors are one line on stderr, exit status as documented."""
    debug = "--debug" in sys.argv
    first = sys.argv[1].partition("=")[0] if len(sys.argv) > 1 else ""
    if first in _COMMANDS_OWN:
        note(f"xtune: {first} stands after the command's name (xtune rebuild {first} ...)")
        return 2
    try:
        app()
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # Click's answer to it is status 1
            return _reader_gone()
        if stop.code == INTERRUPTED:  # typer has caught the interrupt and says nothing
            print(INTERRUPTION, file=sys.stderr)
        return stop.code if isinstance(stop.code, int) else 1
    except KeyboardInterrupt:
        print(INTERRUPTION, file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        return _reader_gone()
    except XtuneError as error:
        if debug:
            raise
        note(f"xtune: {' '.join(str(error).split())}")
        return error.exit_code
    except OSError as error:
        if debug:
            raise
        place = f"{error.filename}: " if error.filename else ""
        note(f"xtune: {place}{error.strerror or error} (make room or check permissions)")
        return 1
    except Exception as error:
        if debug:
            raise
        text = hide_secrets(f"{type(error).__name__}: {error}".splitlines()[0])
        print(f"xtune: {text} (a bug of xtune's: --debug shows where)", file=sys.stderr)
        return 1
    return 0


def _reader_gone() -> int:
    """What read our output went away (``xtune query | head``): not an error of ours."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
