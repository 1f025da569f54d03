"""The engine on the emulated fabric: what comes and what does not, by counting packets."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from xtune.proofs.emulated import scenarios
from xtune.proofs.emulated.__main__ import RATE_MBPS, Demonstration, engine_policy
from xtune.proofs.emulated.fabric import Fabric, Shape
from xtune.proofs.emulated.measures import Plain
from xtune.proofs.emulated.namespaces import NamespaceError
from xtune.proofs.emulated.stage import PACKET_BYTES, Stage

BURST_BYTES = 32_000  # of the token bucket
STOP_S = 0.1  # the flows end one after the other
HEADERS = 1 + 42 / PACKET_BYTES  # UDP, IPv4, Ethernet: the link carries them, flows do not count


@pytest.fixture(scope="module")
def fabric() -> Iterator[Fabric]:
    try:
        made = Fabric(Shape())
    except NamespaceError as error:
        pytest.skip(str(error))
    with made:
        yield made


@pytest.fixture
def engine(fabric: Fabric, tmp_path: Path) -> Iterator[Stage]:
    with Stage(fabric, tmp_path, engine_policy(), RATE_MBPS) as stage:
        yield stage


def lost(found: Plain) -> float:
    """Share of what both flows sent."""
    flows = found["flows"]
    came, went = (sum(flow[name] for flow in flows) for name in ("received", "sent"))
    return 1.0 - float(came) / float(went)


def test_a_collision_is_bounded_by_the_link_and_resolved_by_the_engine(fabric: Fabric) -> None:
    found = Demonstration(fabric, 1.0, 1, 0).udp()
    off, on = found["off"], found["on"]
    link_bytes = fabric.shape.rate_mbps * 1e6 / 8
    together_s = off["flows"][1]["seconds"]
    alone = RATE_MBPS / fabric.shape.rate_mbps * (off["flows"][0]["seconds"] - together_s)
    most = link_bytes * (together_s + alone + STOP_S) / HEADERS
    most += fabric.shape.queue_bytes + BURST_BYTES
    came = sum(flow["received"] for flow in off["flows"]) * PACKET_BYTES
    went = sum(flow["sent"] for flow in off["flows"]) * PACKET_BYTES
    assert came <= most
    # A link that always has something to send sends all the time; a busy machine pauses it.
    assert came >= 0.6 * min(went, link_bytes * together_s)
    assert off["moves"] == []
    assert on["moves"]
    assert lost(on) < 0.5 * lost(off)
    for half in (off, on):
        assert all(0 <= flow["received"] <= flow["sent"] for flow in half["flows"])
        assert len(half["spines"]) == 2 and half["spines"][1]["probes"] > 10
    assert off["spines"][0]["rtt_ms"]["0.5"] > 5 * off["spines"][1]["rtt_ms"]["0.5"]
    assert sum(on["reasons"].values()) >= 1 and off["reasons"] == {}


@pytest.mark.slow
@pytest.mark.alone
def test_a_killed_path_is_left_and_admitted_again(engine: Stage) -> None:
    found = scenarios.path_killed(engine)
    times = [found[name] for name in ("cut_to_move_ms", "mended_to_readmitted_ms",
                                      "cut_again_to_move_ms")]  # fmt: skip
    assert all(time is not None for time in times)
    # Three strikes cannot come before the first of them has timed out.
    assert times[0] > 1e3 * 5 * engine.fabric.shape.full_delay_s
    gone_s = (times[0] + times[2]) / 1e3
    flow = found["flow"]
    assert flow["sent"] - flow["received"] <= 2 * gone_s * RATE_MBPS * 1e6 / 8 / PACKET_BYTES
    assert flow["received"] > 0.3 * flow["sent"]


@pytest.mark.slow
@pytest.mark.alone
def test_with_both_paths_dead_the_primary_is_used_until_one_is_back(engine: Stage) -> None:
    found = scenarios.both_killed(engine)
    assert found["shares_while_dead"] == [1.0, 0.0]
    assert found["received_while_dead"] == 0
    assert found["received_after"] > 0
    assert found["both_dead_after_ms"] is not None
    assert found["mended_to_readmitted_ms"] is not None


@pytest.mark.slow
@pytest.mark.alone
def test_without_probes_routing_is_static_and_a_new_agent_is_picked_up(engine: Stage) -> None:
    found = scenarios.agents_killed(engine)
    assert found["killed_to_noticed_ms"] > 400  # the heartbeat's half a second, less one beat
    assert found["moves_while_gone"] == 0
    assert found["ready_to_noticed_ms"] is not None
    assert found["moves_after"]


@pytest.mark.slow
@pytest.mark.alone
def test_every_collision_is_resolved(engine: Stage) -> None:
    found = scenarios.reaction(engine, 6, seed=3)
    assert found["moved"] == 6
    assert found["onset_to_move_ms"]["0.5"] > 0
    assert found["onset_to_move_ms"]["0.5"] <= found["onset_to_move_ms"]["1"]


@pytest.mark.slow
@pytest.mark.alone
def test_streams_get_both_spines(fabric: Fabric) -> None:
    found = Demonstration(fabric, 4.0, 1, 0).tcp()
    off, on = (
        sum(flow["received_mbps"] for flow in found[half]["flows"]) for half in ("off", "on")
    )
    assert off <= fabric.shape.rate_mbps * 1.05
    assert on > fabric.shape.rate_mbps * 1.2


@pytest.mark.slow
@pytest.mark.alone
def test_no_flapping_over_a_minute(fabric: Fabric) -> None:
    """Without yielding it is a dozen moves a second; a machine that pauses causes some."""
    found = Demonstration(fabric, 60.0, 1, 0).minute()
    assert 1 <= len(found["moves"]) < 60
    assert lost(found) < 0.1


@pytest.mark.slow
@pytest.mark.alone
def test_the_command_writes_what_it_prints(fabric: Fabric, tmp_path: Path) -> None:
    del fabric  # only for its skip
    out = tmp_path / "found.json"
    command = [sys.executable, "-m", "xtune.proofs.emulated", "--seconds", "0.6",
               "--scenario", "bursts", "--scenario", "no_yield", "--out", str(out)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(out.read_text())
    assert set(found["scenarios"]) == {"bursts", "no_yield"}
    assert found["policy"]["routing"]["probe_interval_ns"] == 10_000_000
    for flow in found["scenarios"]["no_yield"]["flows"]:
        assert f"loss {flow['loss'] * 100:.2f} %" in done.stdout


def test_without_the_right_it_says_so_in_one_line() -> None:
    command = ["unshare", "--user", sys.executable, "-m", "xtune.proofs.emulated"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("needs unshare (util-linux)")
    if "unshare" in done.stderr:
        pytest.skip("user namespaces are not allowed here")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("xtune.proofs.emulated: ")
