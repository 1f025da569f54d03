"""What ``xtune place`` shows: the reason for each choice, for people and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from xtune.console import note, rfc3339, say, table
from xtune.placement import Advice, Cable, Fabric, Host, Leaf, Request, Reservation, advise
from xtune.placement.advice import Free, free, may_take


@dataclass(kw_only=True, slots=True)
class Found:
    """One call's question and answer.

    Attributes:
        fabric: With its history.
        request: What is to be placed; None to list only.
        ranks_per_host: What a host has room for.
        since_ns: Of the history, nanoseconds since the epoch.
        until_ns: Of the history.
        advice: Where to; None where nothing is to be placed.
        reservation: What was recorded, if so.
        reservations: Those that were subtracted.
        left: What they leave.
    """

    fabric: Fabric
    request: Request | None
    ranks_per_host: int
    since_ns: int
    until_ns: int
    advice: Advice | None = None
    reservation: Reservation | None = None
    reservations: Sequence[Reservation] = ()
    left: Free = field(default_factory=lambda: Free(ranks={}, spares={}))

    def settle(self, reservations: Sequence[Reservation]) -> None:
        """Subtract reservations, and place what is to be placed.

        Raises:
            XtuneError: There is no room.
        """
        self.reservations = reservations
        self.left = free(self.fabric, self.ranks_per_host, reservations)
        if self.request is not None:
            self.advice = advise(self.fabric, self.request, self.left)

    def document(self) -> dict[str, Any]:
        """The JSON document."""
        request, advice = self.request, self.advice
        return {
            "schema": 1,
            "since": rfc3339(self.since_ns),
            "until": rfc3339(self.until_ns),
            "ranks": None if request is None else request.ranks,
            "ranks_per_host": self.ranks_per_host,
            "pattern": None if request is None else request.pattern,
            "share": None if request is None else request.share,
            "headroom": None if advice is None else round(advice.headroom, 6),
            "tightest": None if advice is None else advice.tightest,
            "hosts": [] if advice is None else [
                {"host": take.host.name, "leaf": take.leaf.name, "ranks": take.ranks,
                 "spare": round(take.spare, 6), "reason": host_reason(take.host)}
                for take in advice.takes
            ],
            "links": {} if advice is None else dict(sorted(advice.links.items())),
            "leaves": [self._leaf(leaf) for leaf in self.fabric.leaves],
            "reservation": None if self.reservation is None else reservation_row(self.reservation),
            "reservations": [reservation_row(row) for row in self.reservations],
            "notes": list(self.fabric.notes),
        }  # fmt: skip

    def _leaf(self, leaf: Leaf) -> dict[str, Any]:
        known = [host for host in leaf.hosts if self.left.spares[host.name] is not None]
        takeable = [host for host in leaf.hosts if may_take(host, self.left)]
        spares = [self.left.spares[host.name] for host in takeable]
        ups = [cable.spare(self.left.reserved) for cable in leaf.usable]
        return {
            "leaf": leaf.name,
            "state": "known" if known else "unknown",
            "hosts": len(leaf.hosts),
            "unknown_hosts": len(leaf.hosts) - len(known),
            "sick_hosts": sum(host.sick for host in leaf.hosts),
            "free_ranks": sum(self.left.ranks[host.name] for host in takeable) if known else None,
            "spare": _mean(spares),
            "uplinks": len(leaf.uplinks),
            "usable_uplinks": len(leaf.usable),
            "uplink_spare": _mean(ups),
            "reason": self._leaf_reason(leaf),
        }

    def _leaf_reason(self, leaf: Leaf) -> str:
        """Why a leaf is taken, or what it has."""
        words = [self._choice(leaf)] if self.advice is not None else []
        without = [cable.name for cable in leaf.uplinks if cable.high is None]
        sick = [cable.name for host in leaf.hosts for cable in host.cables if cable.sick]
        sick += [cable.name for cable in leaf.uplinks if cable.sick]
        known = any(self.left.spares[host.name] is not None for host in leaf.hosts)
        if not known:
            words.append("no readings: unknown, not free")
        words += [_worst(leaf.usable)] if leaf.usable else []
        words += [f"no readings of uplinks {_some(without)}"] if without and known else []
        words += [f"sick links {_some(sick)}"] if sick else []
        return "; ".join(word for word in words if word)

    def _choice(self, leaf: Leaf) -> str:
        advice = self.advice
        if advice is None or self.request is None:
            return ""
        here = [take for take in advice.takes if take.leaf.name == leaf.name]
        if not here:
            return "not taken"
        ranks = f"{sum(take.ranks for take in here)} ranks on {len(here)} hosts"
        if len(here) == len(advice.takes):
            return f"{ranks}, all of the job: nothing crosses uplinks"
        used = {advice.links[cable.up] for cable in leaf.usable if cable.up in advice.links}
        share = f"{max(used):.1%}" if used else "nothing"
        return f"{ranks}: the {self.request.pattern} uses {share} of each usable uplink"

    def tell(self) -> None:
        """Tables on stdout, notes on stderr."""
        for text in self.fabric.notes:
            note(f"note: {text}")
        if self.advice is not None:
            table(
                "",
                ("host", "leaf", "ranks", "spare", "why"),
                [
                    (t.host.name, t.leaf.name, t.ranks, f"{t.spare:.1%}", host_reason(t.host))
                    for t in self.advice.takes
                ],
            )
        table(
            "leaves",
            ("leaf", "hosts", "unknown", "sick", "free ranks", "spare", "uplink spare", "why"),
            [
                (row["leaf"], row["hosts"], row["unknown_hosts"], row["sick_hosts"],
                 row["free_ranks"], _percent(row["spare"]), _percent(row["uplink_spare"]),
                 row["reason"])
                for row in map(self._leaf, self.fabric.leaves)
            ],
        )  # fmt: skip
        for row in self.reservations:
            said = f"reserved: {row.job}, {sum(row.hosts.values())} ranks"
            say(f"{said} on {len(row.hosts)} hosts, until {rfc3339(row.expires_ns)[:19]}Z")
        self._summary()

    def _summary(self) -> None:
        advice, request = self.advice, self.request
        if advice is None or request is None:
            return
        leaves = len({take.leaf.name for take in advice.takes})
        say(
            f"{request.ranks} ranks on {len(advice.takes)} hosts of {leaves} leaves;"
            f" {max(0.0, advice.headroom):.1%} left on the fullest link, {advice.tightest}"
        )
        if advice.headroom < 0:
            over = f"{-advice.headroom:.1%} more than it has to spare"
            note(f"note: the job would contend on {advice.tightest}: {over}")
        if self.reservation is not None:
            until = rfc3339(self.reservation.expires_ns)[:19]
            say(f"reserved for {self.reservation.job} until {until}Z")


def reservation_row(reservation: Reservation) -> dict[str, Any]:
    """A reservation in JSON."""
    return {
        "job": reservation.job,
        "ranks": sum(reservation.hosts.values()),
        "hosts": dict(reservation.hosts),
        "links": dict(reservation.links),
        "made": rfc3339(reservation.made_ns),
        "expires": rfc3339(reservation.expires_ns),
    }


def host_reason(host: Host) -> str:
    """What the fullest of its cables did."""
    return _worst(host.cables)


def _worst(cables: Sequence[Cable]) -> str:
    cable = max(cables, key=lambda cable: (cable.high or 0.0, cable.name))
    if cable.high is None or cable.mean is None:
        return f"{cable.name} has no readings"
    return (
        f"{cable.name} is {cable.mean:.1%} busy in the mean, {cable.high:.1%} at high load;"
        f" {cable.episode_s / 3600:.2g} h of episodes in {cable.known_s / 3600:.3g} h"
    )


def _some(names: Sequence[str]) -> str:
    rest = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + rest


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 6) if known else None


def _percent(value: float | None) -> str | None:
    return None if value is None else f"{value:.1%}"
