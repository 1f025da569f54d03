from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from xtune.policies import (
    Bus,
    Controller,
    DecisionLog,
    Layer,
    Policy,
    PolicyError,
    preset,
    replace_fields,
)
from xtune.policies.compress.bucket import LayerPower
from xtune.policies.plan import Plan
from xtune.policies.spec import Rung

LAYERS = [Layer(name=f"layer{i}", elements=100_000, depth=i / 9) for i in range(10)]
WORLD = 4


def policy(**changes: object) -> Policy:
    named = {name.replace("__", "."): value for name, value in changes.items()}
    base = {"period.iterations": 10, "compression.warmup_iterations": 20}
    return replace_fields(preset("joint"), base | named)


def observe(controller: Controller, step: int, comm_s: float, change: float | None = 0.1) -> None:
    """One iteration whose communication shrinks with its bytes."""
    sent = 1.0 - controller.plan.ratio
    controller.observe(
        step,
        comm_s=comm_s * sent,
        modelled_s=sent,
        wire_bytes=round(2000 * sent),
        gradient_change=change,
    )


def drive(
    controller: Controller, steps: range, comm_s: float = 1.0, loss: float | None = None
) -> list[int]:
    """Run alone; a falling loss unless one is given. Returns the rung of each iteration."""
    taken = []
    for step in steps:
        taken.append(controller.begin(step).rung)
        if step:
            controller.losses(step - 1, 0.999**step if loss is None else loss, True)
        observe(controller, step, comm_s)
        if controller.due(step):
            controller.agree(step, controller.report())
    return taken


def combine(reports: Sequence[Sequence[float]]) -> list[float]:
    return [max(column) for column in zip(*reports, strict=True)]


def test_warm_up_then_one_rung_a_period() -> None:
    taken = drive(Controller(policy(), LAYERS, WORLD), range(60), comm_s=3.0)
    assert taken == [0] * 20 + [1] * 10 + [2] * 10 + [3] * 20


def test_due_every_t_iterations_and_when_the_warm_up_ends() -> None:
    controller = Controller(policy(period__iterations=7), LAYERS, WORLD)
    assert [step for step in range(30) if controller.due(step)] == [6, 13, 19, 20, 27]


@pytest.mark.parametrize("period", (1, 10, 500))
def test_a_long_period_does_not_prolong_the_warm_up(period: int) -> None:
    controller = Controller(policy(period__iterations=period), LAYERS, WORLD)
    assert drive(controller, range(25)) == [0] * 20 + [1] * 5


@pytest.mark.parametrize("period", (1, 7, 50))
def test_regulations_count_and_not_their_period(period: int) -> None:
    """The same figures at each regulation give the same plans, whatever T is."""
    made = policy(period__iterations=period, compression__warmup_iterations=0)
    controller = Controller(made, LAYERS, WORLD)
    rungs = []
    for number, comm_s in enumerate((3.0, 3.0, 3.0, 1.0, 1.0, 2.0)):
        for step in range(number * period, (number + 1) * period):
            controller.begin(step)
            if controller.due(step):
                # Straight to the agreed numbers: smoothing within a period is not the question.
                controller.agree(step, [comm_s, -2.0, -2.0, -2.0, -2.0, -2.0])
        rungs.append(controller.begin((number + 1) * period).rung)
    assert rungs == [2, 3, 3, 1, 1, 2]


def test_ranks_that_see_different_things_plan_alike() -> None:
    rng = random.Random(5)
    made = policy(safety__iterations=3, safety__gate=0.001)
    ranks = [Controller(made, LAYERS, WORLD) for _ in range(WORLD)]
    plans = []
    for step in range(400):
        now = [rank.begin(step) for rank in ranks]
        assert len({plan.digest() for plan in now}) == 1
        assert all(plan == now[0] for plan in now)
        plans.append(now[0])
        loss = rng.uniform(0.99, 1.0) * 0.9995**step if step % 17 else None
        for rank in ranks:
            if step:
                rank.losses(step - 1, loss, step % 97 != 0)
            rank.observe(
                step,
                comm_s=rng.choice([math.nan, rng.uniform(0.5, 4)]),
                modelled_s=rng.choice([None, 1.0]),
                wire_bytes=1000,
                gradient_change=rng.choice([None, rng.uniform(0, 2), math.inf]),
                step_s=rng.choice([None, rng.uniform(1, 5)]),
            )
        if ranks[0].due(step):
            combined = combine([rank.report() for rank in ranks])
            for rank in ranks:
                rank.agree(step, combined)
    assert len({plan.rung for plan in plans}) >= 3
    assert ranks[0].retreats > 0
    assert len({rank.retreats for rank in ranks}) == 1


def test_the_slowest_rank_and_the_least_bandwidth_decide() -> None:
    ranks = [Controller(policy(), LAYERS, WORLD) for _ in range(3)]
    for rank, comm_s, share in zip(ranks, (1.0, 3.0, 1.2), (0.9, 0.8, 0.3), strict=True):
        rank.begin(0)
        observe(rank, 0, comm_s)
        rank.bus.push_routing(available_share=share)
    combined = combine([rank.report() for rank in ranks])
    assert combined[:4] == pytest.approx([3.0, -2.0, -0.3, 0.1])


def test_what_routing_said_is_averaged_and_what_it_did_not_say_again_is_unknown() -> None:
    controller = Controller(policy(), LAYERS, WORLD)
    for step, (level, share) in enumerate(((3, 0.2), (2, 0.4), (2, None))):
        controller.bus.push_routing(level=level, available_share=share)
        observe(controller, step, 1.0)
        observe(controller, step, 1.0)  # the same snapshot counts once
    report = controller.report()
    assert report == controller.report()
    assert report[1:3] == pytest.approx([7 / 3, -0.3])
    controller.agree(2, report)
    assert controller.begin(3).level == 2
    assert controller.report()[1:3] == [-2.0, -2.0]


def test_a_retreat_acts_two_iterations_after_the_loss_and_asks_for_reserve() -> None:
    bus = Bus()
    made = policy(safety__iterations=4, safety__smoothing=1.0, period__iterations=10)
    controller = Controller(made, LAYERS, WORLD, bus=bus)
    drive(controller, range(20), comm_s=3.0)
    assert controller.begin(20).rung == 1
    for step in range(20, 26):
        # The losses of 21..24 are the four bad ones; that of 24 is known in iteration 25.
        assert controller.begin(step).rung == 1
        controller.losses(step - 1, 2.0 + step, True)
        observe(controller, step, 3.0)
    assert controller.retreats == 1
    assert bus.reserve == 0.0
    plan = controller.begin(26)
    assert (plan.rung, plan.reserve) == (0, 0.1)
    assert bus.reserve == 0.1
    # Held for two regulations (29, 39); the third (49) may raise it again, and the reserve goes.
    assert drive(controller, range(26, 52), comm_s=3.0) == [0] * 24 + [1] * 2
    assert bus.reserve == 0.0


def stall(controller: Controller, steps: range) -> None:
    """Iterations whose loss only rises, up to the one that makes the controller retreat."""
    for step in steps:
        controller.begin(step)
        controller.losses(step - 1, 2.0 + step, True)
        if controller.retreats:
            return
        observe(controller, step, 3.0)


def modes_after_compression(feedback: bool) -> list[str]:
    made = policy(
        safety__iterations=4, safety__smoothing=1.0, compression__error_feedback=feedback
    )
    controller = Controller(made, LAYERS, WORLD)
    drive(controller, range(20), comm_s=3.0)
    stall(controller, range(20, 30))
    assert controller.plan.rung == 1
    modes = []
    for step in range(26, 30):
        modes.append(controller.begin(step).mode)
        controller.observe(
            step, comm_s=1.0, modelled_s=1.0, wire_bytes=1, gradient_change=None, sound=step > 26
        )
    return modes


def test_residuals_are_sent_once_before_gradients_travel_as_they_are() -> None:
    # The first of them is skipped on all ranks, so that nothing was sent in it.
    assert modes_after_compression(feedback=True) == ["bf16", "bf16", "dense", "dense"]
    assert modes_after_compression(feedback=False) == ["dense"] * 4


def test_an_iteration_that_sends_residuals_is_resumed_as_one() -> None:
    made = policy(safety__iterations=4, safety__smoothing=1.0)
    controller = Controller(made, LAYERS, WORLD)
    drive(controller, range(20), comm_s=3.0)
    stall(controller, range(20, 30))
    for step, mode in ((26, "bf16"), (27, "dense")):
        plan = controller.begin(step)
        resumed = Controller(made, LAYERS, WORLD)
        state = json.dumps(controller.state_dict())
        resumed.load_state_dict(json.loads(state))
        assert resumed.plan == plan
        assert resumed.plan.mode == mode
        assert json.dumps(resumed.state_dict()) == state
        observe(controller, step, 1.0)


def test_a_retreat_goes_below_the_rung_in_force_and_not_below_one_that_waits() -> None:
    made = policy(safety__iterations=4, safety__smoothing=1.0)
    controller = Controller(made, LAYERS, WORLD)
    drive(controller, range(20), comm_s=3.0)
    stall(controller, range(20, 25))
    assert controller.begin(25).rung == 1
    controller.agree(25, [3.0, -2.0, -2.0, -2.0, -2.0, -2.0])  # rung 2 would follow
    controller.losses(24, 99.0, True)
    assert controller.begin(26).rung == 0


def test_times_from_before_a_retreat_say_nothing_of_the_rung_after_it() -> None:
    made = policy(safety__iterations=4, safety__smoothing=1.0)
    controller = Controller(made, LAYERS, WORLD)
    drive(controller, range(20), comm_s=3.0)
    stall(controller, range(20, 30))
    assert controller.report()[5] > 0
    assert controller.begin(26).rung == 0
    assert controller.report()[5] == -2.0
    slowdown = controller.report()[0]
    observe(controller, 26, 90.0)  # residuals are sent in this one
    assert controller.report()[5] == -2.0
    assert controller.report()[0] == slowdown
    controller.begin(27)
    observe(controller, 27, 7.0)
    assert controller.report()[5] == pytest.approx(7.0, rel=1e-3)


def test_resume_is_exact(tmp_path: Path) -> None:
    for cut in (1, 25, 33, 64):
        rng = random.Random(9)
        made = policy(safety__iterations=3)
        whole, first = Controller(made, LAYERS, WORLD), Controller(made, LAYERS, WORLD)
        running = first
        for step in range(120):
            if step == cut:
                state = json.loads(json.dumps(first.state_dict()))
                running = Controller(made, LAYERS, WORLD)
                running.load_state_dict(state)
                assert running.plan == first.plan
            loss, comm_s, change = rng.random(), rng.uniform(1, 4), rng.uniform(0, 2)
            for controller in (whole, running):
                controller.begin(step)
                if step:
                    controller.losses(step - 1, loss, True)
                observe(controller, step, comm_s, change)
                if controller.due(step):
                    controller.agree(step, controller.report())
            assert whole.plan == running.plan
        assert json.dumps(whole.state_dict()) == json.dumps(running.state_dict())


def test_a_state_of_something_else_is_refused() -> None:
    state = Controller(policy(), LAYERS, WORLD).state_dict()
    with pytest.raises(PolicyError, match=r"state\.layers: 10 is not 9"):
        Controller(policy(), LAYERS[1:], WORLD).load_state_dict(state)
    with pytest.raises(PolicyError, match=r"state\.policy"):
        Controller(policy(period__iterations=11), LAYERS, WORLD).load_state_dict(state)
    with pytest.raises(PolicyError, match=r"state\.version: None"):
        Controller(policy(), LAYERS, WORLD).load_state_dict({})


def test_baselines_do_not_regulate() -> None:
    for name, rung in (("static_dense", 0), ("fixed_drop", 1), ("priority", 0)):
        made = replace_fields(preset(name), {"period.iterations": 5})
        controller = Controller(made, LAYERS, WORLD)
        assert drive(controller, range(60), comm_s=3.0, loss=1.0) == [rung] * 60
        assert controller.changes == 0


def test_every_change_is_noted_once(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path / "log", clock=lambda: 1)
    controller = Controller(policy(), LAYERS, WORLD, log)
    drive(controller, range(60), comm_s=3.0)
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [
        (x["step"], x["kind"], x["after"]) for x in lines if x["kind"] in ("level", "bits")
    ] == [
        (10, "level", "3"),
        (20, "bits", "8x10"),
        (30, "bits", "4x6 8x4"),
        (40, "bits", "4x10"),
    ]
    assert controller.changes == 3


def test_a_report_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="6 entries"):
        Controller(policy(), LAYERS, WORLD).agree(0, [1.0])


def by_norms(budget: float = 1.0) -> Controller:
    made = policy(compression__allocation="norms", compression__error_budget=budget)
    return Controller(made, LAYERS, WORLD)


def spiky(*peaks: float) -> dict[int, LayerPower]:
    return {i: LayerPower(squares=1.0, peaks=peak) for i, peak in enumerate(peaks)}


def test_bits_follow_what_is_measured_and_the_ratio_follows_the_bits() -> None:
    controller, plain = by_norms(), Controller(policy(), LAYERS, WORLD)
    drive(controller, range(20), comm_s=2.0)
    assert controller.begin(20).bits == drive_to(plain, 20).bits  # nothing was measured
    # Layers of the head are flat, one near the input is spiky: 4 times the peaks are 2 bits.
    controller.observe_layers(spiky(8 * 64, *[8.0] * 9))
    drive(controller, range(20, 30), comm_s=2.0)
    plan = controller.begin(30)
    assert plan.mode == "quantise"
    assert plan.bits[0] >= max(plan.bits[1:]) + 2
    assert plan.ratio > drive_to(plain, 30).ratio  # the same rung, the same error, fewer bytes


def drive_to(controller: Controller, step: int) -> Plan:
    drive(controller, range(step), comm_s=2.0)
    return controller.begin(step)


def test_ranks_agree_on_bits_though_they_measured_apart() -> None:
    ranks = [by_norms() for _ in range(3)]
    for step in range(40):
        plans = {rank.begin(step) for rank in ranks}
        assert len(plans) == 1
        for number, rank in enumerate(ranks):
            observe(rank, step, 2.0)
            near = 1 + number * 1e-9  # sums of other processors may differ in the last digits
            rank.observe_layers(spiky(*[8.0 * 4**i * near for i in range(10)]))
        if ranks[0].due(step):
            combined = combine([rank.report() for rank in ranks])
            for rank in ranks:
                rank.agree(step, combined)
    assert len(set(plans.pop().bits)) > 2


def test_bits_by_norms_resume_as_they_were() -> None:
    controller = by_norms()
    controller.observe_layers(spiky(*[8.0 * 2**i for i in range(10)]))
    drive(controller, range(30), comm_s=2.0)
    controller.observe_layers(spiky(*[8.1 * 2**i for i in range(10)]))
    again = by_norms()
    again.load_state_dict(json.loads(json.dumps(controller.state_dict())))
    assert again.begin(30) == controller.begin(30)
    assert again.report() == controller.report()
    for each in (again, controller):
        drive(each, range(30, 50), comm_s=2.0)
    assert repr(again.state_dict()) == repr(controller.state_dict())  # NaN is not equal to itself


def test_what_is_not_finite_is_not_measured() -> None:
    controller = by_norms()
    controller.observe_layers({0: LayerPower(squares=math.inf, peaks=1.0)})
    controller.observe_layers({1: LayerPower(squares=1.0, peaks=math.nan)})
    assert set(controller.report()[-20:]) == {-2.0}
    with pytest.raises(ValueError, match="26 entries"):
        controller.agree(9, [0.0] * 6)


def test_a_rung_of_shared_elements_is_the_last_resort() -> None:
    ladder = (*policy().compression.ladder,
              Rung(name="s", bits_input=16, bits_head=16, keep_share=0.02))  # fmt: skip
    made = policy(compression__ladder=ladder, compression__rung_by_level=(1, 2, 3, 4))
    controller = Controller(made, LAYERS, WORLD)
    assert drive(controller, range(70), comm_s=9.0)[-1] == 4
    plan = controller.begin(70)
    assert (plan.mode, plan.keep_share, set(plan.bits)) == ("shared", 0.02, {16})
    assert plan.ratio > 0.85


def test_layers_are_measured_only_for_what_is_decided_by_it() -> None:
    plain, norms = Controller(policy(), LAYERS, WORLD), by_norms()
    assert [step for step in range(40) if plain.measures(step)] == []
    assert [step for step in range(40) if norms.measures(step)] == [9, 19, 29, 39]
