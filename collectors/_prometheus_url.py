"""Where a Prometheus server is and who asks, kept apart: secrets never go into messages."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from xtune.errors import UsageError

TOKEN, TOKEN_FILE = "XTUNE_PROMETHEUS_TOKEN", "XTUNE_PROMETHEUS_TOKEN_FILE"
_EXAMPLE = "http://host:9090, or https://host/prefix"
_PAGES = ("/api/v1", "/graph", "/query", "/select/0/prometheus/vmui")


@dataclass(frozen=True, slots=True)
class Target:
    """A server.

    Attributes:
        base: URL without user, password and trailing slash.
        authorization: Header field, None without.
        secrets: What must not be shown.
    """

    base: str
    authorization: str | None
    secrets: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Target({self.base!r})"

    def hide(self, text: str) -> str:
        """``text`` without the secrets, as they are or as a URL writes them."""
        for secret in sorted(self.secrets, key=len, reverse=True):
            for form in {secret, quote(secret, safe="")}:
                text = text.replace(form, "***")
        return text


def target(url: str, environment: Mapping[str, str]) -> Target:
    """The server that a user names.

    Raises:
        UsageError: Not a URL of a server, or a token that is none; the text holds no secret.
    """
    text = url.strip()
    if "://" not in text:
        text = f"http://{text}"
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise UsageError("--url: not a URL", _EXAMPLE) from None
    if parts.scheme not in ("http", "https") or not host:
        raise UsageError("--url: not an http or https URL with a host", _EXAMPLE)
    if parts.query or parts.fragment:
        raise UsageError("--url: leave out what follows ? or #", _EXAMPLE)
    place = parts.netloc.rpartition("@")[2]
    if re.search(r"[\s\x00-\x1f\x7f]", place + parts.path):
        raise UsageError("--url: not a URL", _EXAMPLE)
    path = parts.path.rstrip("/")
    for page in _PAGES:
        path = path.removesuffix(page)
    base = f"{parts.scheme}://{place}{path}"
    if parts.username is not None:
        user, password = unquote(parts.username), unquote(parts.password or "")
        pair = base64.b64encode(f"{user}:{password}".encode()).decode()
        return Target(base, f"Basic {pair}", (password, pair) if password else (pair,))
    token = _token(environment)
    return Target(base, f"Bearer {token}" if token else None, (token,) if token else ())


def _token(environment: Mapping[str, str]) -> str:
    token = environment.get(TOKEN, "").strip()
    if not token and (name := environment.get(TOKEN_FILE, "").strip()):
        try:
            token = Path(name).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not text"
            raise UsageError(f"{TOKEN_FILE}: {name} cannot be read: {reason}") from None
    if not re.fullmatch(r"[\x21-\x7e]*", token):
        raise UsageError(f"{TOKEN}: holds what no token can", "one line of printable ASCII")
    return token
