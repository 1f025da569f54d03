"""Fields of a configuration in a JSON or TOML file, checked, and named where one is wrong."""

from __future__ import annotations

import ipaddress
import json
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._files import read_regular  # noqa: TID252 - exported under another name
from .packet import Address

PORTS = 1 << 16


class ConfigError(ValueError):
    """A wrong configuration; the text names the field."""


def document(path: str | Path) -> Any:
    """The content of a file: TOML if its name ends so, else JSON.

    Raises:
        ConfigError: It is neither.
        OSError: It cannot be read.
    """
    content = read_regular(path)
    try:
        if str(path).endswith(".toml"):
            return tomllib.loads(content.decode())
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: {error}") from error


def address(said: Any, where: str, *, any_port: bool) -> Address:
    """``10.0.0.1:4790``; the port may be left out, or 0, where any will do."""
    host, _, port = said.partition(":") if isinstance(said, str) else ("", "", "")
    try:
        chosen = int(port or "0")
        ipaddress.IPv4Address(host)
    except ValueError as error:
        raise ConfigError(f"{where}: {said!r} is no IPv4 address with a port") from error
    if not (0 if any_port else 1) <= chosen < PORTS:
        raise ConfigError(f"{where}: {said!r} has no port")
    return host, chosen


def table(said: Any, where: str, known: tuple[str, ...]) -> None:
    """Refuse what is no table of known fields."""
    if not isinstance(said, dict):
        raise ConfigError(f"{where}: a table is wanted")
    if unknown := said.keys() - set(known):
        raise ConfigError(f"{where}: unknown: {', '.join(sorted(unknown))}")


def entries(said: Mapping[str, Any], name: str) -> list[Any]:
    """A list, empty where it is left out."""
    found = said.get(name, [])
    if not isinstance(found, list):
        raise ConfigError(f"{name}: a list is wanted")
    return found


def text(said: Mapping[str, Any], name: str, where: str) -> str:
    """A text that is not empty."""
    found = said.get(name)
    if not isinstance(found, str) or not found:
        raise ConfigError(f"{where}: a text is wanted, not {found!r}")
    return found


def number(said: Any, where: str, most: float) -> float:
    """A number above 0 and at most so much."""
    if isinstance(said, bool) or not isinstance(said, int | float) or not math.isfinite(said):
        raise ConfigError(f"{where}: a number is wanted, not {said!r}")
    if not 0 < said <= most:
        raise ConfigError(f"{where}: {said:g} is not within 0 and {most:g}")
    return float(said)
