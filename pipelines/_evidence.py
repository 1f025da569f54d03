"""What an engineer checks: the final cause of a root, and the numbers that it rests on."""

from __future__ import annotations

from typing import Any

from xtune.pipelines._components import Component
from xtune.pipelines._roots import Found, overloaded
from xtune.pipelines._stretches import Stretch, Timeline
from xtune.pipelines._topology import Topology
from xtune.pipelines.rules import EpisodeRules

# As many names as a line of a table bears.
_NAMES = 16


def verdict(
    found: Found, component: Component, topology: Topology, rules: EpisodeRules
) -> tuple[str, dict[str, Any]]:
    """Cause of an episode with a known place, and its evidence."""
    senders = sources(found, topology)
    victims = {s.link for s in found.victims}
    hosts = sorted({h for link in victims if (h := _host_of_sender(link, topology))})
    evidence: dict[str, Any] = {
        **found.evidence,
        "topology": True,
        "victims": len(victims - found.links),
        "root_wait_fraction": found.own[0].mean_wait_fraction,
        "senders": len(senders),
    }
    if hosts:
        evidence["victim_hosts"] = hosts[:_NAMES]
        if len(hosts) > _NAMES:
            evidence["victim_hosts_more"] = len(hosts) - _NAMES
    if len(found.links) > 1:
        evidence["root_links"] = sorted(found.links)
    if found.blind:
        evidence["why"] = "no port beyond those that wait was sampled: the root is not in sight"
    evidence |= _signals(found)
    if found.kind == "sick":
        return "sick_link", evidence
    if found.kind == "receiver":
        return "slow_receiver", evidence | _pauses(found, component, topology)
    if found.kind == "alone":
        return "unknown", evidence
    cause, more = _of_saturated(found, senders, component, topology, rules)
    return cause, evidence | more


def _of_saturated(
    found: Found,
    senders: set[str],
    component: Component,
    topology: Topology,
    rules: EpisodeRules,
) -> tuple[str, dict[str, Any]]:
    """Incast, collision or overload: by where the port leads, how many feed it, its siblings."""
    link = found.own[0].link
    number, full, everywhere = overloaded(found, Timeline(component.beside), topology, rules)
    evidence = {"siblings": number, "siblings_saturated": full}
    hop = topology.hop(link)
    # A sender that is a switch's port stands for the many behind it that were not watched.
    several = len(senders) >= 2 or any(
        (sender := topology.hop(s)) is None or not topology.is_host(sender.node) for s in senders
    )
    if hop is None or not topology.lists(link):
        return "unknown", evidence
    if topology.is_host(hop.next_node):
        return ("incast" if several or "lossy" in found.evidence else "overload"), {}
    if everywhere:
        return "overload", evidence
    return ("uplink_collision" if several or "lossy" in found.evidence else "overload"), evidence


def sources(found: Found, topology: Topology) -> set[str]:
    """Victims that nothing else in the episode feeds: where its traffic comes in."""
    links = {s.link for s in found.victims} - found.links
    return {link for link in links if not any(feeder in links for feeder in topology.behind(link))}


def _host_of_sender(link: str, topology: Topology) -> str | None:
    hop = topology.hop(link)
    if hop is None or not topology.is_host(hop.node):
        return None
    return topology.host(hop.node)


def _signals(found: Found) -> dict[str, Any]:
    """Rates of the signals beside waiting, over all stretches that have them."""
    rates: dict[str, Any] = {}
    for name, column in (("marks_per_s", "mark_rate"), ("discards_per_s", "discard_rate")):
        values = [v for s in (*found.own, *found.victims) if (v := getattr(s, column))]
        if values:
            rates[name] = max(values)
    signals = {s.signal for s in (*found.own, *found.victims) if s.signal}
    if signals - {"wait"}:
        rates["signals"] = sorted(signals)
    return rates


def _pauses(found: Found, component: Component, topology: Topology) -> dict[str, Any]:
    """How much of the time the receiver paused its sender."""
    paused = Timeline(component.pauses)
    for own in found.own:
        hop = topology.hop(own.link)
        for s in paused.within(hop.receiver, own.start_ns, own.end_ns) if hop else ():
            return {"receiver_pause_fraction": s.mean_wait_fraction}
    return {}


def of_host(component: Component, rules: EpisodeRules) -> tuple[str, dict[str, Any]]:
    """Cause and evidence where the topology does not have the ports: by their own counters."""
    evidence: dict[str, Any] = {
        "topology": False,
        "why": (
            "these ports are not in the topology"
            if component.known
            else "no topology was collected"
        ),
        "host": component.host,
        "ports": len({s.link for s in component.waits}),
    }
    found = Found(kind="alone", own=list(component.waits))
    evidence |= _signals(found)
    received = Timeline(component.beside)
    if any(received.within(s.link, s.start_ns, s.end_ns) for s in component.waits):
        evidence["receives_at_line_rate"] = True
    errors, pauses = Timeline(component.errors), Timeline(component.pauses)
    worst = max(((_per_s(errors, s), s.link) for s in component.waits), default=(0.0, ""))
    if worst[0] >= rules.sick_errors_per_s:
        return "sick_link", evidence | {"errors_counted_by": worst[1], "errors_per_s": worst[0]}
    paused = [s.mean_wait_fraction for s in pauses if s.mean_wait_fraction is not None]
    if paused:
        evidence["host_pause_fraction"] = max(paused)
    return "unknown", evidence


def _per_s(errors: Timeline, span: Stretch) -> float:
    return errors.errors_in(span.link, span.start_ns, span.end_ns) / (span.length_ns / 1e9)
