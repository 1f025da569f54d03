"""The router against a plain model, and what must hold whatever it is told."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st

from xtune.policies import Policy, Router
from xtune.policies.spec import Routing

PATHS = [["up0", "down0"], ["up1", "down1"], ["up2", "mid", "down2"]]
LINKS = [link for path in PATHS for link in path]
FLOW = ("a", "b", 0)
FORGET_NS = 20_000

EVENTS = st.lists(
    st.tuples(
        st.sampled_from(LINKS),
        st.sampled_from([0.0, 0.1, 0.39, 0.4, 0.49, 0.5, 0.6, 0.7, 0.9, 1.0, None]),
        st.integers(0, 3).map(lambda draw: draw == 0),
        st.sampled_from([0, 500, 1000, 5000, FORGET_NS + 1]),
        st.sampled_from([1, 1, 3, 5]),  # so many times in a row: what blacklists and re-admits
    ),
    max_size=80,
)


CLEAR = [(link, 0.1, False, 0, 1) for link in LINKS]
# A dead primary, and what stands for it fills; a warned primary, and its alternative dies.
FILLS = [*CLEAR, ("up0", None, True, 0, 3), ("mid", 1.0, False, 0, 1), ("up0", 0.1, False, 0, 5)]
# A dead primary, of what stands for it nothing is known, and another path turns out to be cold.
BLIND = [("up0", None, True, 0, 3), ("up1", 0.1, False, 0, 1), ("down1", 0.1, False, 0, 1)]
DIES = [*CLEAR, ("up0", 0.9, False, 0, 1), ("mid", None, True, 0, 3), ("mid", 0.1, False, 0, 5)]


class Model:
    """The rules as prose has them, one flow on one pair whose alternatives are 2, then 1."""

    def __init__(self, hold_ns: int) -> None:
        self.hold_ns = hold_ns
        self.reading: dict[str, float] = {}
        self.lost = dict.fromkeys(LINKS, 0)
        self.answered = dict.fromkeys(LINKS, 0)
        self.dead: set[str] = set()
        self.heard_ns = dict.fromkeys(LINKS, 0)
        self.on = 0
        self.moved_ns = -(10**9)

    def observe(self, link: str, occupancy: float | None, lost: bool, now_ns: int) -> None:
        self.forget(now_ns)
        self.heard_ns[link] = now_ns
        if lost:
            self.lost[link] += 1
            self.answered[link] = 0
            if self.lost[link] >= 3:
                self.dead.add(link)
            return
        self.lost[link] = 0
        self.answered[link] += 1
        if self.answered[link] >= 5:
            self.dead.discard(link)
        if occupancy is not None:
            self.reading[link] = occupancy

    def alive(self, path: int) -> bool:
        return not self.dead.intersection(PATHS[path])

    def worst(self, path: int) -> float | None:
        """The worst of what is known."""
        return max((self.reading[x] for x in PATHS[path] if x in self.reading), default=None)

    def known(self, path: int) -> bool:
        return all(link in self.reading for link in PATHS[path])

    def cold(self, path: int) -> bool:
        worst = self.worst(path)
        return self.alive(path) and self.known(path) and worst is not None and worst < 0.4

    def go(self, path: int, now_ns: int) -> None:
        if path != self.on:
            self.on, self.moved_ns = path, now_ns

    def first_cold(self) -> int | None:
        return next((path for path in (2, 1) if self.cold(path)), None)

    def warned(self, path: int) -> bool:
        worst = self.worst(path)
        return worst is not None and worst >= 0.7

    def forget(self, now_ns: int) -> None:
        """Of a dead link that nothing is heard of, no more is known than of a new one."""
        for link in list(self.dead):
            if now_ns - self.heard_ns[link] > FORGET_NS:
                self.dead.discard(link)
                self.lost[link] = self.answered[link] = 0
                self.reading.pop(link, None)

    def choose(self, now_ns: int) -> int:
        self.forget(now_ns)
        if not self.alive(0):
            if self.on == 0 or not self.alive(self.on):
                usable = [path for path in (2, 1) if self.alive(path)]
                rank = {p: (self.worst(p) or 0.0) if self.known(p) else 99.0 for p in usable}
                self.on = self.first_cold() or min(usable, key=rank.__getitem__, default=0)
            elif now_ns - self.moved_ns >= self.hold_ns and (
                self.warned(self.on) or not self.known(self.on)
            ):
                self.go(self.first_cold() or self.on, now_ns)
            return self.on
        if self.on and not self.alive(self.on):
            self.on = (self.first_cold() or 0) if self.warned(0) else 0
            return self.on
        if now_ns - self.moved_ns < self.hold_ns:
            return self.on
        primary = self.worst(0)
        warned = self.warned(0)
        if self.on == 0:
            if warned:
                self.go(self.first_cold() or 0, now_ns)
            return self.on
        other = self.worst(self.on) if self.known(self.on) else None
        clear = primary is not None and primary < 0.5
        unknown = other is None and not warned
        worse = other is not None and other >= 0.7 and primary is not None and primary < other
        if clear or unknown or worse:
            self.go(0, now_ns)
        return self.on


@settings(max_examples=300, deadline=None)
@given(events=EVENTS)
@example(events=FILLS)
@example(events=DIES)
@example(events=BLIND)
def test_the_router_does_what_the_model_does(
    events: list[tuple[str, float | None, bool, int, int]],
) -> None:
    routing = Routing(
        forecast="reading",
        pairs=1,
        hold_ns=2000,
        moves_per_ms=1e6,
        stale_ns=10**12,
        blacklist_forget_ns=FORGET_NS,
    )
    router = Router({("a", "b"): PATHS}, Policy(routing=routing), clock=lambda: 0)
    model = Model(2000)
    now_ns = 0
    for link, occupancy, lost, gap, times in events:
        now_ns += gap + 2  # two ns refill the move budget, which is not the question here
        for _ in range(times):
            router.observe(link, occupancy=occupancy, lost=lost, at_ns=now_ns)
            model.observe(link, occupancy, lost, now_ns)
        assert router.choose(FLOW, at_ns=now_ns) == model.choose(now_ns)


@settings(max_examples=200, deadline=None)
@given(
    events=EVENTS,
    hold_ns=st.sampled_from([0, 1000, 20_000]),
    moves_per_ms=st.sampled_from([0.0, 5.0, 50.0]),
    forecast=st.sampled_from(["reading", "ewma", "slope", "holt"]),
)
def test_moves_keep_to_hold_and_budget_while_no_path_dies(
    events: list[tuple[str, float | None, bool, int, int]],
    hold_ns: int,
    moves_per_ms: float,
    forecast: str,
) -> None:
    routing = Routing(forecast=forecast, pairs=1, hold_ns=hold_ns, moves_per_ms=moves_per_ms)
    router = Router({("a", "b"): PATHS}, Policy(routing=routing), clock=lambda: 0)
    now_ns, last, moves = 0, 0, []
    router.choose(FLOW, at_ns=0)
    for link, occupancy, _, gap, _ in events:
        now_ns += gap
        router.observe(link, occupancy=occupancy, at_ns=now_ns)
        index = router.choose(FLOW, at_ns=now_ns)
        if index != last:
            moves.append(now_ns)
        last = index
    assert len(moves) == router.moves
    assert all(b - a >= hold_ns for a, b in pairwise(moves))
    assert len(moves) <= 2 + moves_per_ms * now_ns * 1e-6 + 1e-9
