"""Headless Chromium for tests, installed where the environment allows it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests import debian

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def chromium() -> str:
    """Path of Chromium; installs Debian's package in CI, else skips the test aloud."""
    return debian.installed(_chromium, ["chromium"])


def _chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if (found := shutil.which(name))), None)


@contextmanager
def page(**context: Any) -> Iterator[Any]:
    """A blank page; ``errors`` and ``requests`` are lists that fill as it loads."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        try:
            opened: Any = browser.new_context(**context).new_page()
            opened.errors = []
            opened.requests_seen = []
            opened.on("pageerror", lambda error: opened.errors.append(str(error)))
            opened.on(
                "console",
                lambda m: opened.errors.append(m.text) if m.type in ("error", "warning") else None,
            )
            opened.on("request", lambda request: opened.requests_seen.append(request.url))
            yield opened
        finally:
            browser.close()
