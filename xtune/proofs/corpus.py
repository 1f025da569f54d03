"""Real prose to train on, as tokens: a Debian package by default, or any text of the user's.

The package is fetched once with ``apt-get download``, which needs no root, into
``$XDG_CACHE_HOME/xtune/corpus`` (``~/.cache/xtune/corpus``). The tokenizer is a byte-level BPE of
1,024 entries, trained on the training documents; whole documents are held out for validation.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path

import numpy as np

from xtune import files
from xtune.errors import InputError
from xtune.files import write_atomically

PACKAGE = "anarchism"  # 11 MB of English prose in 143 documents, GPL-2
HELD_OUT_EVERY = 20  # documents
PIECE_CHARACTERS = 32_768  # a text in few files is cut into documents of about this size
FEWEST_DOCUMENTS = 40
_HINT = (
    "on Debian or Ubuntu run apt-get update and try again, or name a text file or folder "
    "with --corpus"
)
_SKIPPED_TAGS = frozenset({"script", "style", "head", "nav"})
_BREAKS = frozenset({"p", "br", "div", "li", "tr", "h1", "h2", "h3", "h4", "blockquote"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """Tokens of the training and of the held-out documents, uint16."""

    train: np.ndarray
    held_out: np.ndarray
    about: dict[str, object]  # name, sha256, documents, bytes per token, tokenizer

    @property
    def bytes_per_token(self) -> float:
        """Of the held-out documents: nats per byte are nats per token over it."""
        return float(str(self.about["bytes_per_token"]))

    def save(self, path: Path) -> None:
        """Keep it, so that each process need not tokenize anew."""
        buffer = BytesIO()
        about = np.frombuffer(json.dumps(self.about).encode(), dtype=np.uint8)
        np.savez(buffer, train=self.train, held_out=self.held_out, about=about)
        write_atomically(path, buffer.getvalue())

    @staticmethod
    def load(path: Path) -> Corpus:
        """Read what `save` wrote."""
        with np.load(path) as arrays:
            about = json.loads(arrays["about"].tobytes())
            return Corpus(train=arrays["train"], held_out=arrays["held_out"], about=about)


def documents(source: Path | None) -> tuple[str, list[str]]:
    """Name and documents of a text file, a folder of them, or the default package.

    Args:
        source: ``.txt``, ``.md`` or ``.html``; a folder is searched; None: the package.

    Raises:
        InputError: there is no text, or the package cannot be had.
    """
    name = f"Debian package {PACKAGE}" if source is None else source.name
    place = cached_package() if source is None else source
    if not place.exists():
        raise InputError(f"{place}: not there", "name a text file, or a folder of them")
    kinds = (".txt", ".md", ".html", ".htm")
    files = (
        [place] if place.is_file() else sorted(p for p in place.rglob("*") if p.suffix in kinds)
    )
    texts = [_text(path) for path in files]
    texts = [text for text in texts if text.strip()]
    if 0 < len(texts) < FEWEST_DOCUMENTS:
        texts = [piece for text in texts for piece in _pieces(text)]
    if len(texts) < 2:
        wanted = f"name text of {2 * PIECE_CHARACTERS:,} characters or more"
        raise InputError(f"{place}: too little text to hold some of it out", wanted)
    return name, texts


def tokenized(name: str, texts: Sequence[str], vocabulary: int) -> Corpus:
    """Hold documents out, train the tokenizer on the rest, and encode both.

    Raises:
        InputError: the package ``tokenizers`` is not installed.
    """
    try:
        import tokenizers
    except ImportError as error:
        raise InputError(
            "the package tokenizers is missing", "pip install xtune[proofs]"
        ) from error
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    every = min(HELD_OUT_EVERY, len(texts))
    held = [text for i, text in enumerate(texts) if i % every == every - 1]
    train = [text for i, text in enumerate(texts) if i % every != every - 1]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(train, trainer)

    def encode(part: list[str]) -> np.ndarray:
        ids = [encoded.ids for encoded in tokenizer.encode_batch(part)]
        return np.concatenate([np.array(i, dtype=np.uint16) for i in ids])

    held_out = encode(held)
    held_bytes = sum(len(text.encode()) for text in held)
    about: dict[str, object] = {
        "name": name,
        "sha256": hashlib.sha256("\0".join(texts).encode()).hexdigest(),
        "bytes": sum(len(text.encode()) for text in texts),
        "documents": len(texts),
        "held_out_documents": len(held),
        "bytes_per_token": held_bytes / held_out.size,
        "tokenizer": f"byte-level BPE, {tokenizer.get_vocab_size()} entries, trained on the "
        "training documents",
        "tokenizer_sha256": hashlib.sha256(tokenizer.to_str().encode()).hexdigest(),
        "tokenizers_version": tokenizers.__version__,
    }
    return Corpus(train=encode(train), held_out=held_out, about=about)


def cache_folder() -> Path:
    """Where the package's files are kept."""
    return files.cache_folder("corpus")


def cached_package() -> Path:
    """The pages of the unpacked package, fetched if it is not there yet.

    Raises:
        InputError: it cannot be had here.
    """
    target = cache_folder() / PACKAGE
    pages = target / "usr" / "share" / "doc" / PACKAGE / "html"  # some are there as Markdown too
    if target.is_dir():
        return pages
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise InputError(f"the Debian package {PACKAGE} cannot be fetched: no apt-get here", _HINT)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        _call(["apt-get", "download", PACKAGE], scratch)
        package = next(Path(scratch).glob("*.deb"))
        unpacked = Path(scratch) / PACKAGE
        _call(["dpkg-deb", "-x", str(package), str(unpacked)], scratch)
        try:
            unpacked.rename(target)
        except OSError:  # another process was first
            if not target.is_dir():
                raise
    return pages


def _call(command: list[str], folder: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise InputError(f"{' '.join(command[:2])} {PACKAGE} failed: {said}", _HINT)


def _pieces(text: str) -> list[str]:
    """A text cut at the ends of paragraphs."""
    pieces, current, size = [], [], 0
    for line in text.splitlines(keepends=True):
        current.append(line)
        size += len(line)
        if size >= PIECE_CHARACTERS and not line.strip():
            pieces.append("".join(current))
            current, size = [], 0
    return [*pieces, "".join(current)] if current else pieces


def _text(path: Path) -> str:
    content = path.read_bytes().decode("utf-8", errors="replace")
    if path.suffix not in (".html", ".htm"):
        return content
    parser = _Prose()
    parser.feed(content)
    parser.close()
    lines = (" ".join(line.split()) for line in "".join(parser.parts).splitlines())
    return "\n".join(line for line in lines if line) + "\n"


class _Prose(HTMLParser):
    """The words of a page, a line a paragraph."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._skipping = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _SKIPPED_TAGS:
            self._skipping += 1
        elif tag in _BREAKS:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in _SKIPPED_TAGS and self._skipping:
            self._skipping -= 1
        elif tag in _BREAKS:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._skipping:
            self.parts.append(data.replace("\n", " "))
