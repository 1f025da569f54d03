"""How well a rebuild found what was planted.

Links: stretches of one link no further apart than the longest gap are one, in what was found as
in the truth; what lies in a span of which nothing is known is cut off both. A found stretch is
right when it and a true one of the same link share more than half of the time that either lasts;
a true one lasts as it really did, or in whole intervals of its port as exact rules see it. Recall
is over the true ones that must be found; a found one that matches no true one is false. A part of
a true one that need not be found is neither.

Roots: for each true episode that must be seen and whose root is watched closely enough, right when
some found episode names one of its roots at its time; for each found one, right when its root is
that of a true episode at that time. The score is the lower of the two shares. Found episodes all
of whose links belong to true ones with an unseen root are not judged, nor those within spans of
which nothing is known.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tests.planted.tallies import joined
from tests.planted.truth import Span, TrueEpisode, TrueStretch, Truth, cut, likeness
from xtune.lake import Lake


@dataclass(kw_only=True)
class Score:
    """Scores, and what was missed.

    Attributes:
        optional: Share of true stretches that need not be found.
        unseen: Share of true episodes whose root cannot be told.
        bound_error: Median of |found - true| bounds, in sampling intervals of the port.
        split: Found episodes for each true one.
        gpu_hours_error: Of the sum over episodes, relative: each carries all of a step it slowed.
        lost_hours_error: Of the hours lost in all, each step counted once, relative.
        seen_hours_error: The same against what episodes cost that must be found.
        episode_hours_error: Median over episodes that cost anything.
    """

    recall: float
    precision: float
    optional: float
    unseen: float
    root_right: float
    root_found: float
    root_true: float
    cause_right: float
    split: float
    bound_error: float
    bound_error_p90: float
    gpu_hours_error: float
    gpu_hours: tuple[float, float]
    lost_hours_error: float
    seen_hours_error: float
    episode_hours_error: float
    missed: list[TrueStretch] = field(default_factory=list)
    false: list[tuple[str, float, float]] = field(default_factory=list)
    wrong: list[tuple[str, Any]] = field(default_factory=list)

    def text(self) -> str:
        """One line."""
        return (
            f"recall {self.recall:.3f} precision {self.precision:.3f} optional"
            f" {self.optional:.2f} unseen {self.unseen:.2f} root {self.root_right:.3f} (of true"
            f" {self.root_true:.3f}, of found {self.root_found:.3f}) cause {self.cause_right:.3f}"
            f" split {self.split:.2f}"
            f" bounds {self.bound_error:.2f} p90 {self.bound_error_p90:.2f}"
            f" hours {self.gpu_hours[0]:.2f} true {self.gpu_hours[1]:.2f}"
            f" ({self.gpu_hours_error:+.3f}), by episode {self.episode_hours_error:.3f},"
            f" once {self.lost_hours_error:+.3f} of seen {self.seen_hours_error:+.3f}"
        )


def score(lake: Lake, truth: Truth) -> Score:
    """Compare the derived tables of a lake with the truth."""
    members = _rows(lake, "link_episodes", truth.t0_ns)
    episodes = _rows(lake, "episodes", truth.t0_ns)
    pairs, missed, false = _match(members, truth)
    required = [s for s in truth.stretches if s.required]
    errors = [
        abs(found - true) / s.interval_s
        for s, span in pairs
        for found, true in ((span[0], s.start_s), (span[1], s.end_s))
        if s.required and _same(span, s, []) and not _at_mask(truth, s.link, true)
    ]
    right_links = len({(s.link, span) for s, span in pairs})
    by_true, wrong = _roots(episodes, members, truth)
    required_episodes = [e for e in truth.episodes if e.required]
    seen = [e for e in required_episodes if e.visible]
    right = [e for e in seen if by_true[e.number]]
    causes = [any(row["cause"] == e.cause for row in by_true[e.number]) for e in right]
    root_true = len(right) / max(1, len(seen))
    root_found = 1 - len(wrong) / max(1, len(episodes))
    hours = sum(row["idle_gpu_hours"] or 0.0 for row in episodes)
    total = sum(e.gpu_hours for e in truth.episodes)
    by = lake.read("derived/impact_by").to_pylist()
    lost = sum(row["idle_gpu_hours"] or 0.0 for row in by if row["kind"] == "all")
    costs = [
        abs(sum(r["idle_gpu_hours"] or 0.0 for r in by_true[e.number]) / e.gpu_hours - 1)
        for e in right
        if e.gpu_hours > 0.01
    ]
    missing: list[tuple[str, Any]] = [("not found", e) for e in seen if not by_true[e.number]]
    return Score(
        recall=sum(s.required for s, _ in pairs) / max(1, len(required)),
        precision=right_links / max(1, right_links + len(false)),
        optional=1 - len(required) / max(1, len(truth.stretches)),
        unseen=1 - len(seen) / max(1, len(required_episodes)),
        root_right=min(root_true, root_found),
        root_true=root_true,
        root_found=root_found,
        cause_right=float(np.mean(causes)) if causes else 1.0,
        split=sum(len(by_true[e.number]) for e in right) / max(1, len(right)),
        bound_error=float(np.median(errors)) if errors else 0.0,
        bound_error_p90=float(np.quantile(errors, 0.9)) if errors else 0.0,
        gpu_hours_error=_relative(hours, total),
        gpu_hours=(hours, total),
        lost_hours_error=_relative(lost, truth.gpu_hours),
        seen_hours_error=_relative(lost, truth.seen_gpu_hours),
        episode_hours_error=float(np.median(costs)) if costs else 0.0,
        missed=missed,
        false=false,
        wrong=[*missing, *(("wrong", row) for row in wrong)],
    )


def _relative(found: float, true: float) -> float:
    return (found - true) / true if true else found


def _rows(lake: Lake, name: str, t0_ns: int) -> list[dict[str, Any]]:
    """Rows of a derived table; start and end as seconds after the beginning."""
    data = lake.read(f"derived/{name}")
    rows: list[dict[str, Any]] = data.drop_columns(["start_ts", "end_ts"]).to_pylist()
    for column in ("start", "end"):
        times = data[f"{column}_ts"].cast(pa.int64()).to_pylist()
        for row, ns in zip(rows, times, strict=True):
            row[column] = (int(ns) - t0_ns) / 1e9
    return rows


def _at_mask(truth: Truth, link: str, time: float) -> bool:
    return any(a - 1e-6 <= time <= b + 1e-6 for a, b in truth.masks.get(link, ()))


def _match(
    members: list[dict[str, Any]], truth: Truth
) -> tuple[list[tuple[TrueStretch, Span]], list[TrueStretch], list[tuple[str, float, float]]]:
    found: dict[str, list[Span]] = defaultdict(list)
    for row in members:
        found[row["link"]].append((row["start"], row["end"]))
    true: dict[str, list[TrueStretch]] = defaultdict(list)
    for stretch in truth.stretches:
        true[stretch.link].append(stretch)
    pairs: list[tuple[TrueStretch, Span]] = []
    missed, false = [], []
    for link in sorted({*found, *true}):
        masks = truth.masks.get(link, [])
        spans = cut(joined(found[link], truth.gap_s), masks)
        matched = set()
        for stretch in true[link]:
            # With the marks that arrive it may be a longer one, which need not be found.
            longer = [o for o in true[link] if not o.required and _part_of(stretch.seen, o)]
            best = [s for s in spans if any(_same(s, o, masks) for o in (stretch, *longer))]
            if best:
                pairs.append((stretch, best[0]))
                matched |= set(best)
            elif stretch.required:
                missed.append(stretch)
        parts = [s for s in true[link] if not s.required]
        false += [
            (link, *span)
            for span in spans
            if span not in matched and not any(_part_of(span, s) for s in parts)
        ]
    return pairs, missed, false


def _same(found: Span, stretch: TrueStretch, masks: list[Span]) -> bool:
    forms = [(stretch.start_s, stretch.end_s), stretch.seen]
    pieces = [piece for form in forms for piece in cut([form], masks)]
    return any(likeness(found, piece) > 0.5 for piece in pieces)


def _part_of(found: Span, stretch: TrueStretch) -> bool:
    margin = stretch.interval_s
    start, end = stretch.start_s - margin, stretch.end_s + margin
    return found[0] >= min(start, stretch.seen[0]) and found[1] <= max(end, stretch.seen[1])


def _roots(
    episodes: list[dict[str, Any]], members: list[dict[str, Any]], truth: Truth
) -> tuple[dict[int, list[dict[str, Any]]], list[dict[str, Any]]]:
    """True episode -> found ones with a root of it at its time; and those with no such."""
    by_true: dict[int, list[dict[str, Any]]] = defaultdict(list)
    known = {
        row["episode_id"]
        for row in members
        if cut([(row["start"], row["end"])], truth.masks.get(row["link"], []))
    }
    wrong = []
    for row in episodes:
        met = [e for e in truth.episodes if _meets(row, e)]
        homes = [e for e in met if row["root_link"] in e.roots]
        for e in homes:
            by_true[e.number].append(row)
        unseen = {link for e in met if not e.visible for link in e.links}
        if not homes and row["episode_id"] in known and not set(row["links"]) <= unseen:
            wrong.append(row)
    return by_true, wrong


def _meets(row: dict[str, Any], episode: TrueEpisode) -> bool:
    return bool(row["start"] < episode.end_s and row["end"] > episode.start_s)
