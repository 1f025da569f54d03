"""From pages and text files to tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from xtune.errors import InputError
from xtune.proofs.corpus import PIECE_CHARACTERS, cache_folder, documents, tokenized

PAGE = """<html><head><title>no</title><style>p {}</style></head><body>
<h1>A head</h1><p>One   line
over two &amp; more.</p><script>var x;</script><p>Next<br>last</p></body></html>"""


def test_of_a_page_the_prose_is_left(tmp_path: Path) -> None:
    for name in ("a.html", "b.html"):
        (tmp_path / name).write_text(PAGE, encoding="utf-8")
    (tmp_path / "c.bin").write_bytes(b"\0")
    name, texts = documents(tmp_path)
    assert name == tmp_path.name
    assert texts == ["A head\nOne line over two & more.\nNext\nlast\n"] * 2


def test_one_long_text_is_cut_at_paragraphs_and_nothing_is_lost(tmp_path: Path) -> None:
    paragraph = "word " * 500 + "\n\n"
    path = tmp_path / "book.txt"
    path.write_text(paragraph * 100, encoding="utf-8")
    _, texts = documents(path)
    assert "".join(texts) == paragraph * 100
    assert len(texts) == -(-100 // -(-PIECE_CHARACTERS // len(paragraph)))
    assert all(text.endswith("\n\n") for text in texts)


def test_whole_documents_are_held_out_and_every_byte_is_a_token(tmp_path: Path) -> None:
    texts = [f"document {i} says é {'abc ' * i}\n" for i in range(45)]
    found = tokenized("made", texts, 300)
    held = [texts[19], texts[39]]
    assert found.about["documents"] == 45 and found.about["held_out_documents"] == 2
    held_bytes = sum(len(text.encode()) for text in held)
    assert found.bytes_per_token == pytest.approx(held_bytes / found.held_out.size)
    assert found.train.dtype == np.uint16 and found.train.max() < 300
    again = tokenized("made", texts, 300)
    assert (again.train == found.train).all() and again.about == found.about


def test_too_little_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("short\n", encoding="utf-8")
    with pytest.raises(InputError, match="too little text"):
        documents(tmp_path)


def test_the_cache_is_where_users_keep_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/xtune/corpus")


def test_without_apt_one_line_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"no apt-get here .*--corpus"):
        documents(None)
