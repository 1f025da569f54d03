"""Payload over rails: the same bits, the same counts, one line where it cannot be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from tests.compress import training_fsdp as fsdp
from tests.compress.ranks import Lines, leave_alone, outlive, run
from tests.compress.test_detach import held, more
from tests.compress.test_rungs import SHARED
from tests.compress.training import (
    attached,
    optimizer,
    policy,
    same_everywhere,
    train,
    weights,
    wrapped,
)
from xtune.policies import Policy, Rail, Router, Steering, preset, replace_fields
from xtune.policies.actuators.process_groups import StripedGroups
from xtune.policies.actuators.rails import Meter
from xtune.policies.schedule import BurstSchedule
from xtune.policies.steering import MOST_UNITS
from xtune.policies.striping import Striping

RAILS = [Rail(address="127.0.0.2"), Rail(address="127.0.0.3")]
CYCLES = 20
MODES: dict[str, dict[str, Any]] = {
    "quantise": {"rung_by_level": (3, 3, 3, 3)},
    "off": {"rung_by_level": (0, 0, 0, 0)},
    "shared": {"ladder": SHARED, "rung_by_level": (4, 4, 4, 4)},
    "drop": {"mode": "drop", "rung_by_level": (1, 1, 1, 1)},
}


def _trained(rank: int, mode: str, rails: list[Rail], stop: int = 9) -> dict[str, Any]:
    """A model after some iterations, and what it cost."""
    model = wrapped()
    rails_once = iter(rails)  # an iterator has no second pass
    handle = attached(model, policy(compression=MODES[mode]), rails=rails_once)
    train(model, handle, optimizer(model), rank, 0, stop)
    metrics = handle.metrics()
    handle.detach()
    return {"weights": weights(model), "metrics": metrics}


def _in_rank_order(rank: int, stop: int = 9) -> torch.Tensor:
    """The same model, its gradients gathered and added in rank order."""
    model = wrapped()

    def add(world: int, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        mine = bucket.buffer().mul(1.0 / world)
        everyone = [torch.empty_like(mine) for _ in range(world)]
        dist.all_gather(everyone, mine)
        total = everyone[0]
        for other in everyone[1:]:
            total = total + other
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(total)
        return future

    add.__annotations__ = {}
    model.register_comm_hook(dist.get_world_size(), add)
    train(model, None, optimizer(model), rank, 0, stop)
    return weights(model)


def _bits(rank: int, world: int, mode: str) -> dict[str, Any]:
    both, one = _trained(rank, mode, RAILS), _trained(rank, mode, RAILS[:1])
    plain = _trained(rank, mode, [])
    return {
        "one": torch.equal(both["weights"], one["weights"]),
        "plain": torch.equal(both["weights"], plain["weights"]),
        "order": torch.equal(both["weights"], _in_rank_order(rank)),
        "same": same_everywhere(both["weights"]),
        "metrics": [each["metrics"] for each in (both, one, plain)],
    }


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("mode", "world"),
    [
        ("quantise", 2),
        ("off", 2),
        ("off", 3),
        pytest.param("shared", 2, marks=SLOW),
        pytest.param("drop", 2, marks=SLOW),
    ],
)
def test_bits_and_counted_bytes_do_not_depend_on_rails(mode: str, world: int) -> None:
    for result in run(world, _bits, mode):
        both, one, plain = result["metrics"]
        assert result["one"] and result["same"]
        assert result["plain"] is (world == 2)  # of more, torch's ring adds in another order
        assert result["order"] is (mode == "off")
        assert both["wire_bytes"] == one["wire_bytes"] == plain["wire_bytes"]
        assert both["rails_alive"] == [True, True] and "rails_alive" not in plain
        assert both["failed_steps"] == 0
        # A stripe of a broadcast counts whole bytes only.
        assert sum(both["rail_bytes"]) == pytest.approx(sum(one["rail_bytes"]), abs=32)
        # Headers, their words and the period's numbers go elsewhere.
        assert 0.998 < sum(both["rail_bytes"]) / plain["wire_bytes"] < 1.0
        assert min(both["rail_bytes"]) > 0 and sum(both["rail_shares"]) == pytest.approx(1.0)


def _refused(rank: int, world: int, case: str) -> dict[str, Any]:
    lines, odd = Lines(), rank == 1
    odd_rails: dict[str, Any] = {
        "address": [*RAILS[:1], Rail(address="198.51.100.7")],
        "interface": [*RAILS[:1], Rail(interface="xtune-none")],
        "nameless": [*RAILS[:1], Rail()],
        "fewer": RAILS[:1],
        "none": [],
        "text": ["lo", "lo"],
        "nothing": None,
    }
    timeouts: dict[str, Any] = {
        "patient": 30.0, "endless": 1e300, "too long": 86401.0, "too short": 1e-4, "a word": "5",
        "a truth": True,
    }  # fmt: skip
    rails = odd_rails.get(case, RAILS) if odd else RAILS
    options: dict[str, Any] = {"rail_timeout_s": timeouts.get(case, 20.0) if odd else 20.0}
    if odd and case == "off":
        options["environ"] = {"XTUNE_POLICY": "off"}
    if case == "shadow":
        options["environ"] = {"XTUNE_POLICY": "shadow"}
    if case == "sharded":
        model = fsdp.sharded()
        handle = fsdp.attached(model, policy(compression=MODES["quantise"]), rails=rails)
        fsdp.train(model, handle, optimizer(model), rank, 0, 3)
        same = same_everywhere(fsdp.whole(model))
    else:
        model = wrapped()
        options["mesh"] = fsdp.nodes(world) if case == "mesh" else None
        made = policy(compression=MODES["quantise"])
        handle = attached(model, made, rails=rails, **options)
        train(model, handle, optimizer(model), rank, 0, 4)
        same = same_everywhere(weights(model))
    metrics = handle.metrics()
    handle.detach()
    return {"lines": lines.take(), "metrics": metrics, "same": same}


def _refusals(rank: int, world: int, cases: list[str]) -> dict[str, Any]:
    return {case: _refused(rank, world, case) for case in cases}


# What rank 0 says, and what rank 1 says of itself.
UNUSED: dict[str, tuple[str | None, str | None]] = {
    "address": ("rank 1 cannot", "no address 198.51.100.7"),
    "interface": ("rank 1 cannot", "no interface xtune-none"),
    "nameless": ("rank 1 cannot", "a rail names neither an interface nor an address"),
    "fewer": ("the ranks differ in how many they have", None),
    "none": ("the ranks differ in how many they have", None),
    "patient": ("the ranks differ in rail_timeout_s", None),
    "sharded": ("the model is sharded", None),
    "shadow": (None, None),
}
WRONG = {  # what rank 1 says of its arguments
    "text": "rails: str is no Rail",
    "nothing": "rails: NoneType is no Rail",
    "endless": "rail_timeout_s: 1e+300 is not 0.001 to 86400 s",
    "too long": "rail_timeout_s: 86401.0 is not 0.001 to 86400 s",
    "too short": "rail_timeout_s: 0.0001 is not 0.001 to 86400 s",
    "a word": "rail_timeout_s: '5' is not 0.001 to 86400 s",
    "a truth": "rail_timeout_s: True is not 0.001 to 86400 s",
}
OFF = dict.fromkeys(WRONG, "rank 1 cannot start")
OFF["off"] = "rank 1 and rank 0 differ in mode (XTUNE_POLICY)"


def _goes_on(rank: int, result: dict[str, Any], said: str | None, own: str | None) -> bool:
    expected = [f"xtune: rails are not used: {said}"] if said and rank == 0 else []
    expected += [f"xtune: rank 1: rails: {own}"] if own and rank == 1 else []
    assert result["lines"] == expected
    return "rails_alive" not in result["metrics"] and bool(result["same"])


def test_without_rails_compression_goes_on_and_one_line_says_why() -> None:
    for rank, results in enumerate(run(2, _refusals, [*UNUSED, *OFF])):
        for case, (said, own) in UNUSED.items():
            assert _goes_on(rank, results[case], said, own), case
            mode = results[case]["metrics"]["mode"]
            assert mode == ("shadow" if case == "shadow" else "on")
        for case, reason in OFF.items():  # of rails nothing more is said
            assert results[case]["metrics"]["mode"] == "off" and results[case]["same"]
            lines = [f"xtune: off on every rank: {reason}"] if rank == 0 else []
            if case in WRONG and rank == 1:
                lines = [f"xtune: rank 1 cannot start: {WRONG[case]}"]
            assert results[case]["lines"] == lines


@pytest.mark.slow
def test_nodes_use_no_rails() -> None:
    for rank, results in enumerate(run(4, _refusals, ["mesh"])):
        assert _goes_on(rank, results["mesh"], "gradients are summed inside a node first", None)
        assert results["mesh"]["metrics"]["mode"] == "on"


def _cycles(rank: int, world: int) -> dict[str, Any]:
    train(wrapped(), None, optimizer(wrapped()), rank, 0, 1)
    before, took, models = held(), [], []
    for cycle in range(CYCLES):
        model = wrapped()
        theirs = RAILS if cycle % 4 else [*RAILS[: 2 - rank]]  # which rank 1 has not enough of
        handle = attached(model, policy(period=1), rails=theirs)
        train(model, handle, optimizer(model), rank, 0, 3)
        took.append(handle.metrics().get("rails_alive"))
        handle.detach()
        models.append(model)
    return {"took": took, "more": more(before)}


@pytest.mark.slow
def test_cycles_of_attaching_give_all_of_the_rails_back() -> None:
    for result in run(2, _cycles):
        assert result["took"] == [None, [True, True], [True, True], [True, True]] * (CYCLES // 4)
        assert result["more"] == (False, False)


def _survivor(rank: int, world: int) -> None:
    model = wrapped()
    before = held()
    handle, steps = attached(model, rails=RAILS), optimizer(model)
    train(model, handle, steps, rank, 0, 4)
    leave_alone(rank, lambda: train(model, handle, steps, rank, 4, 8))
    handle.detach()
    assert more(before) == (False, False)


def test_a_rank_that_outlives_another_gives_its_rails_back() -> None:
    outlive(3, _survivor)


FLOW = ("here", "there", 0)


def _router(now: list[int], paths: int = 2) -> Router:
    made = Policy(name="routed")
    rails = [[f"rail{number}"] for number in range(paths)]
    return Router({FLOW[:2]: rails}, made, clock=lambda: now[0])


class Feed:
    """Tells the router what the test says of each rail, as a probe's feed does."""

    def __init__(self, router: Router, now: list[int]) -> None:
        self.alive = True
        self.occupancy: list[float | None] = [0.0, 0.0]  # None: its probe was lost
        self._router, self._now = router, now

    def poll(self) -> int:
        """Three outcomes of each rail, 100 us apart."""
        for _ in range(3):
            self._now[0] += 100_000
            for rail, occupancy in enumerate(self.occupancy):
                self._router.observe(f"rail{rail}", occupancy=occupancy, lost=occupancy is None)
        return 6


def _steered(rank: int, world: int) -> dict[str, Any]:
    now, lines = [10**9], Lines()
    router = _router(now)
    feed = Feed(router, now)
    steering = Steering(router, [FLOW], feeds=[feed], clock=lambda: now[0])
    model = wrapped()
    made = policy(period=2, compression=MODES["quantise"])
    handle, steps, out = (
        attached(model, made, rails=RAILS, steering=steering),
        optimizer(model),
        [],
    )
    step = 0
    for case in ("clear", "warm", "clear", "lost", "apart", "clear", "dead agent"):
        bad = 1 if case != "apart" else rank
        level = {"warm": 0.9, "lost": None, "apart": None, "dead agent": 0.9}.get(case, 0.0)
        feed.occupancy = [0.0, 0.0]
        feed.occupancy[bad] = level
        feed.alive = case != "dead agent"
        train(model, handle, steps, rank, step, step + 2)  # a period: the plan is made at its end
        planned = handle.metrics()["rail_shares"]
        before = handle.metrics()["rail_bytes"]
        step += 2
        train(model, handle, steps, rank, step, step + 1)
        sent = [a - b for a, b in zip(handle.metrics()["rail_bytes"], before, strict=True)]
        step += 1
        train(model, handle, steps, rank, step, step + 1)
        step += 1
        out.append((case, planned, sent))
    out_metrics = handle.metrics()
    handle.detach()
    return {
        "out": out,
        "lines": lines.take(),
        "refused": out_metrics["rail_plans_refused"],
        "shared_bus": handle.bus is router.bus,
        "heard": router.bus.routing.version,
        "same": same_everywhere(weights(model)),
    }


def test_the_routers_choices_become_the_plan_of_all_ranks() -> None:
    results = run(2, _steered)
    for rank, result in enumerate(results):
        planned = {case: shares for case, shares, _ in result["out"]}
        assert planned["warm"][1] == 0.0 and planned["lost"][1] == 0.0
        assert min(planned["clear"]) > 0.0
        # Rank 0 lost its rail 0, rank 1 its rail 1: the plan before holds.
        assert planned["apart"] == planned["lost"] and result["refused"] >= 1
        assert min(planned["dead agent"]) > 0.0  # as measured alone
        for case, shares, sent in result["out"]:
            assert (sent[1] == 0) == (shares[1] == 0.0), case
            assert sent[1] / sum(sent) == pytest.approx(shares[1], abs=0.02)
        said = "xtune: the ranks' routers leave no rail in common; shares stay"
        assert result["lines"] == ([said] if rank == 0 else [])
        assert result["shared_bus"] and result["heard"] > 0 and result["same"]
    assert [out[:2] for out in results[0]["out"]] == [out[:2] for out in results[1]["out"]]


def _unfit_router(rank: int, world: int) -> dict[str, Any]:
    now, lines = [10**9], Lines()
    out: dict[str, Any] = {}
    for paths in (3, 2):
        router = _router(now, paths)
        steering = Steering(router, [FLOW], clock=lambda: now[0])
        model = wrapped()
        handle = attached(model, policy(period=1), rails=RAILS, steering=steering)
        if paths == 2:  # a router that fails is left alone
            router.choose = lambda *_, **__: 1 // 0  # type: ignore[method-assign]
        train(model, handle, optimizer(model), rank, 0, 4)
        out[str(paths)] = (handle.metrics().get("rails_alive"), lines.take())
        handle.detach()
    return out


def test_a_router_that_does_not_fit_or_fails_costs_no_step() -> None:
    for rank, result in enumerate(run(2, _unfit_router)):
        why = "the router has 3 paths from here to there for 2 rails"
        said = ["xtune: rails are not used: ranks 0, 1 cannot"] if rank == 0 else []
        assert result["3"] == (None, [f"xtune: rank {rank}: rails: {why}", *said])
        alive, lines = result["2"]
        assert alive == [True, True]
        assert lines == ["xtune: the router is not asked any more: ZeroDivisionError: "
                         "integer division or modulo by zero"]  # fmt: skip


@pytest.mark.parametrize("flows", [[], [("here", "nowhere", 0)]])
def test_steering_wants_flows_that_the_router_knows(flows: list[Any]) -> None:
    with pytest.raises(ValueError, match=r"no flow|no path from here to nowhere"):
        Steering(_router([0]), flows)


def test_bursts_are_told_by_iterations() -> None:
    now = [0]
    schedule = BurstSchedule()
    steering = Steering(_router(now), [FLOW], schedule=schedule, clock=lambda: now[0])
    for iteration in range(6):
        for message in range(3):
            now[0] = iteration * 1000 + message * 100
            steering.send(10)
            now[0] += 50
            steering.carried()
        now[0] = iteration * 1000 + 700  # the optimizer's step is no part of the burst
        steering.end()
    known = schedule.known
    assert (known.number, known.begin_ns, known.end_ns, known.period_ns) == (6, 5000, 5250, 1000)
    steering.end()  # an iteration without a message
    assert schedule.known == known


@pytest.mark.parametrize(("size", "units"), [(0, 0), (1, 1), (250_000, 1), (250_001, 2)])
def test_a_message_is_as_many_units_as_the_policy_cuts_it_into(size: int, units: int) -> None:
    policy = replace_fields(preset("joint"), {"routing.unit_bytes": 250_000})
    router = Router({FLOW[:2]: [["rail0"], ["rail1"]]}, policy)
    Steering(router, [FLOW], clock=lambda: 0).send(size)
    assert router.assign(FLOW)[1] == units
    Steering(router, [FLOW], clock=lambda: 0).send(10**12)  # bounded: DDP waits for it
    assert router.assign(FLOW)[1] == units + 1 + MOST_UNITS


def test_what_one_lane_found_dead_is_dead_for_the_other_and_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    meter = Meter(3)
    lanes = [
        StripedGroups(HashStore(), 0, 1, [*RAILS, RAILS[0]], control=Rail(), meter=meter)
        for _ in range(2)
    ]
    striping = Striping(lanes, meter, first=True, steering=None)
    for lane, rail in ((1, 0), (0, 2)):
        lanes[lane].alive[rail] = False
        striping.settle()
        assert lanes[0].alive == lanes[1].alive and not lanes[1 - lane].alive[rail]
        striping.settle()
    assert striping.metrics()["rails_alive"] == [False, True, False]
    assert striping.metrics()["rail_shares"] == [0.0, 1.0, 0.0]
    said = ["xtune: rails given up: 0; 2 left", "xtune: rails given up: 2; 1 left"]
    assert caplog.messages == said
