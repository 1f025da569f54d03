"""Which communicators lose their numbers where an operation was lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from xtune.collectors._nccl_comms import Comms
from xtune.collectors._nccl_lines import Message, Process

PROCESSES = [None, *(Process("", "node", pid) for pid in (7, 8))]
POINTERS = ["0x1", "0x2"]
STEPS = st.tuples(
    st.sampled_from(["use", "use", "lose", "destroy"]),
    st.sampled_from(PROCESSES),
    st.sampled_from([None, *POINTERS]),
)


@given(st.lists(STEPS, max_size=40))
def test_what_is_lost_is_all_that_a_null_may_stand_for(
    steps: list[tuple[str, Process | None, str | None]],
) -> None:
    comms = Comms()
    numbers: dict[tuple[Process | None, str], int | None] = {}
    for what, process, pointer in steps:
        if what == "use" and pointer is not None:
            known = numbers.get((process, pointer), 0)
            assert comms.number(comms.of(process, pointer, 4)) == known
            numbers[process, pointer] = None if known is None else known + 1
        elif what == "destroy" and pointer is not None and process is not None:
            body = f"comm {pointer} rank 1 nranks 4 cudaDev 0 busId 0 - Destroy COMPLETE"
            comms.see(Message(process, 7, "", body, False))
            numbers.pop((process, pointer), None)
        elif what == "lose":
            comms.lose(process, pointer)
            for owner, name in numbers:
                if process in (None, owner) and pointer in (None, name):
                    numbers[owner, name] = None
