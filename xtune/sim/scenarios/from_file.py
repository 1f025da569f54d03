"""The job of a public workload file, on the founding scenarios' card, fabric and background."""

from __future__ import annotations

from pathlib import Path

from xtune.errors import UsageError
from xtune.sim.beside import Beside
from xtune.sim.calibration import LayerShape, Parameter
from xtune.sim.models import buckets
from xtune.sim.scenarios._base import (
    DDP_BUCKET_BYTES,
    MOST_CARDS,
    Scenario,
    assumed,
    beside,
    calibration_of,
    gradients,
    training,
)
from xtune.sim.scenarios._founding import BACKGROUND, CARD, CARDS
from xtune.sim.workload_files import Transfers, Work, read_workload

TOKENS = float(1 << 20)  # of an iteration, for the loss curve: files do not say
# Of a text whose first line leaves them out; older ones have tp alone.
TAKEN = {"tp": 1, "ep": 1, "pp": 1, "vpp": 1, "ga": 1, "gpus": CARDS}


def of_file(path: Path) -> Scenario:
    """A scenario of a SimAI text.

    Raises:
        InputError: The file is not a workload, or a line of it is wrong.
        UsageError: It holds no compute times, no gradients, or sizes that do not fit.
    """
    work = read_workload(path)
    if work.compute_s is None:
        raise UsageError(f"{path}: holds no compute times", "take the SimAI form that AICB writes")
    cards, parts = work.sizes.get("gpus", CARDS), _parts(work)
    ranks = cards // parts
    if ranks < 2 or ranks * parts != cards or not work.gradient_elements():
        raise UsageError(
            f"{path}: {cards} cards in {parts} parts share no gradients", "see its first line"
        )
    if cards > MOST_CARDS:
        raise UsageError(f"{path}: {cards} cards", f"a fabric takes {MOST_CARDS}")
    if ranks % (experts := work.sizes.get("ep", 1)):
        raise UsageError(
            f"{path}: experts over {experts} of {ranks} data-parallel ranks",
            "ep of its first line divides them",
        )
    layers = _layers(work, ranks)
    return Scenario(
        name=work.name,
        title=f"a rank's step of {work.name} on {cards} cards",
        calibration=calibration_of(
            work.name, layers, cards, CARD, _job(work, ranks, buckets(layers, DDP_BUCKET_BYTES)),
            BACKGROUND,
            training(float(parts * work.gradient_elements()), TOKENS, ranks),
            notes=_taken(work),
        ),
        flops_per_card=None,
        claims=(),
    )  # fmt: skip


def _taken(work: Work) -> tuple[str, ...]:
    """Which sizes the file does not give, and what stands for them."""
    absent = {name: size for name, size in TAKEN.items() if name not in work.sizes}
    if not absent:
        return ()
    listed = ", ".join(f"{name} {size}" for name, size in absent.items())
    return (f"{work.name} does not say, so taken are: {listed}",)


def _parts(work: Work) -> int:
    """Cards that hold one copy of the layers other than experts."""
    return work.sizes.get("tp", 1) * work.sizes.get("pp", 1)


def _layers(work: Work, ranks: int) -> tuple[LayerShape, ...]:
    """Equal layers, one a block: a file has the sum of their gradients alone."""
    each = -(-work.gradient_elements() // work.blocks)
    own = -(-work.gradient_elements("dp_ep") // work.blocks)
    copies = ranks // work.sizes.get("ep", 1)
    layers = []
    for block in range(work.blocks):
        depth = block / max(1, work.blocks - 1)
        layers.append(LayerShape(name=f"{block}", elements=each, depth=depth))
        if own and copies > 1:  # a single copy is reduced with no one
            name = f"{block}.experts"
            layers.append(LayerShape(name=name, elements=own, depth=depth, ranks=copies))
    return tuple(layers)


def _job(work: Work, ranks: int, sizes: tuple[int, ...]) -> list[Parameter]:
    file = f"from {work.name}"
    micro = work.sizes.get("ga", 1)
    stages = work.sizes.get("pp", 1)
    # Of an interleaved pipeline: Narayanan et al., SC 2021, section 2.2.
    bubble = (stages - 1) / (micro * work.sizes.get("vpp", 1))
    inside_s = _inside_bytes(work) / CARD.node_bytes_s
    compute_s = (work.compute_s or 0.0) * (1.0 + bubble) + inside_s
    return [
        assumed(
            "compute_s", compute_s, f"{file}; {bubble:.0%} of it waiting for the pipeline, and"
            f" {1e3 * inside_s:.1f} ms of tensor parallel traffic ({CARD.node_why})", "s",
        ),
        assumed(
            "first_bucket_share", 1 - 2 / 3 / micro * (1 - 1 / len(sizes)),
            f"backward is two thirds of the last of {micro} micro-batches",
        ),
        assumed("ranks", float(ranks), file),
        assumed("job_rings", float(work.sizes.get("tp", 1)), "as many as share a layer"),
        *gradients(len(sizes)),
        *beside(_traffic(work), file),
    ]  # fmt: skip


def _inside_bytes(work: Work) -> float:
    """What a card sends to those of its node."""
    away = 1.0 - 1.0 / work.sizes.get("tp", 1)
    twice = {"all_reduce": 2.0}
    return sum(
        twice.get(kind, 1.0) * away * t.total_bytes
        for (kind, group), t in work.transfers.items()
        if group == "tp"
    )


def _traffic(work: Work) -> list[Beside]:
    """Pipeline and experts: the pipeline's hops while it fills and drains are waited for."""
    found = []
    stages, hop = work.sizes.get("pp", 1), work.sizes.get("pp_bytes", 0)
    if stages > 1 and hop:
        found.append(Beside(kind="pipeline", bytes_per_host=hop, per_step=2.0 * (stages - 1)))
    experts = work.transfers.get(("all_to_all", "ep"), Transfers())
    spread = work.sizes.get("ep", 1)
    if experts.count and spread > 1:
        size = round(experts.total_bytes / experts.count * (spread - 1) / spread)
        found.append(Beside(kind="expert", bytes_per_host=size, per_step=float(experts.count)))
    return found
