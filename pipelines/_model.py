"""SQL models: one file each, with a header that says what it makes and what must hold of it.

::

    -- name: link_rates
    -- grain: one port, one interval
    -- inputs: samples, seed
    -- audits: sorted_key(link, ts); not_null(level); range(utilization, 0, 1)
    SELECT ...

A model that no audit fits says why: ``-- audits: none: <why>``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

from xtune.errors import XtuneError
from xtune.tables import DERIVED_TABLES, TABLES, Table

_HEADER = re.compile(r"^-- (name|grain|inputs|audits): (.*)$")
_AUDIT = re.compile(r"(\w+)\(([^()]*)\)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Audit:
    """One thing that must hold of a model's rows.

    Kinds: ``key``; ``sorted_key``; ``not_null``; ``range``, which takes a column and two bounds
    (``..`` leaves a side open).
    """

    kind: str
    arguments: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(self.arguments)})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """One SQL model.

    Attributes:
        name: Its file's name, and its table's bare name where it fills one.
        grain: What one row is.
        inputs: Relations that the SELECT names.
        audits: What must hold of its rows.
        sql: The SELECT.
    """

    name: str
    grain: str
    inputs: tuple[str, ...]
    audits: tuple[Audit, ...]
    sql: str

    @property
    def table(self) -> Table | None:
        """The derived table it fills; None for a step on the way to one."""
        full = f"derived/{self.name}"
        return TABLES[full] if full in DERIVED_TABLES else None


def parse_model(name: str, text: str) -> Model:
    """Read a model's header and SELECT.

    Raises:
        XtuneError: The header lacks a field, or names another model.
    """
    header: dict[str, str] = {}
    for line in text.splitlines():
        match = _HEADER.match(line)
        if match:
            key, value = match.groups()
            header[key] = f"{header[key]}; {value}" if key in header else value
    missing = {"name", "grain", "inputs", "audits"} - header.keys()
    if missing:
        raise XtuneError(
            f"pipelines/sql/{name}.sql: the header lacks {', '.join(sorted(missing))}"
        )
    if header["name"] != name:
        raise XtuneError(f"pipelines/sql/{name}.sql: the header names {header['name']}")
    audits = tuple(
        Audit(kind=kind, arguments=tuple(part.strip() for part in inside.split(",")))
        for kind, inside in _AUDIT.findall(header.get("audits", ""))
    )
    inputs = tuple(part.strip() for part in header["inputs"].split(",") if part.strip())
    return Model(
        name=name, grain=header["grain"], inputs=inputs, audits=audits, sql=text.rstrip("; \n")
    )


@cache
def load_model(name: str) -> Model:
    """Find a model by its name.

    Raises:
        XtuneError: There is none, or its header is not right.
    """
    path = resources.files("xtune.pipelines") / "sql" / f"{name}.sql"
    if not path.is_file():
        raise XtuneError(f"no SQL model {name}", f"one of {', '.join(model_names())}")
    return parse_model(name, path.read_text())


def model_names() -> list[str]:
    """Names of all models, sorted; files that start with an underscore are helpers."""
    folder = resources.files("xtune.pipelines") / "sql"
    names = [path.name.removesuffix(".sql") for path in folder.iterdir()]
    return sorted(name for name in names if not name.startswith(("_", ".")))


@cache
def macros() -> str:
    """The SQL macros that models share."""
    return (resources.files("xtune.pipelines") / "sql" / "_macros.sql").read_text()
