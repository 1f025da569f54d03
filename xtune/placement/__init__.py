"""Placement advice: which hosts and leaves have room for a job, by the fabric's own history.

Rests on derived tables and on reservations beside them; what has no readings is unknown, never
free.
"""

from xtune.placement.advice import Advice, Request, Take, advise
from xtune.placement.fabric import Cable, Fabric, Host, Leaf, survey
from xtune.placement.patterns import PATTERNS
from xtune.placement.reservations import Reservation, Reservations

__all__ = [
    "PATTERNS",
    "Advice",
    "Cable",
    "Fabric",
    "Host",
    "Leaf",
    "Request",
    "Reservation",
    "Reservations",
    "Take",
    "advise",
    "survey",
]
