"""PMA counters by the names that management tools print: ``PortXmitDataExtended``.

A tool prints the 32-bit field and the 64-bit one of the same counter side by side; each has its
own width, and the 64-bit one is preferred where it has a value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xtune.collectors._ib import kernel_name, settle

_WIDE = ("Extended", "Ext")


def merge(fields: Mapping[str, int]) -> tuple[dict[str, int], set[str]]:
    """Counters by kernel name, and the names that come from a 64-bit field.

    Args:
        fields: Values by the tool's names.
    """
    values: dict[str, int] = {}
    wide: set[str] = set()
    for field, value in fields.items():
        name = kernel_name(field)
        if field.endswith(_WIDE):
            wide.add(name)
            values[name] = value
        elif name not in wide:
            values[name] = value
    return values, wide


def settle_fields(values: Mapping[str, int], wide: set[str]) -> dict[str, Any]:
    """As :func:`xtune.collectors._ib.settle`, with the width of each value's own field."""
    row = settle({k: v for k, v in values.items() if k not in wide}, wide=False)
    full = settle({k: v for k, v in values.items() if k in wide}, wide=True, wide_errors=True)
    both = row["saturated"] or [], full["saturated"] or []
    extra = {**(row["extra"] or {}), **(full["extra"] or {})}
    return {**row, **full, "saturated": [*both[0], *both[1]] or None, "extra": extra or None}
