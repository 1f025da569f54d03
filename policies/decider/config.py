"""What a decider is told, in a JSON or TOML file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .._fields import PolicyError  # noqa: TID252 - exported under another name
from .._files import read_regular  # noqa: TID252 - exported under another name
from ..presets import PRESETS, preset, with_probes  # noqa: TID252 - exported under another name
from ..probe.fields import (  # noqa: TID252 - exported under another name
    ConfigError as ConfigError,
)
from ..probe.fields import (  # noqa: TID252 - exported under another name
    address,
    document,
    number,
    table,
    text,
)
from ..probe.packet import Address  # noqa: TID252 - exported under another name
from ..spec import Policy, loads, replace_fields  # noqa: TID252 - exported under another name

LEAST_PUSH_S, MOST_PUSH_S = 0.001, 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The whole of it.

    Attributes:
        listen: Address and port that agents report to.
        policy: Its routing parameters make weights of readings.
        key_file: With mode 0600; without it the key is in ``XTUNE_PROBE_KEY``.
        state: File of the shared memory that ``show`` reads.
        log: The decision log, see `DecisionLog`; each blacklisting and its end.
        push_interval_s: Snapshots are sent no more often; None: as `push_s` has it.
        keepalive_s: A host hears so often that the decider lives, news or not.
        host_timeout_s: A host that was not heard of for so long is forgotten.
        datagrams_hz: Snapshots' datagrams a second, to all hosts together.
    """

    listen: Address
    policy: Policy = field(default_factory=lambda: preset("joint"))
    key_file: str | None = None
    state: str = "/dev/shm/xtune-decider"
    log: str | None = None
    push_interval_s: float | None = None
    keepalive_s: float = 0.1
    host_timeout_s: float = 3.0
    datagrams_hz: float = 50_000.0

    @property
    def push_s(self) -> float:
        """Least time between two pushes: a quarter of what the policy calls stale.

        By default; 1 ms at least, 10 ms at most.
        """
        if self.push_interval_s is not None:
            return self.push_interval_s
        return min(max(self.policy.routing.stale_ns / 4e9, LEAST_PUSH_S), MOST_PUSH_S)


_POLICY = ("policy", "probe_interval_s", "routing")
_TEXTS = ("key_file", "state", "log")
_NUMBERS = {
    "push_interval_s": 60.0,
    "keepalive_s": 0.25,  # hosts take half a second of silence for the end
    "host_timeout_s": 3600.0,
    "datagrams_hz": 1e6,
}


def load_config(path: str | Path) -> Config:
    """Read a file: TOML if its name ends so, else JSON.

    Raises:
        ConfigError: Its content is wrong.
        OSError: It, or the policy that it names, cannot be read.
    """
    return make_config(document(path))


def make_config(said: Any) -> Config:
    """A configuration from what a file said.

    Raises:
        ConfigError: An unknown field, or a wrong value.
        OSError: The policy cannot be read.
    """
    table(said, "configuration", ("listen", *_POLICY, *_TEXTS, *_NUMBERS))
    known: dict[str, Any] = {name: text(said, name, name) for name in _TEXTS if name in said}
    for name, most in _NUMBERS.items():
        if name in said:
            known[name] = number(said[name], name, most)
    listen = address(said.get("listen"), "listen", any_port=False)
    if listen[0] == "0.0.0.0":  # snapshots would leave by the route's choice, and fail the MAC
        raise ConfigError("listen: one address, not all")
    return Config(listen=listen, policy=_policy(said), **known)


def _policy(said: Mapping[str, Any]) -> Policy:
    """The policy by its file or preset, as the probes and the parameters beside it change it."""
    name = text(said, "policy", "policy") if "policy" in said else "joint"
    changes = said.get("routing", {})
    if not isinstance(changes, dict):
        raise ConfigError("routing: a table is wanted")
    try:
        chosen = preset(name) if name in PRESETS else loads(read_regular(name))
        if "probe_interval_s" in said:
            interval_s = number(said["probe_interval_s"], "probe_interval_s", 0.5)
            chosen = with_probes(chosen, round(interval_s * 1e9))
        return replace_fields(chosen, {f"routing.{key}": v for key, v in changes.items()})
    except PolicyError as error:
        raise ConfigError(f"policy: {error}") from error
