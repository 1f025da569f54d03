"""Writes a policy as an importable module and as a wheel that is the same to the byte."""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from xtune import __version__
from xtune.errors import ExportError
from xtune.export._module import DIGESTS, module_files
from xtune.export._wheel import wheel_name, write_wheel

if TYPE_CHECKING:
    from xtune.policies.spec import Policy

__all__ = ["Exported", "export_policy", "planned"]


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export wrote."""

    name: str
    module: Path
    wheel: Path
    sha256: str


def planned(policy: Policy, out: Path, name: str) -> tuple[Path, Path]:
    """The folder and the wheel that ``export_policy`` would write.

    Raises:
        ExportError: The name is no module's name.
    """
    _, version = module_files(policy, name)
    distribution = f"xtune_policy_{name}"
    return out / distribution, out / wheel_name(distribution, version)


def export_policy(policy: Policy, out: Path, name: str) -> Exported:
    """Write ``out/xtune_policy_<name>/`` and its wheel.

    Args:
        policy: With its provenance.
        out: A folder, made where it is not there.
        name: Of the module, after ``xtune_policy_``.

    Raises:
        ExportError: The name is no module's name, or a folder of that name is not ours.
    """
    content, version = module_files(policy, name)
    distribution = f"xtune_policy_{name}"
    folder = out / distribution
    fresh = out / f".{distribution}.{os.getpid()}.tmp"
    if folder.exists() and not (folder / DIGESTS).is_file():
        raise ExportError(f"{folder} is there and is not an exported policy", "move it away")
    try:
        out.mkdir(parents=True, exist_ok=True)
        for path, data in content.items():
            target = fresh / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(fresh, folder)
        wheel = write_wheel(
            out,
            distribution,
            version,
            {f"{distribution}/{path}": data for path, data in content.items()},
            _metadata(name, version),
        )
    except OSError as error:
        where = error.filename or out
        raise ExportError(f"{where}: {error.strerror}", "choose another --out") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)  # gone by then, unless something failed
    return Exported(name, folder, wheel, hashlib.sha256(wheel.read_bytes()).hexdigest())


def _metadata(name: str, version: str) -> str:
    return (
        "Metadata-Version: 2.1\n"
        f"Name: xtune-policy-{name.replace('_', '-')}\n"
        f"Version: {version}\n"
        f"Summary: Routing and gradient-compression policy {name}, tuned by xtune {__version__}\n"
        "License: Apache-2.0\n"
        "Requires-Python: >=3.11\n"
        "Requires-Dist: torch\n"
        "Requires-Dist: numpy\n"
    )
