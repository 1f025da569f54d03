"""What steps cost: by hand, and by a twin that adds them up one by one."""

from __future__ import annotations

from statistics import median, quantiles
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipelines.impact import collective, episode, hours, priced, step
from xtune.pipelines._identity import Identity

E = [episode(100, 200)]
# 3600 ranks: a second is an hour.
SIZES: dict[str | None, int] = {"j": 3600, "k": 3600}


def before(count: int = 9, seconds: float = 2.0, **more: Any) -> list[dict[str, Any]]:
    return [step(n, -50 + 2 * n, seconds, **more) for n in range(count)]


def cost(rows: list[dict[str, Any]], episodes: Any = E) -> dict[str, Any]:
    [found] = priced(episodes, steps=rows, sizes=SIZES)["episode_costs"]
    return found


def test_a_fast_step_makes_up_for_no_slow_one() -> None:
    """2 usual; 5 lost 3; 1 was hit and not slowed."""
    found = cost([*before(), step(20, 110, 5.0), step(21, 120, 1.0)])
    assert (found["steps_affected"], found["idle_gpu_hours"]) == (2, pytest.approx(3.0))


def test_noise_cancels_out() -> None:
    """Usual 1.9 to 2.1; the steps hit are no slower than that: 0.1 - 0.1 + 0 lost."""
    usual = [step(n, -50 + 2 * n, s) for n, s in enumerate([1.9, 2.0, 2.1] * 5)]
    found = cost([*usual, step(20, 110, 2.1), step(21, 120, 1.9), step(22, 130, 2.0)])
    assert found["idle_gpu_hours"] == pytest.approx(0.0, abs=1e-9)


def test_one_row_in_ten_costs_as_much_as_ten() -> None:
    """Steps of 2 s, of 5 s from 100 s to 200 s; each printed, or the mean of every tenth."""
    ends, now = [], -100.0
    while now < 400:
        now += 5.0 if 100 <= now < 200 else 2.0
        ends.append(now)
    lengths = [b - a for a, b in zip([-100.0, *ends], ends, strict=False)]
    each = [
        step(n + 1, end, length) for n, (end, length) in enumerate(zip(ends, lengths, strict=True))
    ]
    tenth = [
        step(n, ends[n - 1], sum(lengths[n - 10 : n]) / 10) for n in range(10, len(ends) + 1, 10)
    ]
    lost = sum(length - 2.0 for length in lengths)
    assert cost(each)["idle_gpu_hours"] == pytest.approx(lost)
    assert cost(tenth)["idle_gpu_hours"] == pytest.approx(lost)
    assert cost(each)["steps_affected"] == sum(length > 2 for length in lengths) == 20
    assert cost(tenth)["steps_affected"] in (20, 21, 22)  # which of ten were hit is not known


def test_loss_and_skipped_steps_around_an_episode() -> None:
    rows = [step(n, 10 * n, 2.0, loss=100.0 - n) for n in range(60)]
    for row in rows[12:14]:
        row |= {"skipped": 1, "step_time_s": 5.0}
    [row] = priced(E, steps=rows, sizes=SIZES)["episodes"]
    # Steps 11 to 20 are hit; before it 6..10 with 94..90, after it 21..25 with 79..75.
    assert (row["steps_affected"], row["skipped"]) == (10, 2)
    assert (row["loss_before"], row["loss_after"]) == (92.0, 77.0)


def test_yesterdays_steps_are_usual_and_older_ones_are_not() -> None:
    hit = step(900, 110, 5.0)
    yesterday = [step(n, -86400 + 2 * n, 2.0) for n in range(9)]
    older = [step(n, -3 * 86400 + 2 * n, 2.0) for n in range(9)]
    assert cost([hit, *yesterday])["idle_gpu_hours"] == pytest.approx(3.0)
    assert cost([hit, *older])["idle_gpu_hours"] is None


def test_jobs_whose_hosts_are_partly_known() -> None:
    """The episode is at host a. Hosts a and b are of the fabric, c is nowhere in it."""
    identity = Identity(host_of={"a/x_0/1": "a", "b/x_0/1": "b"})
    places = {"here": ["a"], "there": ["b"], "partly": ["b", "c"], "both": ["a", "c"]}
    rows = [
        collective(n, 120, 5, rank=n, job=job, host=host, comm=job)
        for job, hosts in places.items()
        for n, host in enumerate(hosts)
    ]
    found = priced(E, collectives=rows, identity=identity)
    # What has a is on it; a was of no other job that is known to be wholly elsewhere.
    sure = {r["job"]: r["certain"] for r in found["episode_costs"]}
    assert sure == {"here": True, "both": True}
    # Had nobody else been on a, the rest of "partly" might be.
    alone = [row for row in rows if row["job"] in ("there", "partly")]
    found = priced(E, collectives=alone, identity=identity)
    assert {r["job"]: r["certain"] for r in found["episode_costs"]} == {"partly": False}


def slowed_by(steps: list[tuple[float, frozenset[int], bool]]) -> list[frozenset[int]]:
    """Which of the episodes at its time slowed each step, by the pace without some of them.

    Args:
        steps: Of one job: seconds, episodes that it overlaps, and whether it is whole in all.
    """
    paces = {
        here: quantiles(seen, n=4, method="inclusive")[2]
        for here in {here for _, here, _ in steps}
        if len(seen := [s for s, at, whole in steps if whole and at == here]) >= 3
    }
    found = []
    for seconds, here, _ in steps:
        parts = [part for part in paces if part < here]
        slow = [part for part in parts if seconds <= 1.1 * paces[part]]
        few = [part for part in slow if len(part) == min(map(len, slow))]
        left = frozenset().union(*few) or here
        left_out = frozenset().union(*(part for part in parts if part not in slow))
        found.append(left - left_out or left)
    return found


SPAN = st.tuples(st.integers(0, 900), st.integers(1, 300))
LINKS = st.lists(
    st.sampled_from(["a/x_0/1", "b/x_0/1", "c/x_0/1"]), min_size=1, max_size=3, unique=True
)


@given(
    spans=st.lists(st.tuples(SPAN, LINKS, st.booleans()), min_size=1, max_size=5),
    slow=st.lists(st.tuples(st.sampled_from(["j", "k"]), SPAN), max_size=6),
    threads=st.sampled_from([1, 2]),
)
@settings(max_examples=5, deadline=None)
def test_cost_is_conserved(
    spans: list[tuple[tuple[int, int], list[str], bool]],
    slow: list[tuple[str, tuple[int, int]]],
    threads: int,
) -> None:
    """Each affected step counts once: over jobs, over links, and over episodes' own parts.

    The twin lays out steps of 2 s back to back, of 7 s where a job is slow, and adds up what every
    step lost that any episode touches; an episode carries those that it slowed.
    """
    episodes = [
        episode(start, start + length, f"e{i}", links=links, root=links[0] if rooted else None)
        for i, ((start, length), links, rooted) in enumerate(spans)
    ]
    rows: list[dict[str, Any]] = []
    lost: dict[str, float] = {}
    full = dict.fromkeys((e.id for e in episodes), 0.0)
    for job in ("j", "k"):
        now = -300.0
        outside: list[float] = []
        hit: list[tuple[float, frozenset[int], bool]] = []
        while now < 1300:
            slowed = any(a <= now < a + n for name, (a, n) in slow if name == job)
            end = now + (7.0 if slowed else 2.0)
            rows.append(step(len(rows), end, end - now, job=job))
            here = {
                i: (a, a + n) for i, ((a, n), _, _) in enumerate(spans) if now < a + n and end > a
            }
            if here:
                whole = all(a <= now and end <= b for a, b in here.values())
                hit.append((end - now, frozenset(here), whole))
            else:
                outside.append(end - now)
            now = end
        usual = median(outside)
        lost[job] = sum(max(0.0, s - usual) for s, _, _ in hit)
        for (s, _, _), slowing in zip(hit, slowed_by(hit), strict=True):
            for i in slowing:
                full[f"e{i}"] += max(0.0, s - usual)
    found = priced(episodes, steps=rows, sizes=SIZES, threads=threads)
    touched = {r["job"] for r in found["episode_costs"]}
    assert hours(found, "job") == {job: pytest.approx(lost[job]) for job in touched}
    total = sum(lost.values())
    assert sum(hours(found, "link").values()) == pytest.approx(total)
    assert hours(found, "all") == {None: pytest.approx(total)}
    assert sum(r["unshared_gpu_hours"] for r in found["episode_costs"]) == pytest.approx(total)
    carried = {r["episode_id"]: r["idle_gpu_hours"] for r in found["episodes"]}
    assert carried == {name: pytest.approx(h) for name, h in full.items()}
