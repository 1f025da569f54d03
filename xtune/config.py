"""Settings and where each came from: flag, ``XTUNE_*`` variable, ``xtune.toml``, default."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xtune.errors import UsageError

CONFIG_FILE = "xtune.toml"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: dotted name as in xtune.toml, type, default and meaning (with unit)."""

    name: str
    kind: type
    default: Any
    meaning: str
    pattern: str = ""

    @property
    def variable(self) -> str:
        """Environment variable: ``episodes.max_gap_s`` is ``XTUNE_EPISODES_MAX_GAP_S``."""
        return "XTUNE_" + self.name.upper().replace(".", "_")


MEMORY = r"\d+(\.\d+)?\s*([KMGT]i?B)"
SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting("lake", str, "lake", "folder of the lake"),
        Setting("workers", int, os.cpu_count() or 1, "processes for trials and partitions"),
        Setting("seed", int, 0, "seed of every random draw"),
        Setting("storage", str, "", "Optuna storage URL; empty: a journal beside the study"),
        Setting("engine", str, "local", "where trials and partitions run: local or dask"),
        Setting("dask.scheduler", str, "", "address of a Dask scheduler; empty: on this host"),
        Setting("lang", str, "en", "language of the report: en or zh"),
        Setting(
            "memory", str, "4GB", "most memory that the pipelines use, e.g. 500MB or 4GB", MEMORY
        ),
        Setting("episodes.min_length_s", float, 2.0, "shortest link episode, s"),
        Setting("episodes.max_gap_s", float, 10.0, "longest clear gap inside one episode, s"),
        Setting("tune.iterations", int, 3000, "iterations that one trial simulates"),
        Setting("tune.seeds", int, 5, "seeds per finalist"),
    )
}


@dataclass(frozen=True, slots=True)
class Value:
    """A setting's value and its origin, e.g. ``XTUNE_LAKE`` or ``/etc/xtune.toml``."""

    name: str
    value: Any
    origin: str


def hide_secrets(text: str) -> str:
    """``text`` with the password of any URL in it replaced by ``***``.

    A password may hold ``@``, ``:`` and ``/``: all up to the last ``@`` of the word is hidden, and
    all of it where a ``:`` after a name is followed by what is no port. So are the values of
    parameters that name a secret.
    """
    text = re.sub(r"(\w+://[^:/@\s]*):\S*@", r"\1:***@", text)
    text = re.sub(
        r"(\w+://[^:/@\s]*):(?!\*\*\*@|\d{1,5}(?:[/?#,)'\"\s]|$))[^\s@]*", r"\1:***", text
    )
    return re.sub(
        r"(?i)([?&;][\w.-]*(?:pass|pwd|secret|token|key)[\w.-]*=)[^&;\s]*", r"\1***", text
    )


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _checked(setting: Setting, value: Any, origin: str) -> Any:
    """The value as the setting's type.

    Raises:
        UsageError: Of another type, or not of the setting's form.
    """
    cast = _cast(setting, value, origin)
    if setting.pattern and not re.fullmatch(setting.pattern, cast):
        raise UsageError(f"{origin}: {setting.name} = {value!r}", setting.meaning)
    return cast


def _cast(setting: Setting, value: Any, origin: str) -> Any:
    if isinstance(value, setting.kind) and not isinstance(value, bool):
        return value
    if setting.kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    try:
        if isinstance(value, str):
            return setting.kind(value)
    except ValueError:
        pass
    raise UsageError(
        f"{origin}: {setting.name} = {value!r} is not of type {setting.kind.__name__}",
        setting.meaning,
    )


class Config:
    """All settings, resolved once per command.

    Args:
        directory: Where ``xtune.toml`` is looked for.
        environment: The ``XTUNE_*`` variables.

    Raises:
        UsageError: ``xtune.toml`` does not parse or has an unknown key.
    """

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._file = directory / CONFIG_FILE
        self._from_file: dict[str, Any] = {}
        if self._file.is_file():
            try:
                self._from_file = _flatten(tomllib.loads(self._file.read_text("utf-8")))
            except (OSError, ValueError) as error:
                raise UsageError(f"{self._file}: {error}", "mend the file or move it") from error
        for key in self._from_file:
            if key not in SETTINGS:
                near = difflib.get_close_matches(key, SETTINGS, 1)
                hint = f"did you mean {near[0]}?" if near else "xtune config lists all settings"
                raise UsageError(f"{self._file}: unknown setting {key}", hint)

    def get(self, name: str, flag: Any = None) -> Value:
        """The value in force; ``flag`` is what the command line said, ``None`` if nothing."""
        setting = SETTINGS[name]
        if flag is not None:
            return Value(name, _checked(setting, flag, "command line"), "command line")
        variable = setting.variable
        if self._environment.get(variable):
            return Value(name, _checked(setting, self._environment[variable], variable), variable)
        if name in self._from_file:
            origin = str(self._file)
            return Value(name, _checked(setting, self._from_file[name], origin), origin)
        return Value(name, setting.default, "default")

    def all(self) -> list[Value]:
        """Every setting as it stands without flags, secrets hidden."""
        values = [self.get(name) for name in SETTINGS]
        return [
            Value(v.name, hide_secrets(v.value) if isinstance(v.value, str) else v.value, v.origin)
            for v in values
        ]
