"""Central verdicts, the end of a blacklisting, and the order of a flow's units."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from xtune.policies import DecisionLog, Policy, Router
from xtune.policies.spec import Routing

PATHS = {("a", "b"): [["up0", "down0"], ["up1", "down1"]]}
PLAIN = Routing(forecast="reading", pairs=1, hold_ns=0, moves_per_ms=1e6, stale_ns=1_000_000)
FLOW = ("a", "b", 0)
FORGET_NS = PLAIN.blacklist_forget_ns


def router(routing: Routing = PLAIN, log: DecisionLog | None = None, **levels: float) -> Router:
    made = Router(PATHS, Policy(routing=routing), clock=lambda: 0, log=log)
    for link in ("up0", "down0", "up1", "down1"):
        made.observe(link, occupancy=levels.get(link, 0.1), at_ns=0)
    return made


def lose(made: Router, link: str, at_ns: int) -> None:
    for _ in range(PLAIN.strikes):
        made.observe(link, lost=True, at_ns=at_ns)


def test_a_verdict_counts_where_this_host_has_no_reading() -> None:
    made = Router(PATHS, Policy(routing=PLAIN), clock=lambda: 0)
    for link, weight in {"up0": 0.9, "down0": 0.1, "up1": 0.1, "down1": 0.1}.items():
        made.weigh(link, weight, at_ns=5)
    assert made.choose(FLOW, at_ns=6) == 1
    assert made.links.seen_ns == [5] * 4
    made.weigh("nowhere", 0.5, at_ns=6)
    made.weigh("up0", -0.1, at_ns=6)
    assert (made.links.unknown_links, made.links.bad_readings) == (1, 1)


def test_the_later_of_verdict_and_own_reading_counts() -> None:
    made = router()
    made.weigh("up0", 0.9, at_ns=0)  # not later
    assert made.choose(FLOW, at_ns=10) == 0
    made.weigh("up0", 0.9, at_ns=20)
    assert made.choose(FLOW, at_ns=30) == 1
    made.observe("up0", occupancy=0.1, at_ns=40)
    assert made.choose(FLOW, at_ns=50) == 0
    made.observe("up0", occupancy=0.9, at_ns=60)
    assert made.choose(FLOW, at_ns=70) == 1
    made.weigh("up0", math.nan, at_ns=80)  # no verdict leaves the own reading
    assert made.links.worth[made.links.index["up0"]] == 0.9


def test_a_verdict_grows_stale_as_a_reading_does() -> None:
    made = Router(PATHS, Policy(routing=PLAIN), clock=lambda: 0)
    for link in ("up0", "down0", "up1", "down1"):
        made.weigh(link, 0.9 if link == "up0" else 0.1, at_ns=0)
    assert made.choose(FLOW, at_ns=PLAIN.stale_ns + 1) == 0
    assert made.choose(FLOW, at_ns=PLAIN.stale_ns) == 1


def test_a_central_blacklisting_counts_only_where_the_own_reading_is_stale() -> None:
    made = router()
    made.weigh("up0", math.inf, at_ns=PLAIN.stale_ns)
    assert made.choose(FLOW, at_ns=PLAIN.stale_ns) == 0
    made.weigh("up0", math.inf, at_ns=PLAIN.stale_ns + 1)
    assert made.choose(FLOW, at_ns=PLAIN.stale_ns + 1) == 1
    made.observe("up0", occupancy=0.1, at_ns=PLAIN.stale_ns + 2)
    assert made.choose(FLOW, at_ns=PLAIN.stale_ns + 2) == 0


def test_the_own_blacklist_stands_above_a_verdict() -> None:
    made = router()
    lose(made, "up0", 10)
    made.weigh("up0", 0.0, at_ns=20)
    assert made.choose(FLOW, at_ns=30) == 1


def test_what_a_dead_agent_blacklisted_is_unknown_again_after_a_while(tmp_path: Path) -> None:
    text = tmp_path / "decisions.jsonl"
    log = DecisionLog(text)
    made = router(replace(PLAIN, stale_ns=10**12), log)
    lose(made, "up0", 100)
    assert made.choose(FLOW, at_ns=100 + FORGET_NS) == 1
    assert made.choose(FLOW, at_ns=101 + FORGET_NS) == 0
    assert math.isnan(made.links.worth[made.links.index["up0"]])
    log.close()
    assert "up0: no probe outcome for 10 s" in text.read_text()
    lose(made, "up0", 102 + FORGET_NS)  # it can be blacklisted anew
    assert made.choose(FLOW, at_ns=103 + FORGET_NS) == 1


def test_outcomes_keep_a_blacklisting_alive() -> None:
    made = router(replace(PLAIN, stale_ns=10**12))
    lose(made, "up0", 0)
    for n in range(1, 5):
        made.observe("up0", lost=True, at_ns=n * FORGET_NS)
        assert made.choose(FLOW, at_ns=n * FORGET_NS + FORGET_NS // 2) == 1


def test_what_a_dead_decider_blacklisted_is_unknown_again_after_a_while() -> None:
    made = Router(PATHS, Policy(routing=PLAIN), clock=lambda: 0)
    made.weigh("up0", math.inf, at_ns=7 * FORGET_NS)
    assert made.choose(FLOW, at_ns=8 * FORGET_NS) == 1
    assert made.choose(FLOW, at_ns=8 * FORGET_NS + 1) == 0


def test_a_verdict_holds_when_the_own_blacklisting_is_forgotten() -> None:
    made = router(replace(PLAIN, stale_ns=10**12))
    lose(made, "up0", 0)
    made.weigh("up0", math.inf, at_ns=FORGET_NS)
    assert made.choose(FLOW, at_ns=FORGET_NS + 1) == 1
    made.weigh("up0", 0.2, at_ns=FORGET_NS + 2)
    assert made.choose(FLOW, at_ns=FORGET_NS + 3) == 0


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from(["static", "binary", "spray", "power_of_two"]),
    st.lists(st.tuples(st.sampled_from("abx"), st.integers(0, 2)), max_size=60),
)
def test_units_of_a_flow_are_numbered_from_zero_without_a_gap(
    mode: str, units: list[tuple[str, int]]
) -> None:
    made = router(replace(PLAIN, mode=mode))
    twin = router(replace(PLAIN, mode=mode))
    seen: defaultdict[tuple[str, str, int], list[int]] = defaultdict(list)
    for src, ident in units:
        flow = (src, "b", ident)
        path, number = made.assign(flow, at_ns=1)
        assert path == twin.choose(flow, at_ns=1)
        seen[flow].append(number)
    assert all(numbers == list(range(len(numbers))) for numbers in seen.values())
    assert made.unknown_flows == sum(src != "a" for src, _ in units)
