"""What a decider is told."""

from __future__ import annotations

import math
import textwrap
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from tests.decider.helpers import MS
from xtune.policies import dumps, preset
from xtune.policies.decider.config import make_config
from xtune.policies.presets import with_probes
from xtune.policies.probe.config import make_config as probe_config
from xtune.policies.probe.fields import ConfigError


def test_a_policy_by_name_or_file_with_what_is_given_beside_it(tmp_path: Path) -> None:
    listen = "127.0.0.1:1"
    named = make_config({"listen": listen, "policy": "flowlet", "probe_interval_s": 0.01})
    assert named.policy == with_probes(preset("flowlet"), 10 * MS)
    (tmp_path / "policy.json").write_text(dumps(preset("routing_only")))
    said = {"listen": listen, "policy": str(tmp_path / "policy.json"), "probe_interval_s": 0.01}
    both = make_config(said | {"routing": {"forecast": "ewma"}})
    expected = with_probes(preset("routing_only"), 10 * MS).routing
    assert both.policy.routing == replace(expected, forecast="ewma")


def test_the_documented_configuration_is_one() -> None:
    text = (Path(__file__).parents[2] / "docs" / "routing.md").read_text()
    _, _, rest = text.partition("    # decider.toml;")
    central, _, rest = rest.partition("    # in each agent's probe.toml\n")
    agent, _, _ = rest.partition("\n\n")
    said = tomllib.loads("#" + textwrap.dedent(central))
    assert make_config(said).policy == with_probes(preset("joint"), 10 * MS)
    assert set(said) == {"listen", "key_file", "policy", "probe_interval_s", "log"}
    reporting = probe_config(tomllib.loads(textwrap.dedent(agent)))
    assert reporting.decider == make_config(said).listen
    assert reporting.decider_local == ("10.0.0.1", 0)


@pytest.mark.parametrize(
    ("rate_hz", "report_s", "push_s"),
    [(10, 0.05, 0.01), (100, 0.05, 0.01), (1_000, 0.005, 0.005), (10_000, 0.0005, 0.001)],
)
def test_reports_and_pushes_come_well_before_a_reading_is_stale(
    rate_hz: int, report_s: float, push_s: float
) -> None:
    """A reading waits for the next report and then for the next push; it is stale after 20."""
    agent = probe_config({"rate_hz": rate_hz})
    centre = make_config({"listen": "127.0.0.1:1", "probe_interval_s": 1 / rate_hz})
    assert (agent.report_s, centre.push_s) == pytest.approx((report_s, push_s))
    assert agent.report_s + centre.push_s < 20 / rate_hz
    assert probe_config({"report_interval_s": 0.3}).report_s == 0.3
    assert make_config({"listen": "127.0.0.1:1", "push_interval_s": 0.3}).push_s == 0.3


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({}, "listen: None is no IPv4"),
        ({"listen": "0.0.0.0:1"}, "one address, not all"),
        ({"listen": "127.0.0.1"}, "has no port"),
        ({"listen": "127.0.0.1:1", "rate": 1}, "unknown: rate"),
        ({"listen": "127.0.0.1:1", "policy": "best"}, "No such file"),
        ({"listen": "127.0.0.1:1", "routing": {"stale": 1}}, "routing.stale: unknown field"),
        ({"listen": "127.0.0.1:1", "probe_interval_s": 1}, "not within 0 and 0.5"),
        ({"listen": "127.0.0.1:1", "routing": 1}, "routing: a table is wanted"),
        ({"listen": "127.0.0.1:1", "routing": {"stale_ns": -1}}, "routing.stale_ns"),
        ({"listen": "127.0.0.1:1", "push_interval_s": math.nan}, "push_interval_s"),
    ],
)
def test_a_wrong_configuration_is_refused_by_the_fields_name(
    said: dict[str, object], why: str
) -> None:
    with pytest.raises((ConfigError, OSError), match=why):
        make_config(said)
