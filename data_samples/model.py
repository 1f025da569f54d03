"""A small fabric, one training job on it, and planted congestion: rates as functions of time.

Fluid and deliberately separate from the simulator: nothing here is shared with what is tested
against it. Two rules of a lossless fabric are all the physics: a saturated port sends at line
rate and waits for nobody; every port behind it that carries its traffic always has data and sends
at its share, so it waits for the rest of the time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

WAIT_TICK_BYTES = 8.0  # PortSamplesControl tick 7: byte times per tick is 8
MTU_BYTES = 4096.0


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What the generator plants; times in seconds, sizes in bytes."""

    seed: int = 7
    days: tuple[str, ...] = ("2026-03-02", "2026-03-03")
    start_hour: int = 10
    length_s: float = 3600.0
    leaves: int = 4
    spines: int = 2
    job_hosts_per_leaf: int = 4
    other_hosts_per_leaf: int = 2
    rate_gbps: float = 400.0
    sample_s: float = 5.0
    compute_s: float = 1.2
    buckets: int = 4
    bucket_bytes: int = 5_000_000_000
    episodes_per_hour: float = 18.0
    episode_mean_s: float = 60.0
    episode_shortest_s: float = 25.0
    loss_floor: float = 1.8
    loss_scale: float = 9.0
    loss_power: float = 0.35
    compute_jitter: float = 0.01

    @property
    def line_bytes_s(self) -> float:
        """Bytes a port moves in a second at line rate."""
        return self.rate_gbps * 1e9 / 8


@dataclass(frozen=True)
class Port:
    """One directed port: ``kind`` host (towards its leaf), down (leaf to host), up, spine."""

    kind: str
    guid: str
    port: int
    name: str
    peer_guid: str
    peer_port: int
    peer_name: str

    @property
    def link(self) -> str:
        return f"{self.guid}/{self.port}"


@dataclass
class Episode:
    """One planted episode: its root, and each port's share and wait while it lasts."""

    cause: str
    start_s: float
    end_s: float
    root: str
    share: dict[str, float]
    wait: dict[str, float]
    errors_link: str | None = None


@dataclass
class Fabric:
    """Ports by link id, and paths between hosts."""

    scenario: Scenario
    ports: dict[str, Port] = field(default_factory=dict)
    job_hosts: list[tuple[int, int]] = field(default_factory=list)
    other_hosts: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        s = self.scenario
        per_leaf = s.job_hosts_per_leaf + s.other_hosts_per_leaf
        for leaf in range(s.leaves):
            for slot in range(per_leaf):
                job = slot < s.job_hosts_per_leaf
                (self.job_hosts if job else self.other_hosts).append((leaf, slot))
                host, name = self.host_guid(leaf, slot), f"{self.host(leaf, slot)} mlx5_0"
                self._add("host", host, 1, name, self.leaf_guid(leaf), slot + 1, f"leaf{leaf:02d}")
                self._add("down", self.leaf_guid(leaf), slot + 1, f"leaf{leaf:02d}", host, 1, name)
            for spine in range(s.spines):
                up = (self.leaf_guid(leaf), per_leaf + spine + 1, f"leaf{leaf:02d}")
                top = (self.spine_guid(spine), leaf + 1, f"spine{spine:02d}")
                self._add("up", *up, *top)
                self._add("spine", *top, *up)

    def _add(self, kind: str, *ends: object) -> None:
        port = Port(kind, *ends)  # type: ignore[arg-type]
        self.ports[port.link] = port

    def host(self, leaf: int, slot: int) -> str:
        per_leaf = self.scenario.job_hosts_per_leaf + self.scenario.other_hosts_per_leaf
        return f"node{leaf * per_leaf + slot + 1:02d}"

    @staticmethod
    def host_guid(leaf: int, slot: int) -> str:
        return f"0x{0xE09D730300100000 + leaf * 256 + slot:016x}"

    @staticmethod
    def leaf_guid(leaf: int) -> str:
        return f"0x{0x2C5EAB0300200000 + leaf:016x}"

    @staticmethod
    def spine_guid(spine: int) -> str:
        return f"0x{0x2C5EAB0300300000 + spine:016x}"

    def path(self, src: tuple[int, int], dst: tuple[int, int], spine: int) -> list[str]:
        """Links from host ``src`` to host ``dst`` over ``spine`` (unused within one leaf)."""
        s = self.scenario
        per_leaf = s.job_hosts_per_leaf + s.other_hosts_per_leaf
        links = [f"{self.host_guid(*src)}/1"]
        if src[0] != dst[0]:
            links.append(f"{self.leaf_guid(src[0])}/{per_leaf + spine + 1}")
            links.append(f"{self.spine_guid(spine)}/{dst[0] + 1}")
        links.append(f"{self.leaf_guid(dst[0])}/{dst[1] + 1}")
        return links

    def ring(self) -> list[list[str]]:
        """Paths of the job's ring; leaf ``l`` leaves over spine ``l % spines`` (static)."""
        hosts = self.job_hosts
        pairs = zip(hosts, hosts[1:] + hosts[:1], strict=True)
        return [self.path(a, b, a[0] % self.scenario.spines) for a, b in pairs]


def _incast(fabric: Fabric, rng: np.random.Generator, root_leaf: int) -> tuple[list, list[float]]:
    """Three hosts of other leaves send to one host of ``root_leaf``: two over one spine."""
    target = (root_leaf, fabric.scenario.job_hosts_per_leaf)
    sources = [leaf for leaf in range(fabric.scenario.leaves) if leaf != root_leaf]
    first = int(rng.integers(fabric.scenario.spines))
    spines = [first, first, (first + 1) % fabric.scenario.spines]
    slot = fabric.scenario.job_hosts_per_leaf
    paths = [
        fabric.path((leaf, slot), target, spine)
        for leaf, spine in zip(sources, spines, strict=False)
    ]
    return paths, [1 / len(paths)] * len(paths)


def draw_episode(fabric: Fabric, rng: np.random.Generator, cause: str) -> Episode:
    """One episode of ``cause`` at a place of its own; times are filled in by the caller."""
    s = fabric.scenario
    leaf, spine = int(rng.integers(s.leaves)), int(rng.integers(s.spines))
    far = (leaf + 1 + int(rng.integers(s.leaves - 1))) % s.leaves
    slot = s.job_hosts_per_leaf
    errors = None
    if cause == "incast":
        paths, shares = _incast(fabric, rng, leaf)
        root, saturated = paths[0][-1], True
    elif cause == "uplink_collision":
        other = (leaf + 1 + (far - leaf) % (s.leaves - 1)) % s.leaves
        targets = [(far, slot), (other, slot + 1)]
        paths = [fabric.path((leaf, slot + i), target, spine) for i, target in enumerate(targets)]
        shares, root, saturated = [0.5, 0.5], paths[0][1], True
    elif cause == "slow_receiver":
        paths, shares = [fabric.path((leaf, slot), (far, slot), spine)], [0.4]
        root, saturated = paths[0][-1], False
    else:  # sick_link: retransmission on the uplink takes its bandwidth
        paths, shares = [fabric.path((leaf, slot), (far, slot), spine)], [0.3]
        root, saturated = paths[0][1], False
        errors = f"{fabric.ports[root].peer_guid}/{fabric.ports[root].peer_port}"
    share: dict[str, float] = {}
    for path, part in zip(paths, shares, strict=True):
        for link in path:
            share[link] = share.get(link, 0.0) + part
    wait: dict[str, float] = {}
    for path in paths:
        behind = path[: path.index(root)] if root in path else []
        for link in behind:
            wait[link] = 1.0 - share[link]
    if not saturated:
        wait[root] = 1.0 - share[root]
    return Episode(cause, 0.0, 0.0, root, share, wait, errors)


def ring_slowdown(fabric: Fabric, episode: Episode) -> tuple[float, list[str]]:
    """How much slower the ring runs in ``episode``, and the job's ports that wait for it."""
    worst, ports = 1.0, []
    for path in fabric.ring():
        factors = [
            3.0
            if link == episode.root and link not in episode.wait
            else 1.0 / (1.0 - episode.wait[link])
            if link in episode.wait
            else 1.0
            for link in path[1:-1]
        ]
        if factors and max(factors) > 1.0:
            ports.append(path[0])
            worst = max(worst, *factors)
    return worst, ports


CAUSES = ("uplink_collision", "incast", "slow_receiver", "sick_link")


def draw_episodes(fabric: Fabric, rng: np.random.Generator) -> list[Episode]:
    """One window's episodes: exponential lengths and gaps, scaled to the asked rate and mean."""
    s = fabric.scenario
    count = round(s.episodes_per_hour * s.length_s / 3600.0)
    # Exponential above the shortest; scaling makes the realised mean the asked one, so that a
    # fit is compared with what was planted and not with the luck of the draw.
    tails = rng.exponential(1.0, count)
    lengths = s.episode_shortest_s + tails * (
        (s.episode_mean_s - s.episode_shortest_s) / tails.mean()
    )
    free = s.length_s - lengths.sum() - 40.0 * (count + 1)
    gaps = rng.exponential(1.0, count + 1)
    gaps = 40.0 + gaps * free / gaps.sum()
    episodes, now = [], 0.0
    for index in range(count):
        now += gaps[index]
        while True:
            episode = draw_episode(fabric, rng, CAUSES[index % len(CAUSES)])
            slowdown, _ = ring_slowdown(fabric, episode)
            # Between these the job's own ports would wait just about the reporting threshold.
            if slowdown == 1.0 or slowdown >= 2.0:
                break
        episode.start_s, episode.end_s = now, now + lengths[index]
        now = episode.end_s
        episodes.append(episode)
    return episodes


@dataclass
class Step:
    """One training step: start, end, and each bucket's (ready, start, end) in seconds."""

    number: int
    start_s: float
    end_s: float
    buckets: list[tuple[float, float, float]]
    compute_s: float


def bucket_seconds(s: Scenario) -> float:
    """Ring all-reduce of one bucket at line rate: 2 (n - 1) / n bytes / rate."""
    ranks = s.leaves * s.job_hosts_per_leaf
    return 2 * (ranks - 1) / ranks * s.bucket_bytes / s.line_bytes_s


def run_job(
    fabric: Fabric, episodes: list[Episode], rng: np.random.Generator, first_step: int
) -> list[Step]:
    """Steps of one window: buckets become ready through backward (two thirds of the compute)."""
    s = fabric.scenario
    starts = np.array([e.start_s for e in episodes])
    ends = np.array([e.end_s for e in episodes])
    slow = np.array([ring_slowdown(fabric, e)[0] for e in episodes])
    clean = bucket_seconds(s)

    def transfer(start: float) -> float:
        """End of a bucket that starts at ``start``: work at rate 1 or 1 / slowdown."""
        work, now = clean, start
        while work > 1e-12:
            inside = np.flatnonzero((starts <= now) & (now < ends))
            factor = slow[inside[0]] if len(inside) else 1.0
            later = starts[starts > now]
            edge = ends[inside[0]] if len(inside) else (later.min() if len(later) else np.inf)
            done = min(work, (edge - now) / factor)
            now += done * factor
            work -= done
            if done * factor < 1e-9:
                now = float(edge)
        return float(now)

    steps, now, number = [], 0.0, first_step
    while True:
        compute = s.compute_s * float(np.exp(rng.normal(0.0, s.compute_jitter)))
        buckets, busy = [], now
        for index in range(s.buckets):
            ready = now + compute * (1 / 3 + 2 / 3 * (index + 1) / s.buckets)
            begin = max(ready, busy)
            busy = transfer(begin)
            buckets.append((ready, begin, busy))
        end = max(now + compute, busy)
        if end > s.length_s:
            return steps
        steps.append(Step(number, now, end, buckets, compute))
        now, number = end, number + 1


@dataclass
class PortSeries:
    """Cumulative bytes and wait ticks of one port at any time, from piecewise constant rates."""

    edges: np.ndarray
    bytes_total: np.ndarray
    ticks_total: np.ndarray

    def at(self, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return (
            np.interp(times, self.edges, self.bytes_total),
            np.interp(times, self.edges, self.ticks_total),
        )


def port_series(
    fabric: Fabric,
    link: str,
    episodes: list[Episode],
    steps: list[Step],
    rng: np.random.Generator,
) -> PortSeries:
    """Rates of one port over a window, integrated."""
    s = fabric.scenario
    on_ring = any(link in path for path in fabric.ring())
    comm = np.array([(b[1], b[2]) for step in steps for b in step.buckets])
    mine = [e for e in episodes if link in e.share]
    waiting = [(e, ring_slowdown(fabric, e)) for e in episodes]
    minute = np.arange(0.0, s.length_s + 60.0, 60.0)
    load = rng.uniform(0.0, 0.06, len(minute))
    noise = rng.uniform(0.0, 0.004, len(minute))
    edges = [minute, *[np.array([e.start_s, e.end_s]) for e in episodes]]
    if on_ring and len(comm):
        edges.append(comm.ravel())
    grid = np.unique(np.clip(np.concatenate(edges), 0.0, s.length_s))
    middle = (grid[:-1] + grid[1:]) / 2
    bin_ = np.minimum((middle // 60.0).astype(int), len(minute) - 1)
    rate, wait = load[bin_], noise[bin_]
    if on_ring and len(comm):
        active = np.searchsorted(comm[:, 0], middle, side="right") - 1
        inside = (active >= 0) & (middle < comm[np.maximum(active, 0), 1])
        speed = np.ones_like(middle)
        blocked = np.zeros_like(middle)
        for episode, (slowdown, ports) in waiting:
            during = (episode.start_s <= middle) & (middle < episode.end_s)
            speed[during] = 1.0 / slowdown
            if link in ports:
                blocked[during] = 1.0 - 1.0 / slowdown
        rate = np.where(inside, np.minimum(1.0, speed), rate)
        wait = np.where(inside, np.maximum(wait, blocked), wait)
    for episode in mine:
        during = (episode.start_s <= middle) & (middle < episode.end_s)
        rate = np.where(during, episode.share[link], rate)
        wait = np.where(during, episode.wait.get(link, 0.0), wait)
    span = np.diff(grid)
    line = s.line_bytes_s
    return PortSeries(
        grid,
        np.concatenate(([0.0], np.cumsum(rate * line * span))),
        np.concatenate(([0.0], np.cumsum(wait * line / WAIT_TICK_BYTES * span))),
    )
