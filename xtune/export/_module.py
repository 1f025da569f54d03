"""The importable module: the engine's source, the policy, and the digest of each file."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from xtune import __version__
from xtune.errors import ExportError

if TYPE_CHECKING:
    from xtune.policies.spec import Policy

NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
DIGESTS = "_sha256.json"


def engine_sources() -> dict[str, bytes]:
    """The engine's files, by their path below the folder ``engine``."""

    def walk(folder: Any, prefix: str) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for entry in sorted(folder.iterdir(), key=lambda e: e.name):
            if entry.is_dir() and entry.name != "__pycache__":
                found |= walk(entry, f"{prefix}{entry.name}/")
            elif entry.name.endswith(".py") or entry.name == "py.typed":
                found[prefix + entry.name] = entry.read_bytes()
        return found

    return walk(files("xtune.policies"), "")


def module_files(policy: Policy, name: str) -> tuple[dict[str, bytes], str]:
    """All files of the module ``xtune_policy_<name>``, and the wheel's version.

    The version carries the digest of the contents, so that two policies of one name are two
    versions.

    Raises:
        ExportError: ``name`` cannot be a module's name.
    """
    from xtune.policies.spec import dumps

    if not NAME.fullmatch(name):
        raise ExportError(
            f"{name!r} cannot be a module's name",
            "lower-case letters, digits and underscores, a letter first",
        )
    content = {f"engine/{path}": data for path, data in engine_sources().items()}
    content["policy.json"] = dumps(replace(policy, name=name)).encode()
    content["py.typed"] = b""
    templates = files("xtune.export") / "templates"
    content["_integrity.py"] = (templates / "integrity.py.in").read_bytes()
    init = (templates / "module_init.py.in").read_text("utf-8")
    whole = hashlib.sha256()
    for path, data in sorted(content.items()):
        whole.update(f"{path}\0{hashlib.sha256(data).hexdigest()}\n".encode())
    version = f"{__version__}+{whole.hexdigest()[:12]}"
    replacements = {
        "@NAME@": name,
        "@MODULE@": f"xtune_policy_{name}",
        "@VERSION@": __version__,
        "@WHEEL_VERSION@": version,
    }
    for placeholder, value in replacements.items():
        init = init.replace(placeholder, value)
    content["__init__.py"] = init.encode()
    digests = {path: hashlib.sha256(data).hexdigest() for path, data in sorted(content.items())}
    content[DIGESTS] = (json.dumps(digests, indent=1) + "\n").encode()
    return content, version
