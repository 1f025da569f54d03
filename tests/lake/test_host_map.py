from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from xtune.errors import InputError
from xtune.ingest import HostMap


def load(folder: Path, text: str) -> HostMap:
    path = folder / "hosts.csv"
    path.write_text(text)
    return HostMap.load(path)


@pytest.mark.parametrize(
    "text",
    [
        "pod-1,Node7\nPOD-2,node8\n",
        "from,to\npod-1,node7\npod-2,node8",
        "# pods\npod-1=node7  # the first\n\n pod-2 = node8\n",
        '"pod-1","node7"\r\n"pod-2";"node8"\r\n',
        "\ufeffpod-1 node7\npod-2\tnode8\npod-1 node7\n",
    ],
)
def test_forms(tmp_path: Path, text: str) -> None:
    assert load(tmp_path, text).names == {"pod-1": "node7", "pod-2": "node8"}


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("a,b\npod-1\n", "line 2: 'pod-1' is not a pair"),
        ("a,b,c", "line 1"),
        ("a,b\nc,d\na,e", "line 3: a is e here and b before"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, match: str) -> None:
    with pytest.raises(InputError, match=match):
        load(tmp_path, text)


def test_a_map_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="host map cannot be read"):
        HostMap.load(tmp_path / "missing")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="host map cannot be read"):
        HostMap.load(tmp_path / "binary")


def test_hosts_are_mapped_exactly_and_links_with_them() -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "host": ["Pod-1", "pod-10", None, "other.example"],
            "link": ["Pod-1/mlx5_0/1", "0x0000000000000001/1", None, "other.example/mlx5_0/1"],
            "device": ["POD-1", "x", "y", "z"],
        }
    )
    found = HostMap({"pod-1": "node7"}).apply(batch).to_pydict()
    assert found == {
        "host": ["node7", "pod-10", None, "other.example"],
        "link": ["node7/mlx5_0/1", "0x0000000000000001/1", None, "other.example/mlx5_0/1"],
        "device": ["POD-1", "x", "y", "z"],
    }


def test_without_a_map_hosts_are_lower_case_and_links_as_read() -> None:
    batch = pa.RecordBatch.from_pydict({"src": ["A"], "dst": [None], "link": ["A/b/1"]})
    batch = batch.set_column(1, "dst", pa.nulls(1, pa.string()))
    assert HostMap().apply(batch).to_pydict() == {"src": ["a"], "dst": [None], "link": ["A/b/1"]}


def test_the_digest_is_of_what_it_says(tmp_path: Path) -> None:
    first = load(tmp_path, "a,b\nc,d\n").digest
    assert load(tmp_path, "c=d\nA=B\n").digest == first
    assert load(tmp_path, "a,b\n").digest != first
