"""The inputs of a lake, found by what a new one may have in common with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from xtune.lake._records import InputRecord


class Inputs(Mapping[str, InputRecord]):
    """Inputs by id, with an index: a lake holds tens of thousands, and each new one asks."""

    def __init__(self) -> None:
        self._by_id: dict[str, InputRecord] = {}
        self._alike: dict[tuple[str, str], tuple[str, ...]] = {}

    def __getitem__(self, key: str) -> InputRecord:
        return self._by_id[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_id)

    def __len__(self) -> int:
        return len(self._by_id)

    def alike(
        self, *, content: str = "", path: str = "", head: str = "", begins: str = ""
    ) -> list[InputRecord]:
        """Inputs with this content, path, head or beginning, each once; empty asks for none."""
        asked = (("content", content), ("path", path), ("head", head), ("begins", begins))
        ids = dict.fromkeys(id for key in asked if key[1] for id in self._alike.get(key, ()))
        return [self._by_id[id] for id in ids]

    def add(self, record: InputRecord) -> None:
        """Add an input, or replace the one of its id."""
        self.forget(record.id)
        self._by_id[record.id] = record
        for key in _keys(record):
            self._alike[key] = (*self._alike.get(key, ()), record.id)

    def forget(self, id: str) -> None:
        """Remove an input, if it is there."""
        record = self._by_id.pop(id, None)
        for key in _keys(record) if record else ():
            rest = tuple(other for other in self._alike[key] if other != id)
            if rest:
                self._alike[key] = rest
            else:
                del self._alike[key]

    def copy(self) -> Inputs:
        """A copy that may be changed without changing this one."""
        other = Inputs()
        other._by_id = dict(self._by_id)
        other._alike = dict(self._alike)
        return other


def _keys(record: InputRecord) -> list[tuple[str, str]]:
    keys = (("content", record.content), ("path", record.path), ("head", record.head))
    return [key for key in keys if key[1]] + [("begins", content) for content in record.begins]
