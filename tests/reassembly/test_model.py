"""A stream under any order, loss, duplication, reconnection and abort."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from xtune.policies.reassembly import UNIT_COST_BYTES, Reassembly, Unit, Verdict

TENSORS = 24
WINDOW = 5
LARGEST = 600


def payload(epoch: int, tensor: int, index: int) -> bytes:
    """What no other unit holds, of a size of its own."""
    return f"{epoch}/{tensor}/{index};".encode().ljust((tensor * 7 + index * 131) % LARGEST)


class Stream(RuleBasedStateMachine):
    """A sender that may send any unit at any time, and the list of what must come out."""

    def __init__(self) -> None:
        super().__init__()
        budget = 4 * (LARGEST + UNIT_COST_BYTES) + 700
        self.stream = Reassembly(window=WINDOW, budget_bytes=budget, unit_bytes=LARGEST)
        self.counts = [1 + tensor * 5 % 4 for tensor in range(TENSORS)]
        self.epoch = 0
        self.aborted = False
        self.admitted: set[tuple[int, int]] = set()
        self.out = 0  # how far `order` has been drained in this epoch
        self.order = self.units(0)
        self.first = 0  # tensors before it are not sent in this epoch

    def units(self, first: int) -> list[tuple[int, int]]:
        return [(t, i) for t in range(first, TENSORS) for i in range(self.counts[t])]

    def send(self, key: tuple[int, int]) -> Verdict:
        tensor, index = key
        unit = Unit(
            epoch=self.epoch, tensor=tensor, index=index, count=self.counts[tensor],
            payload=payload(self.epoch, tensor, index),
        )  # fmt: skip
        verdict = self.stream.offer(unit, 0)
        if verdict is Verdict.ADMITTED:
            assert key not in self.admitted
            self.admitted.add(key)
        elif verdict in (Verdict.DUPLICATE, Verdict.LATE):
            assert key in self.admitted or key[0] < self.first
        elif self.aborted:
            assert verdict is Verdict.ABORTED
        else:
            assert verdict.again and key not in self.admitted
        return verdict

    def drain(self) -> int:
        got = self.stream.swap()
        for unit in got:
            assert (unit.tensor, unit.index) == self.order[self.out]
            assert unit.payload == payload(unit.epoch, unit.tensor, unit.index)
            self.out += 1
        return len(got)

    @rule(data=st.data())
    def any_unit(self, data: st.DataObject) -> None:
        tensor = data.draw(st.integers(0, TENSORS - 1))
        self.send((tensor, data.draw(st.integers(0, self.counts[tensor] - 1))))

    @rule(ahead=st.integers(-4, 25))
    def near_unit(self, ahead: int) -> None:
        """Around the one that is awaited, where most of the rules meet."""
        at = self.order.index(self.stream.awaited) if self.stream.awaited in self.order else 0
        for key in self.order[max(0, at + ahead) :][:1]:
            self.send(key)

    @rule()
    def swap(self) -> None:
        self.drain()

    @rule(tensor=st.integers(0, TENSORS - 1), ahead=st.sampled_from([-1, 1]))
    def other_epoch(self, tensor: int, ahead: int) -> None:
        unit = Unit(
            epoch=self.epoch + ahead,
            tensor=tensor,
            index=0,
            count=self.counts[tensor],
            payload=b"",
        )
        wanted = Verdict.LATE if ahead < 0 else Verdict.NEWER_EPOCH
        assert self.stream.offer(unit, 0) is wanted

    @rule(resume=st.booleans())
    def reconnect(self, resume: bool) -> None:
        self.epoch += 1
        first = self.stream.reconnect(self.epoch, resume=resume)
        drained = set(self.order[: self.out])
        if not resume or self.aborted:
            assert first == 0
        else:  # what is not to be sent again must have come, and still comes out
            before = [key for key in self.order if key[0] < first]
            assert set(before) <= self.admitted | drained
        still = [key for key in self.order[self.out :] if key[0] < first]
        self.order = still + self.units(first)
        self.out, self.first = 0, first
        self.admitted = set(still)
        self.aborted = False

    @rule()
    def abort(self) -> None:
        self.stream.abort("for a test")
        self.aborted = True
        assert self.stream.swap() == []

    @precondition(lambda self: not self.aborted)
    @rule(random=st.randoms(use_true_random=False))
    def deliver_all(self, random: object) -> None:
        """Whatever the state: sending what is missing until it is taken releases everything."""
        assert hasattr(random, "shuffle")
        while self.out < len(self.order):
            missing = [key for key in self.order if key not in self.admitted]
            random.shuffle(missing)
            for key in missing:
                self.send(key)
            assert self.drain() > 0 or self.drain() > 0 or not missing

    @invariant()
    def never_above_the_budget(self) -> None:
        assert 0 <= self.stream.resident_bytes <= self.stream.budget_bytes

    @invariant()
    def a_gap_is_a_unit_that_has_not_come(self) -> None:
        gap = self.stream.gap
        if gap is not None:
            assert (gap.tensor, gap.index) not in self.admitted
            assert all(k in self.admitted for k in self.order if k < (gap.tensor, gap.index))


Stream.TestCase.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
TestStream = Stream.TestCase
