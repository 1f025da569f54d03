"""What a scenario is, and the parts that all of them share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from xtune.sim.beside import Beside
from xtune.sim.calibration import Calibration, LayerShape, Parameter
from xtune.sim.fit import CODEC_S_PER_ELEMENT, CONTROLLER_S
from xtune.sim.fit_control import ASSUMED_S as CHANGE_S
from xtune.sim.models import Layout, Model, buckets, expert_traffic, shapes, tensor_bytes
from xtune.sim.response import assumed_response

DDP_BUCKET_BYTES = 25 << 20  # torch's DistributedDataParallel, bucket_cap_mb
LATENCY_NS = 500.0
MOST_HOSTS = 1024  # that are simulated, where a job has more
MOST_CARDS = 65_536  # what sim.fabric takes


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A figure of the founding document's: shown beside ours, never as ours.

    Attributes:
        metric: Of a policy against ``static_dense``: ``throughput``, ``iterations`` or ``time``.
        change: As a share: 0.60 for 60 % more.
        text: As the document has it.
    """

    metric: str
    change: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A job on a fabric, and what others say of it.

    Attributes:
        name: Of the scenario.
        title: What it is, in a line.
        calibration: Everything a trial needs, all of it assumed.
        flops_per_card: Model operations of one iteration on one card; None where not defined.
        claims: The founding document's; none of a job that is not its.
    """

    name: str
    title: str
    calibration: Calibration
    flops_per_card: float | None
    claims: tuple[Claim, ...]

    @property
    def needed_share(self) -> float | None:
        """Exposed communication that the claimed throughput needs of the baseline, at least.

        What a policy can win is what the baseline waits: a rise by ``r`` needs 1 - 1 / (1 + r).
        """
        rise = next((c.change for c in self.claims if c.metric == "throughput"), None)
        return None if rise is None else 1.0 - 1.0 / (1.0 + rise)


def assumed(name: str, value: float, why: str, unit: str = "") -> Parameter:
    """One assumed parameter."""
    return Parameter(name=name, value=value, unit=unit, assumed=True, why=why)


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """An accelerator and its network port.

    Attributes:
        flops: Operations per second while it computes.
        flops_why: Where that is from.
        gbps: Of its port on the fabric, Gb/s.
        gbps_why: Where that is from.
        node_bytes_s: Bytes per second to the cards of its node.
        node_why: Where that is from.
    """

    flops: float
    flops_why: str
    gbps: float
    gbps_why: str
    node_bytes_s: float
    node_why: str


def job(model: Model, layout: Layout, card: Card) -> list[Parameter]:
    """Parameters of a job of a published model."""
    inside_s = tensor_bytes(model, layout) / card.node_bytes_s
    compute_s = layout.flops_per_card(model) / card.flops + inside_s
    count = len(buckets(shapes(model, layout), DDP_BUCKET_BYTES))
    return [
        assumed(
            "compute_s", compute_s, f"{model.name}'s operations at {card.flops / 1e12:g} TFLOPS"
            f" ({card.flops_why}), and {1e3 * inside_s:.1f} ms of tensor parallel traffic inside"
            f" the node ({card.node_why})", "s",
        ),
        assumed(
            "first_bucket_share", 1 / 3 + 2 / 3 / count,
            f"backward is two thirds of compute, in {count} buckets of 25 MiB (torch's DDP)",
        ),
        assumed(
            "ranks", float(layout.data), f"{layout.cards} cards, {layout.tensor} share a layer"
        ),
        assumed(
            "job_rings", float(layout.tensor),
            "cards of one node hold different parts and reduce them in rings of their own",
        ),
        *gradients(count),
        *beside(expert_traffic(model, layout), "from the model's shape"),
    ]  # fmt: skip


def gradients(count: int) -> list[Parameter]:
    """How ``count`` buckets of them travel."""
    return [
        assumed("element_bytes", 2.0, "gradients in bf16 or fp16", "byte"),
        assumed("collective_bytes", float(DDP_BUCKET_BYTES), "one bucket", "byte"),
        assumed("collectives_per_step", float(count), "one a bucket"),
    ]


def beside(parts: Sequence[Beside], why: str) -> list[Parameter]:
    """Traffic beside data parallel as parameters."""
    return [
        p
        for b in parts
        for p in (
            assumed(f"{b.kind}_bytes", float(b.bytes_per_host), why, "byte"),
            assumed(f"{b.kind}_per_step", b.per_step, why),
        )
    ]


def leaves_of(hosts: int) -> tuple[int, int]:
    """Leaves, and hosts below each: the most even of whole leaves.

    Where no division of ``hosts`` is within a factor of two of a square (a prime number of them),
    the last leaf is filled up with more.
    """
    side = math.ceil(math.sqrt(hosts))
    for per_leaf in range(side, min(2 * side, hosts) + 1):
        if hosts % per_leaf == 0 and 2 * (hosts // per_leaf) >= side:
            return hosts // per_leaf, per_leaf
    return -(-hosts // side), side


def two_tier(hosts: int, card: Card) -> list[Parameter]:
    """A non-blocking two-tier fat tree, fixed paths by a hash."""
    leaves, per_leaf = leaves_of(hosts)
    full = leaves * per_leaf
    rounded = "" if full == hosts else f"; {hosts} of them, and the last leaf filled up"
    # Whole leaves.
    simulated = full if full <= MOST_HOSTS else MOST_HOSTS // per_leaf * per_leaf
    return [
        assumed("job_hosts", float(full), f"one port a card{rounded}"),
        assumed("hosts", float(full), "the job fills the fabric"),
        assumed("leaves", float(leaves), f"{per_leaf} hosts a leaf, as near to a square as it is"),
        assumed("spines", float(per_leaf), "non-blocking: as many as hosts on a leaf"),
        assumed("slice_hosts", float(simulated), "so many hosts are simulated"),
        assumed("rate_gbps", card.gbps, card.gbps_why, "1e9 bit/s"),
        assumed("link_latency_ns", LATENCY_NS, "a switch's data sheet and 10 m of fibre", "ns"),
        assumed("ecmp_share", 1.0, "static routes: every fixed path is drawn by a hash"),
        assumed("same_lane_share", 0.5, "half of the other jobs mark their traffic like this one"),
        assumed("background_load", 0.0, "others are silent outside episodes"),
    ]


def bursty(minutes_between: float, length_s: float, slowdown: float) -> list[Parameter]:
    """Other jobs' bursts, as episodes at ports of the job."""
    why = "no figure is published for it"
    return [
        assumed("episode_rate_per_h", 60.0 / minutes_between, why, "1/h"),
        assumed("episode_length_s", length_s, why, "s"),
        assumed("episode_length_shape", 1.0, "exponential lengths"),
        assumed("episode_hit_share", 1.0, "each is at a port of the job"),
        assumed("episode_slowdown", slowdown, why),
        assumed("episode_slowdown_sigma", 0.3, why),
        assumed("episode_edge_share", 0.1, "one in ten is at a host's own port"),
    ]


def training(elements: float, tokens: float, ranks: int) -> list[Parameter]:
    """Loss curve, noise and the costs of control.

    Args:
        elements: Parameters that take part in a token.
        tokens: Of an iteration.
        ranks: That reduce gradients.
    """
    curve = "Hoffmann et al., Training Compute-Optimal Large Language Models, 2022, equation 10"
    tree = 2 * math.ceil(math.log2(max(2, ranks))) * 4 * LATENCY_NS * 1e-9
    noise = "as small language models show it"
    return [
        assumed("loss_floor", 1.69 + 406.4 / elements**0.34, curve, "nat"),
        assumed("loss_scale", 410.7 / tokens**0.28, f"{curve}; {tokens:g} tokens a step", "nat"),
        assumed("loss_exponent", 0.28, curve),
        assumed("loss_noise", 0.02, noise, "nat"),
        assumed("gradient_change", 0.1, noise),
        assumed("gradient_change_sigma", 0.5, noise),
        assumed("compute_jitter", 0.01, "one per cent"),
        assumed("reading_noise", 0.05, "five per cent"),
        assumed("regulation_s", CONTROLLER_S + tree, "controller's time and a small tree", "s"),
        assumed("change_s", CHANGE_S, "training stands still while a plan changes", "s"),
        assumed(
            "codec_s_per_element", CODEC_S_PER_ELEMENT,
            "22 bytes of memory traffic an element at 3e12 byte/s", "s",
        ),
        *assumed_response(),
    ]  # fmt: skip


def calibration_of(
    name: str,
    layers: tuple[LayerShape, ...],
    cards: int,
    card: Card,
    *parts: Sequence[Parameter],
    notes: tuple[str, ...] = (),
) -> Calibration:
    """All of it; a collective alone on the fabric takes what its bytes take at the full rate.

    Args:
        name: Of the scenario.
        layers: As one card holds them.
        cards: All of them.
        card: An accelerator.
        parts: Parameters of job, background and training.
        notes: What else a reader must know.
    """
    given = {p.name: p for part in parts for p in part}
    ranks = given["ranks"].value
    latency_s = 2 * math.ceil(math.log2(max(2.0, ranks))) * 4 * LATENCY_NS * 1e-9
    clean_s = latency_s + DDP_BUCKET_BYTES * 2 * (ranks - 1) / ranks * 8e-9 / card.gbps
    rest = [
        *two_tier(cards, card),
        assumed("collective_s", clean_s, "bytes of a ring at the full rate", "s"),
        assumed("step_s", given["compute_s"].value, "not used: nothing was measured", "s"),
    ]
    return Calibration(
        job=name, parameters={**given, **{p.name: p for p in rest}},
        buckets=buckets(layers, DDP_BUCKET_BYTES), layers=layers,
        notes=("a scenario: every parameter is assumed, none is measured", *notes),
    )  # fmt: skip
