"""JSON lines of every format: what is wrong with one costs that one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.collectors_nccl.helpers import read_bytes
from xtune.collectors import Reject, Source, all_collectors
from xtune.collectors._json_lines import json_objects
from xtune.collectors._textlines import Lines


def test_each_line_is_read_alone(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(
        b'\xef\xbb\xbf{"n": 1}\r\n\n{"n": NaN}\n[2]\nnull\n{"n": 3\n' + b"[" * 5000 + b'\n{"n": 4'
    )
    found = list(json_objects(Lines(Source(path, "lines"))))
    rejects = {r.offset.split(" (")[0]: r.reason for r in found if isinstance(r, Reject)}
    assert [f[0].number for f in found if not isinstance(f, Reject)] == [1, 3]
    assert list(rejects) == ["line 4", "line 5", "line 6", "line 7", "line 8"]
    assert rejects["line 4"] == rejects["line 5"] == "not a JSON object"
    assert rejects["line 6"].startswith("not JSON: ") and rejects["line 8"] == "cut last line"


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("decisions", b'{"xtune_decision":1,"kind":"level","reason":"\xff"}\n'),
        (
            "layer_gradients",
            b'{"xtune_layer_gradients":1,"layer":["\xff"],"depth":[0],"elements":[1],'
            b'"norm":[1],"density":[1]}\n',
        ),
        ("loss_table", b'{"step":1,"loss":2,"note":"\xff"}\n'),
        (
            "nccl_inspector",
            b'{"header":{"id":"0x1"},"metadata":{"hostname":"\xff"},"coll_perf":{"coll":"AllReduce"}}\n',
        ),
    ],
)
def test_a_name_that_is_no_utf8_does_not_cost_its_line(
    kind: str, line: bytes, tmp_path: Path
) -> None:
    read = read_bytes(all_collectors()[kind], line, tmp_path)
    assert len(read.rows) == 1 and read.rejects == []
