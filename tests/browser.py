"""Headless Chromium for tests, installed where the environment allows it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def may_install() -> bool:
    return os.environ.get("CI") == "true" or os.environ.get("XTUNE_TEST_APT") == "1"


def chromium() -> str:
    """Path of Chromium; installs Debian's package in CI, else skips the test aloud."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        found = shutil.which(name)
        if found:
            return found
    if may_install() and shutil.which("apt-get"):
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run(["apt-get", "update", "-qq"], check=True, **quiet)
        subprocess.run(["apt-get", "install", "-y", "-qq", "chromium"], check=True, **quiet)
        return shutil.which("chromium") or pytest.fail("chromium was installed but is not found")
    pytest.skip("Chromium is not here; CI=true or XTUNE_TEST_APT=1 installs it")


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
