"""What is asked of a Prometheus server: names, scrape intervals, series, ranges.

Works with what speaks the same HTTP API (Thanos, VictoriaMetrics, Mimir), also below a path.
The opener, the clock of the retries and the destination of large answers are arguments; an answer
of a range goes to a file as it comes, it is never in memory whole.
Source: prometheus/prometheus docs/querying/api.md.
"""

from __future__ import annotations

import http.client
import io
import json
import re
import ssl
import time
import urllib.error
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import IO, Any, Protocol
from urllib.parse import urlencode
from urllib.request import Request

from xtune.collectors._prometheus_names import FAMILIES
from xtune.collectors._prometheus_url import Target

#: prometheus/prometheus web/api/v1/api.go refuses more points a series.
MOST_POINTS = 11_000
#: An answer beyond is asked for in halves; small ones are parsed in memory.
ANSWER_BYTES = 512 << 20
_SMALL_BYTES = 64 << 20
_BLOCK = 1 << 18
_MANY, _TOGETHER = 100, 40
_ATTEMPTS = 5
#: What a failed request has to say, at most.
_SAID_BYTES = 1 << 16
#: An answer that drips in for longer is asked for in halves.
_LONGEST_ANSWER_S = 600.0
#: No server holds more series; what one says beyond is no number of them.
_MOST_SERIES = 1e9
#: Nobody scrapes more seldom; what a server says beyond is no interval.
_LONGEST_INTERVAL_S = 86_400.0
_LONGEST_PAUSE_S = 30.0
_TOO_MUCH = re.compile(
    r"maximum resolution|too many (?:points|samples)|exceed\w* .*(?:points|samples|limit)"
    r"|response (?:size|too large)|timed out|timeout",
    re.I,
)


class Answer(Protocol):
    """What an opener returns: an HTTP response."""

    @property
    def headers(self) -> Any:
        """Header fields, with ``get``."""

    def read1(self, amount: int, /) -> bytes:
        """The next bytes, as soon as there are some."""

    def close(self) -> None:
        """End it."""


Opener = Callable[[Request, float], Answer]


class ServerError(Exception):
    """The server cannot be asked, or does not answer.

    Attributes:
        reason: What is wrong, without secrets.
        hint: What to do.
        too_much: A smaller range may succeed.
    """

    def __init__(self, reason: str, hint: str = "", *, too_much: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint
        self.too_much = too_much


class _Retry(Exception):
    """A failure that may pass: what to say when it does not, what the server asked to wait."""

    def __init__(self, error: ServerError, pause_s: float = 0.0) -> None:
        super().__init__(error.reason)
        self.error = error
        self.pause_s = pause_s


class Server:
    """A Prometheus server.

    Args:
        target: Where it is, and who asks.
        opener: Sends a request with a timeout in seconds.
        sleep: Waits so many seconds before a retry.
        timeout_s: Of one answer's next bytes.
        clock: Seconds that never step.
    """

    def __init__(
        self,
        target: Target,
        opener: Opener,
        sleep: Callable[[float], None],
        timeout_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.target = target
        self.retries = 0
        self._open = opener
        self._sleep = sleep
        self._timeout_s = timeout_s
        self._clock = clock

    def names(self, start_ms: int, end_ms: int) -> list[str]:
        """Names of the metrics of our families; a server that cannot filter gives all it has."""
        found = self._small(
            "label/__name__/values",
            {"match[]": f'{{__name__=~"{FAMILIES}"}}', "start": _s(start_ms), "end": _s(end_ms)},
        )
        if not isinstance(found, list | None):
            raise ServerError(_NO_PROMETHEUS, _PREFIX)
        return sorted(name for name in found or () if isinstance(name, str))

    def series_count(self, names: Sequence[str], at_ms: int) -> int:
        """Number of series of some metrics at a moment, 0 where there is none then."""
        total = 0
        for query in queries(names, _TOGETHER):
            try:
                count = float(self._vector(f"count({query})", at_ms)[0]["value"][1])
            except (LookupError, TypeError, ValueError):
                continue
            total += int(count) if 0 < count <= _MOST_SERIES else 0
        return total

    def interval_ms(self, name: str, start_ms: int, end_ms: int) -> int | None:
        """Scrape interval of a metric: the median distance of one series' raw samples.

        ``None`` where it has too few between the two moments.
        """
        longest = min((end_ms - start_ms) // 1000, 86_400)
        for window in sorted({600, max(600, longest)}):
            last = self._vector(f"topk(1, last_over_time({name}[{window}s]))", end_ms)
            if not last:
                continue
            labels = {k: v for k, v in last[0]["metric"].items() if k != "__name__"}
            told = ",".join(f"{k}={json.dumps(v, ensure_ascii=False)}" for k, v in labels.items())
            raw = self._vector(f"{name}{{{told}}}[{window}s]", end_ms)
            try:
                times = [float(pair[0]) for pair in raw[0]["values"]]
            except (LookupError, TypeError, ValueError):
                continue
            gaps = [b - a for a, b in pairwise(times)]
            gaps = sorted(gap for gap in gaps if 0 < gap <= _LONGEST_INTERVAL_S)
            if len(gaps) >= 2:
                return _round_ms(gaps[len(gaps) // 2] * 1000)
        return None

    def range(
        self, query: str, start_ms: int, end_ms: int, step_ms: int, out: IO[bytes]
    ) -> list[str]:
        """Append the answer of a range query to ``out``, nothing where it has no series.

        Returns:
            What the server warned of, such as a store that did not answer.

        Raises:
            ServerError: ``too_much`` where a shorter range may succeed.
        """
        begin = out.tell()
        self._get(
            "query_range",
            {"query": query, "start": _s(start_ms), "end": _s(end_ms), "step": _s(step_ms)},
            out,
            ANSWER_BYTES,
        )
        end = out.tell()
        out.seek(begin)
        head = out.read(4096)
        out.seek(max(begin, end - 65536))
        tail = out.read()
        out.seek(end)
        if not re.match(rb'\s*\{\s*"status"\s*:\s*"success"', head):
            raise ServerError(_NO_PROMETHEUS, _PREFIX)
        if b'"metric"' not in head:
            out.seek(begin)
            out.truncate()
        return _warnings(tail)

    def _vector(self, query: str, at_ms: int) -> list[Any]:
        data = self._small("query", {"query": query, "time": _s(at_ms)})
        result = data.get("result") if isinstance(data, dict) else None
        series = result if isinstance(result, list) else []
        return [s for s in series if isinstance(s, dict) and isinstance(s.get("metric"), dict)]

    def _small(self, path: str, parameters: Mapping[str, str]) -> Any:
        """The ``data`` of a small answer."""
        body = io.BytesIO()
        self._get(path, parameters, body, _SMALL_BYTES)
        try:
            document = json.loads(body.getvalue())
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict) or document.get("status") != "success":
            raise ServerError(_NO_PROMETHEUS, _PREFIX)
        return document.get("data")

    def _get(self, path: str, parameters: Mapping[str, str], out: IO[bytes], limit: int) -> None:
        """Append an answer to ``out``, trying again what may pass."""
        begin = out.tell()
        for attempt in range(_ATTEMPTS):
            try:
                self._once(path, parameters, out, limit)
                return
            except _Retry as failure:
                out.seek(begin)
                out.truncate()
                if attempt == _ATTEMPTS - 1:
                    raise failure.error from None
                self.retries += 1
                self._sleep(min(max(failure.pause_s, 0.5 * 2**attempt), _LONGEST_PAUSE_S))

    def _once(self, path: str, parameters: Mapping[str, str], out: IO[bytes], limit: int) -> None:
        url = f"{self.target.base}/api/v1/{path}?{urlencode(parameters)}"
        headers = {"Accept": "application/json", "Accept-Encoding": "gzip", "User-Agent": "xtune"}
        if self.target.authorization:
            headers["Authorization"] = self.target.authorization
        first, last = b"", b""
        try:
            answer = self._open(Request(url, headers=headers), self._timeout_s)
            try:
                for block in self._blocks(answer):
                    limit -= len(block)
                    if limit < 0:
                        raise ServerError("the answer is too large", too_much=True)
                    out.write(block)
                    text = block.strip()
                    first, last = first or text[:1], text[-1:] or last
            finally:
                answer.close()
            if first == b"{" and last != b"}":
                raise EOFError  # cut by a proxy that did not say so
        except urllib.error.HTTPError as error:
            raise self._status(error) from None
        except (OSError, http.client.HTTPException, zlib.error, EOFError) as error:
            raise self._network(error) from None

    def _blocks(self, answer: Any) -> Iterator[bytes]:
        """The content of an answer, gzip undone.

        Raises:
            EOFError: It ends before it should.
            ServerError: It does not end.
        """
        until = self._clock() + _LONGEST_ANSWER_S
        packed = (answer.headers.get("Content-Encoding") or "").lower() == "gzip"
        inflate = zlib.decompressobj(wbits=31)
        length = answer.headers.get("Content-Length") or ""
        missing = int(length) if length.isdigit() else 0
        while block := answer.read1(_BLOCK):
            if self._clock() > until:
                raise ServerError("the answer takes too long", too_much=True)
            missing -= len(block)
            while packed and block:
                if plain := inflate.decompress(block, _BLOCK):
                    yield plain
                block = inflate.unconsumed_tail
            if block:
                yield block
        if packed and (plain := inflate.flush()):
            yield plain
        if missing > 0 or (packed and not inflate.eof):
            raise EOFError

    def _status(self, error: urllib.error.HTTPError) -> Exception:
        """What an HTTP status means."""
        with error:
            body = b""
            with suppress(OSError, http.client.HTTPException, zlib.error, EOFError, ServerError):
                for block in self._blocks(error):
                    body += block
                    if len(body) >= _SAID_BYTES:
                        break
        said = self.target.hide(_said(body))
        text = f"HTTP {error.code}" + (f": {said}" if said else "")
        if error.code in (401, 403):
            return ServerError(
                text, "user:password in --url, or XTUNE_PROMETHEUS_TOKEN, or ..._TOKEN_FILE"
            )
        if 300 <= error.code < 400:
            place = error.headers.get("Location", "elsewhere").partition("?")[0]
            place = self.target.hide(re.sub(r"//[^/]*@", "//", place))
            return ServerError(f"HTTP {error.code}: it redirects to {place}", "give that as --url")
        if error.code == 404:
            return ServerError(text, _PREFIX)
        too_much = bool(_TOO_MUCH.search(said)) or error.code in (413, 504)
        if error.code in (400, 413, 422) and too_much:
            return ServerError(text, too_much=True)
        failure = ServerError(text, "see the server's log", too_much=too_much)
        if error.code == 429 or error.code >= 500:
            pause = error.headers.get("Retry-After", "")
            return _Retry(failure, float(pause) if pause.isdigit() and len(pause) < 6 else 0.0)
        return failure

    def _network(self, error: Exception) -> Exception:
        """What a failure below HTTP means."""
        cause = getattr(error, "reason", error)
        if isinstance(cause, ssl.SSLCertVerificationError):
            said = self.target.hide(cause.verify_message or "certificate verify failed")
            return ServerError(
                f"its certificate is not trusted: {said}", "SSL_CERT_FILE=the authority's file"
            )
        if isinstance(cause, ssl.SSLError):
            said = cause.reason or "no TLS there"
            return ServerError(f"TLS failed: {self.target.hide(str(said))}", "http or https?")
        if isinstance(cause, TimeoutError):
            said = f"no answer within {self._timeout_s:g} s"
            return _Retry(ServerError(said, "is it overloaded?", too_much=True))
        said = getattr(cause, "strerror", None) or type(cause).__name__
        if isinstance(cause, http.client.HTTPException | zlib.error | EOFError):
            said = "the answer broke off"
        return _Retry(ServerError(self.target.hide(str(said)), "is it up, and the port right?"))


_NO_PROMETHEUS = "the answer is not that of a Prometheus server"
_PREFIX = "a path prefix may be missing from --url"


def queries(names: Sequence[str], together: int | None = None) -> Iterator[str]:
    """Selectors of some metrics: one each, or many at once where a driver has hundreds.

    Args:
        names: Metrics, plain words.
        together: How many in one; by default one, beyond a hundred names some tens.
    """
    size = together or (_TOGETHER if len(names) > _MANY else 1)
    for at in range(0, len(names), size):
        some = names[at : at + size]
        yield some[0] if len(some) == 1 else f'{{__name__=~"{"|".join(some)}"}}'


def _said(body: bytes) -> str:
    """The error that a body tells, in one short line."""
    try:
        found = json.loads(body)
        text = found.get("error", "") if isinstance(found, dict) else ""
    except (ValueError, RecursionError):
        text = "" if body.lstrip()[:1] == b"<" else body.decode("utf-8", "replace")
    return " ".join(str(text).split())[:300]


def _warnings(tail: bytes) -> list[str]:
    match = re.search(rb'"warnings"\s*:\s*(\[(?:[^\]"]|"(?:[^"\\]|\\.)*")*\])', tail)
    try:
        found = json.loads(match[1]) if match else []
    except ValueError:
        return []
    return [" ".join(str(text).split())[:300] for text in found]


def _s(ms: int) -> str:
    """Milliseconds as the seconds of a parameter."""
    return f"{ms // 1000}.{ms % 1000:03d}"


def _round_ms(ms: float) -> int:
    """A scrape interval: whole seconds, but for those that are clearly none."""
    whole = round(ms / 1000) * 1000
    return whole if whole and abs(ms - whole) <= 0.05 * ms else max(1, round(ms))
