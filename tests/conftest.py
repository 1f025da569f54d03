"""What holds for every test."""

from __future__ import annotations

from hypothesis import settings

# A time limit on an example would fail where the machine is busy; CI's own profile has none.
settings.register_profile("untimed", settings(), deadline=None)
settings.load_profile("untimed")
