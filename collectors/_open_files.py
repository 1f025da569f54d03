"""How many files this process may hold open."""

from __future__ import annotations

import resource
from contextlib import suppress


def allow_many() -> int:
    """Raise the soft limit on open files to the hard one; the limit that holds now.

    Counters of a live host are held open, over fifty a port, and so are followed logs, one a rank.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 20
