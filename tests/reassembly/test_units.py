"""Tensors cut into units, over real connections that reorder, refuse and die."""

from __future__ import annotations

import queue
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xtune.policies import Router, preset
from xtune.policies.reassembly import UNIT_COST_BYTES, Reassembly, Unit, Verdict
from xtune.policies.units import Routed, UnitSender

FLOW = ("a", "b", 0)
UNIT_BYTES = 4096
TENSORS = 60
PATHS = [["up"], ["down"]]
HEADER = struct.Struct("!IIIII")  # epoch, tensor, index, count, payload bytes


def tensors() -> list[np.ndarray]:
    """Gradients whose sum depends on the order in which they are added."""
    rng = np.random.default_rng(7)
    return [
        (rng.standard_normal(3000) * 10.0 ** rng.integers(-6, 6)).astype(np.float32)
        for _ in range(TENSORS)
    ]


def summed(parts: list[np.ndarray]) -> bytes:
    total = np.zeros(3000, np.float32)
    for part in parts:
        total += part
    return total.tobytes()


class Wires:
    """One TCP connection for each path, read by a thread of its own."""

    def __init__(self, stack: ExitStack, hold_back: int) -> None:
        self.arrived: queue.Queue[tuple[int, Unit | None]] = queue.Queue()
        self._hold_back = hold_back  # units of path 0 that wait for so many of path 1
        self._passed = threading.Semaphore(0)
        self.ends = []
        self.threads = []
        for path in range(len(PATHS)):
            near, far = socket.socketpair()
            stack.callback(near.close)
            self.ends.append(near)
            thread = threading.Thread(target=self._read, args=(path, far))
            thread.start()
            self.threads.append(thread)

    def send(self, path: int, unit: Unit) -> None:
        size = memoryview(unit.payload).nbytes
        head = HEADER.pack(unit.epoch, unit.tensor, unit.index, unit.count, size)
        with suppress(BrokenPipeError):  # of a dead path; its reader tells
            self.ends[path].sendall(head + unit.payload)

    def cut(self, path: int) -> None:
        """What was sent and has not been read yet is lost."""
        self.ends[path].shutdown(socket.SHUT_RDWR)

    def _read(self, path: int, far: socket.socket) -> None:
        with far, far.makefile("rb") as stream:
            while len(head := stream.read(HEADER.size)) == HEADER.size:
                epoch, tensor, index, count, size = HEADER.unpack(head)
                payload = stream.read(size)
                if len(payload) < size:
                    break
                if path == 0 and self._hold_back:
                    self._passed.acquire(timeout=0.05)  # else path 1 has nothing to send
                self.arrived.put(
                    (path, Unit(epoch=epoch, tensor=tensor, index=index, count=count,
                                payload=payload))
                )  # fmt: skip
                if path == 1:
                    self._passed.release()
        self.arrived.put((path, None))


class Receiver:
    """Gathers tensors as they are released."""

    def __init__(self) -> None:
        self.stream = Reassembly(
            window=8, unit_bytes=UNIT_BYTES, budget_bytes=10 * 4 * (UNIT_BYTES + UNIT_COST_BYTES)
        )
        self.whole: list[np.ndarray] = []
        self._parts: list[Unit] = []

    def offer(self, unit: Unit) -> Verdict:
        verdict = self.stream.offer(unit, 0)
        for ready in self.stream.swap():
            if ready.index == 0:
                self._parts = []  # a tensor that came in part before a reconnection starts again
            self._parts.append(ready)
            if len(self._parts) == ready.count:
                data = b"".join(part.payload for part in self._parts)
                self.whole.append(np.frombuffer(data, np.float32))
        return verdict


def run(router: Router, *, hold_back: int = 0, before: Callable[[int], None] | None = None,
        cut_at: int | None = None) -> Receiver:  # fmt: skip
    """Send all tensors; returns the receiver."""
    sender = UnitSender(router.choose, FLOW, unit_bytes=UNIT_BYTES, window=8)
    receiver = Receiver()
    todo: Iterator[tuple[int, np.ndarray]] = iter(enumerate(tensors()))
    with ExitStack() as stack:
        wires = Wires(stack, hold_back)

        def put(routed: list[Routed]) -> None:
            for path, unit in routed:
                wires.send(path, unit)

        while len(receiver.whole) < TENSORS:
            while sender.room and (following := next(todo, None)) is not None:
                number, values = following
                if before is not None:
                    before(number)
                put(sender.send(values.tobytes()))
                if number == cut_at:
                    wires.cut(0)
            path, unit = wires.arrived.get(timeout=30)
            if unit is None:  # path 0 has died: three lost probes say so
                for _ in range(3):
                    router.observe(PATHS[path][0], lost=True)
                epoch = sender.epoch + 1
                put(sender.reconnect(epoch, receiver.stream.reconnect(epoch)))
                continue
            verdict = receiver.offer(unit)
            if verdict.again:
                put([sender.again(unit)])
            sender.confirm(receiver.stream.released)
        for path in range(len(PATHS)):
            wires.cut(path)
        for thread in wires.threads:
            thread.join()
    return receiver


def test_two_paths_give_the_bits_of_one() -> None:
    """Every unit goes over the other path than the one before, and path 0 comes late."""
    policy = preset("joint")
    router = Router({("a", "b"): PATHS}, policy)
    receiver = run(router, hold_back=1)
    assert summed(receiver.whole) == summed(tensors())
    assert max(i for i, count in enumerate(receiver.stream.depths) if count) > 0  # it was needed


def test_a_path_that_dies_loses_no_tensor() -> None:
    router = Router({("a", "b"): PATHS}, preset("joint"))
    receiver = run(router, cut_at=17)
    assert summed(receiver.whole) == summed(tensors())
    assert receiver.stream.epoch == 1
    assert router.choose(FLOW) == 1


def test_congestion_moves_units_and_keeps_their_order() -> None:
    router = Router({("a", "b"): PATHS}, preset("joint"))
    used: list[int] = []

    def before(number: int) -> None:
        now_ns = number * 1_000_000
        for path, (link,) in enumerate(PATHS):
            full = (number // 20 + path) % 2
            router.observe(link, occupancy=0.9 if full else 0.1, at_ns=now_ns)
        used.append(router.choose(FLOW, at_ns=now_ns))

    receiver = run(router, before=before)
    assert summed(receiver.whole) == summed(tensors())
    assert set(used) == {0, 1}


class Counting:
    """Gives out paths in turn."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, flow: object) -> int:
        self.asked += 1
        return self.asked % 2


@given(st.lists(st.integers(0, 50), min_size=1, max_size=10), st.integers(1, 17))
@settings(max_examples=50)
def test_units_are_the_tensor(sizes: list[int], unit_bytes: int) -> None:
    choose = Counting()
    sender = UnitSender(choose, FLOW, unit_bytes=unit_bytes, window=len(sizes))
    for number, size in enumerate(sizes):
        payload = bytes(range(size))
        units = [unit for _, unit in sender.send(payload)]
        assert b"".join(bytes(unit.payload) for unit in units) == payload
        assert [unit.index for unit in units] == list(range(max(1, -(-size // unit_bytes))))
        assert {unit.count for unit in units} == {len(units)}
        assert {unit.tensor for unit in units} == {number}
    assert sender.kept_bytes == sum(sizes)
    assert choose.asked == sum(max(1, -(-size // unit_bytes)) for size in sizes)
    assert not sender.room
    sender.confirm((len(sizes) - 1, 0))
    assert sender.kept_bytes == sizes[-1]


def test_a_sender_refuses_what_it_cannot_keep_or_has_forgotten() -> None:
    sender = UnitSender(Counting(), FLOW, unit_bytes=4, window=2)
    sender.send(b"one")
    sender.send(b"two")
    with pytest.raises(ValueError, match="2 tensors are under way"):
        sender.send(b"three")
    sender.confirm((1, 0))
    with pytest.raises(ValueError, match="tensor 2 was not sent yet"):
        sender.confirm((3, 0))
    with pytest.raises(ValueError, match="tensor 0 is not kept: 1 is the first"):
        sender.reconnect(1, 0)
    again = sender.reconnect(1, 1)
    assert [(unit.epoch, unit.tensor, bytes(unit.payload)) for _, unit in again] == [
        (1, 1, b"two")
    ]
    with pytest.raises(ValueError, match="not later"):
        sender.reconnect(1, 1)
    with pytest.raises(ValueError, match="at least 1"):
        UnitSender(Counting(), FLOW, unit_bytes=0)


def test_what_has_come_and_was_not_released_can_be_sent_again() -> None:
    """The buffer has room for one unit, so the second waits; a reconnection throws it away."""
    stream = Reassembly(unit_bytes=4, budget_bytes=4 * (4 + UNIT_COST_BYTES))
    sender = UnitSender(Counting(), FLOW, unit_bytes=4)
    for payload in (b"one", b"two"):
        ((_, unit),) = sender.send(payload)
        assert stream.offer(unit, 0) is Verdict.ADMITTED
    assert (stream.awaited, stream.released) == ((2, 0), (1, 0))
    sender.confirm(stream.released)
    again = sender.reconnect(1, stream.reconnect(1))
    assert [bytes(unit.payload) for _, unit in again] == [b"two"]
