from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.collectors_nccl.helpers import context, read_bytes, read_path, some
from xtune.collectors.decisions import COLLECTOR
from xtune.policies.decisions import DecisionLog


def test_what_the_engine_writes_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    log = DecisionLog(path, 3, lambda: 1_700_000_000_000_000_001, job="j")
    log.change(200, "level", 0, 2, "wait over 0.15")
    log.change(201, "bits", (16, 4), (8, 4), "")
    log.change(202, "ratio", 0.5, 0.5, "no change, no line")
    log.close()
    (written,) = tmp_path.glob("decisions.jsonl*")
    assert COLLECTOR.claim(written, written.read_bytes()) > 0.9
    read = read_path(COLLECTOR, written)
    assert not read.rejects and not read.notes
    first, second = read.rows
    assert some(first, "ts", "job", "rank", "step") == (1_700_000_000_000_000_001, "j", 3, 200)
    assert some(first, "kind", "before", "after", "reason") == (
        "level",
        "0",
        "2",
        "wait over 0.15",
    )
    assert some(second, "before", "after") == ("(16, 4)", "(8, 4)")


def test_what_was_not_acted_upon_says_so(tmp_path: Path) -> None:
    for name, shadow in (("on", False), ("shadow", True)):
        log = DecisionLog(tmp_path / name, shadow=shadow)
        log.change(200, "level", 0, 2)
        log.close()
    [acted] = read_path(COLLECTOR, tmp_path / "on").rows
    [shadowed] = read_path(COLLECTOR, tmp_path / "shadow").rows
    assert "shadow" not in dict(acted["extra"] or {})
    assert dict(shadowed["extra"])["shadow"] == "true"


def test_bad_lines_cost_themselves(tmp_path: Path) -> None:
    good = b'{"xtune_decision":1,"ts_ns":5,"kind":"level","before":0,"after":1}\n'
    later = b'{"xtune_decision":2,"ts_ns":6,"kind":"level","after":[1],"why":{"a":1}}\n'
    bad = b'{"kind":"level"}\nnonsense\n[1]\n'
    read = read_bytes(COLLECTOR, good + bad + later + good[:-9], tmp_path, ctx=context(rank=1))
    assert [row["ts"] for row in read.rows] == [5, 6]
    assert [reject.offset.split(" (")[0] for reject in read.rejects] == [
        "line 2", "line 3", "line 4", "line 6",
    ]  # fmt: skip
    assert read.rows[1]["extra"] == {"why": '{"a": 1}'} and read.rows[0]["rank"] == 1
    assert read.note("newer version").count == 1


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_damage_never_raises(tmp_path: Path, data: st.DataObject) -> None:
    good = b'{"xtune_decision":1,"ts_ns":5,"step":1,"kind":"level","before":0,"after":1}\n'
    odd = bytearray(good[:-1])
    for _ in range(data.draw(st.integers(1, 5))):
        odd[data.draw(st.integers(0, len(odd) - 1))] = data.draw(st.integers(0, 255))
    content = good + bytes(odd) + b"\n" + good + data.draw(st.binary(max_size=20))
    COLLECTOR.claim(tmp_path, content)
    rows = read_bytes(COLLECTOR, content, tmp_path).rows
    assert rows[0]["ts"] == 5 and len(rows) >= 2
