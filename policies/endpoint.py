"""A handle's congestion signal for the compute side: a small local endpoint for Prometheus.

A thread of its own answers ``GET /metrics``, one client at a time, each within a fixed time. It
only reads: training never waits for it, and no fault of it reaches training.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import os
import re
import select
import socket
import stat
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

_LOG = logging.getLogger("xtune")
UNIX = "unix:"
_NO_ADDRESS = "not of the form host:port or unix:/path"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_CLIENT_S = 2.0  # from accept to the last byte; a scraper on this host needs milliseconds
_REQUEST_BYTES = 8192  # Prometheus sends about 300
_BACKLOG = 8
_PAUSE_S = 1.0  # after an accept that failed: with no descriptor left the next fails at once too

_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")  # of the text format

#: Key of ``signal()``: (metric, factor to its unit, help). Units are Prometheus' base units.
METRICS = {
    "level": ("xtune_congestion_level", 1.0, "0 clear, 1 rising, 2 congested, 3 severe."),
    "available_share": (
        "xtune_available_bandwidth_ratio",
        1.0,
        "Free share of the link rate on the worst pair in use.",
    ),
    "available_gbps": (
        "xtune_available_bandwidth_bytes_per_second",
        1e9 / 8,
        "Free bandwidth on the worst pair in use.",
    ),
    "reserve": (
        "xtune_reserve_wanted_ratio",
        1.0,
        "Share of bandwidth that routing is asked to keep free.",
    ),
    "ratio": (
        "xtune_compression_ratio",
        1.0,
        "Planned share of gradient bytes that is not sent, against bf16.",
    ),
    "comm_share": (
        "xtune_communication_time_ratio",
        1.0,
        "Share of the last iteration's time that transfers took, hidden or not.",
    ),
}  # fmt: skip
ERRORS = "xtune_signal_errors_total"


class Signalling(Protocol):
    """What has a congestion signal, such as a `Handle`."""

    def signal(self) -> Mapping[str, Any]:
        """The figures that `METRICS` names; None is unknown."""
        ...


def exposition(
    signal: Mapping[str, Any], *, errors: int = 0, labels: Mapping[str, str] | None = None
) -> str:
    """A signal in Prometheus' text format 0.0.4; what is unknown is absent.

    Args:
        signal: What `Handle.signal` returned.
        errors: Signals that could not be read so far.
        labels: On every sample, such as ``{"rank": "0"}``.
    """
    marks = ",".join(f'{name}="{_escaped(value)}"' for name, value in (labels or {}).items())
    marks = f"{{{marks}}}" if marks else ""
    lines = []
    for key, (name, factor, text) in METRICS.items():
        value = signal.get(key)
        if value is not None and math.isfinite(value):
            lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
            lines.append(f"{name}{marks} {float(value) * factor!r}")
    lines += [f"# HELP {ERRORS} Signals that could not be read.", f"# TYPE {ERRORS} counter"]
    lines.append(f"{ERRORS}{marks} {errors}")
    return "\n".join(lines) + "\n"


def serve(
    handle: Signalling,
    address: str = "127.0.0.1:0",
    *,
    labels: Mapping[str, str] | None = None,
) -> Endpoint:
    """Offer a handle's signal to a scraper on this host until `Endpoint.close` or the end.

    Never raises: where the address is taken or is none, or a label cannot be in the text format,
    one line says so and training goes on without an endpoint.

    Args:
        handle: Whose signal.
        address: ``host:port`` (port 0: any free one, `Endpoint.address` has it), ``[::1]:port``,
            or ``unix:/path`` for a socket file that this user alone may open.
        labels: On every sample. The job and rank are known to whoever calls, not to a handle.
            Names are letters, digits and underscores, no digit first.
    """
    endpoint = Endpoint(handle, labels or {})
    try:
        endpoint.open(address)
    except (OSError, ValueError, OverflowError) as error:
        endpoint.close()
        _LOG.warning("xtune: no signal at %r: %s; training goes on", address, error)
    return endpoint


class Endpoint:
    """The thread behind a signal; made by `serve`.

    Attributes:
        address: Where it answers, in the form that `serve` takes; None where it does not.
        errors: Signals that could not be read.
    """

    def __init__(self, handle: Signalling, labels: Mapping[str, str]) -> None:
        self.address: str | None = None
        self.errors = 0
        self._handle = handle
        self._labels = labels
        self._listener: socket.socket | None = None
        self._wake, self._woken = socket.socketpair()
        self._thread: threading.Thread | None = None
        self._file: str | None = None
        self._owner = os.getpid()
        _ENDPOINTS.add(self)

    def open(self, address: str) -> None:
        """Listen, and answer from now on.

        Raises:
            OSError: The address is taken or not of this host.
            ValueError: It is no address, or the labels cannot be in the text format.
        """
        self._labels = _checked(self._labels)
        if not isinstance(address, str):
            raise ValueError(_NO_ADDRESS)
        if address.startswith(UNIX):
            self._listener = _bind_file(address.removeprefix(UNIX))
            self._file = address.removeprefix(UNIX)
            self.address = address
            atexit.register(self.close)  # the file would outlive the process
        else:
            self._listener = _bind_port(*_host_and_port(address))
            host, port = self._listener.getsockname()[:2]
            self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._listener.setblocking(False)
        self._thread = threading.Thread(
            target=self._run, args=(self._listener,), name="xtune-signal", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop answering and free the address; again does nothing."""
        if os.getpid() != self._owner:
            return
        thread, self._thread = self._thread, None
        if thread is not None:
            self._wake.send(b"x")
            thread.join()
        self._release()
        if self._file is not None:
            atexit.unregister(self.close)
            with contextlib.suppress(OSError):
                os.unlink(self._file)
            self._file = None

    def _release(self) -> None:
        """Close descriptors; in a forked child that leaves the parent's socket as it is."""
        self.address = None
        for end in (self._listener, self._wake, self._woken):
            if end is not None:
                end.close()

    def _run(self, listener: socket.socket) -> None:
        while self._woken not in _ready([listener, self._woken], None):
            try:
                client, _ = listener.accept()
            except OSError:  # the client is gone again, or no descriptor is left
                if _ready([self._woken], _PAUSE_S):
                    return
                continue
            with client, contextlib.suppress(OSError):  # it left: the next one is served
                self._answer(client, time.monotonic() + _CLIENT_S)

    def _answer(self, client: socket.socket, deadline: float) -> None:
        request = b""
        while b"\r\n\r\n" not in request and len(request) < _REQUEST_BYTES:
            left_s = max(0.0, deadline - time.monotonic())
            if _ready([client, self._woken], left_s) != [client]:  # too slow, or we are to stop
                return
            piece = client.recv(_REQUEST_BYTES)
            if not piece:
                return
            request += piece
        client.settimeout(max(0.001, deadline - time.monotonic()))
        client.sendall(self._response(request))

    def _response(self, request: bytes) -> bytes:
        method, _, rest = request.partition(b"\r\n")[0].partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        status, data = "200 OK", b""
        if method not in (b"GET", b"HEAD"):
            status = "405 Method Not Allowed"
        elif path not in (b"/metrics", b"/"):
            status = "404 Not Found"
        else:
            try:
                signal = self._handle.signal()
                data = exposition(signal, errors=self.errors, labels=self._labels).encode()
            except Exception:  # a signal that fails must not end the thread
                self.errors += 1
                status = "500 Internal Server Error"
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\n"
            f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + (b"" if method == b"HEAD" else data)


_ENDPOINTS: weakref.WeakSet[Endpoint] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """A forked child (a data loader's worker) has no thread that answers: let go of the port."""
    for endpoint in list(_ENDPOINTS):
        endpoint._release()


os.register_at_fork(after_in_child=_leave_to_parent)


def _ready(ends: Sequence[socket.socket], timeout_s: float | None) -> list[socket.socket]:
    """Those that can be read. ``poll``: ``select`` ends at descriptor 1023, which jobs exceed."""
    poll = select.poll()
    for end in ends:
        poll.register(end, select.POLLIN)
    found = {fd for fd, _ in poll.poll(None if timeout_s is None else timeout_s * 1000)}
    return [end for end in ends if end.fileno() in found]


def _host_and_port(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit():
        raise ValueError(_NO_ADDRESS)
    if int(port) > 65535:  # which the resolver would take modulo 65536
        raise ValueError("ports end at 65535")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _bind_port(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        # A port that a scraper's closed connections still hold is free; one that is in use is not.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _bind_file(path: str) -> socket.socket:
    """A socket file, readable by this user alone; one that a killed process left is replaced."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _clear(path)
        listener.bind(path)
        os.chmod(path, 0o600)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _clear(path: str) -> None:
    """Remove a socket file that nobody answers on; any other file makes ``bind`` fail."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CLIENT_S)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            if stat.S_ISSOCK(os.stat(path).st_mode):
                os.unlink(path)
        except FileNotFoundError:
            pass


def _checked(labels: object) -> dict[str, str]:
    """The labels, if the text format can have them."""
    if not isinstance(labels, Mapping):
        raise ValueError(f"labels {labels!r} are no names with values")
    for name, value in labels.items():
        if not isinstance(name, str) or not _LABEL_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a label")
        try:
            str(value).encode()
        except UnicodeEncodeError:
            raise ValueError(f"label {name}: {value!r} is not UTF-8") from None
    return dict(labels)


def _escaped(value: str) -> str:
    return str(value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
