"""Whether a signal rises faster beyond some number of jobs, where, and how sure that is.

A broken stick, ``a + b x + c max(0, x - k)`` with ``c > 0``, against a straight line. Minutes that
follow each other are alike, so all chances are over blocks of time: of the straight line, by
turning the sign of whole blocks of its residuals (wild bootstrap); of the knee's place, by drawing
blocks anew.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Fewer blocks of time, or numbers of jobs, show no shape.
FEWEST_BLOCKS = 20
FEWEST_NUMBERS = 6
# Blocks that must reach beyond a knee, and below it.
_BEYOND = 5
_DRAWS = 999
# Straight data are called a knee once in a hundred times at most.
_SURE = 0.01
# Beyond the knee the signal must rise this many times as fast, and the bend must fit better than a
# parabola in this share of draws: a gentle curve is no knee.
_STEEPER = 3.0
_BENT = 0.95
_PLACES = 48
# What is left of a sum of squares by rounding.
_RESIDUE = 1e-10


@dataclass(frozen=True, kw_only=True, slots=True)
class Knee:
    """What data say of a knee.

    Attributes:
        verdict: ``knee``, ``no knee`` or ``too few``.
        knee: Number of jobs; None without a knee.
        low: Lower bound, 95 %.
        high: Upper bound.
        p_value: Chance of as clear a knee in straight data; None where too few.
        blocks: Blocks of time.
    """

    verdict: str
    blocks: int
    knee: float | None = None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None


def find_knee(jobs: Floats, signal: Floats, weight: Floats, block: NDArray[np.int64]) -> Knee:
    """Look for a knee in the signal of minutes.

    Args:
        jobs: Number of concurrent jobs, a minute each.
        signal: Mean of the signal; all finite.
        weight: How much each minute counts, above 0.
        block: Which block of time it belongs to.
    """
    names, number = np.unique(block, return_inverse=True)
    blocks = len(names)
    places = _places(jobs, number, blocks)
    if blocks < FEWEST_BLOCKS or len(np.unique(jobs)) < FEWEST_NUMBERS or not len(places):
        return Knee(verdict="too few", blocks=blocks)
    weight = weight / weight.mean()
    scale = np.abs(signal).max()
    if scale == 0:
        return Knee(verdict="no knee", blocks=blocks, p_value=1.0)
    y = signal / scale
    sticks = _Sticks(jobs / jobs.max(), weight, number, blocks, places / jobs.max())
    gain, slopes = sticks.gains(sticks.moments(y)[None])
    best = int(np.argmax(gain[0]))
    rng = np.random.default_rng(0)
    fitted = sticks.line(y)
    signs = rng.choice([-1.0, 1.0], (_DRAWS, blocks))
    drawn, _ = sticks.gains(sticks.turned(fitted, y - fitted, signs))
    p_value = float((1 + np.count_nonzero(drawn.max(axis=1) >= gain[0, best])) / (_DRAWS + 1))
    counts = rng.multinomial(blocks, np.full(blocks, 1 / blocks), _DRAWS).astype(np.float64)
    before, more = slopes[0, best]
    bent = sticks.worse_parabola(y, best, counts)
    if p_value > _SURE or before + more < _STEEPER * max(before, 0.0) or bent < _BENT:
        return Knee(verdict="no knee", blocks=blocks, p_value=p_value)
    low, high = np.quantile(places[sticks.redrawn(y, counts)], (0.025, 0.975))
    return Knee(
        verdict="knee",
        blocks=blocks,
        knee=float(places[best]),
        low=float(min(low, places[best])),
        high=float(max(high, places[best])),
        p_value=p_value,
    )


def _places(jobs: Floats, number: NDArray[np.int64], blocks: int) -> Floats:
    """Numbers of jobs where a knee could be: enough blocks reach beyond, and enough below."""
    most, least = np.full(blocks, -np.inf), np.full(blocks, np.inf)
    np.maximum.at(most, number, jobs)
    np.minimum.at(least, number, jobs)
    values = np.unique(jobs)
    inner = [
        value
        for value in values[1:-1]
        if np.count_nonzero(most > value) >= _BEYOND and np.count_nonzero(least < value) >= _BEYOND
    ]
    if len(inner) > _PLACES:
        inner = [inner[i] for i in np.linspace(0, len(inner) - 1, _PLACES).round().astype(int)]
    return np.array(inner, dtype=np.float64)


class _Sticks:
    """Weighted least squares of broken sticks at all places at once, from sums by block.

    ``einsum`` without BLAS: the same sums whatever the threads.
    """

    def __init__(
        self, x: Floats, weight: Floats, number: NDArray[np.int64], blocks: int, places: Floats
    ) -> None:
        self._x, self._weight, self._number, self._blocks = x, weight, number, blocks
        self._hinges = np.maximum(0.0, x[:, None] - places[None, :])
        one = np.ones_like(x)
        self._line = np.stack([one, x], axis=1)
        count = len(places)
        columns = [one, x, x * x]
        common = np.stack([self._by_block(column) for column in columns], axis=1)
        hinged = np.stack(
            [self._by_block(self._hinges * factor[:, None]) for factor in (one, x)]
            + [self._by_block(self._hinges * self._hinges)],
            axis=2,
        )
        # Blocks, places, 3 x 3.
        gram = np.empty((blocks, count, 3, 3))
        gram[:, :, 0, 0] = common[:, 0, None]
        gram[:, :, 0, 1] = gram[:, :, 1, 0] = common[:, 1, None]
        gram[:, :, 1, 1] = common[:, 2, None]
        gram[:, :, 0, 2] = gram[:, :, 2, 0] = hinged[:, :, 0]
        gram[:, :, 1, 2] = gram[:, :, 2, 1] = hinged[:, :, 1]
        gram[:, :, 2, 2] = hinged[:, :, 2]
        self._gram = gram
        self._whole = gram.sum(axis=0)

    def _by_block(self, values: Floats) -> Floats:
        """Weighted sums of rows by block."""
        wide = values if values.ndim == 2 else values[:, None]
        found = np.zeros((self._blocks, wide.shape[1]))
        np.add.at(found, self._number, wide * self._weight[:, None])
        return found if values.ndim == 2 else found[:, 0]

    def _products(self, y: Floats) -> tuple[Floats, Floats]:
        """Sums with ``y`` by block: (blocks, places, 3), and of its square (blocks)."""
        flat = self._by_block(self._line * y[:, None])
        hinged = self._by_block(self._hinges * y[:, None])
        count = hinged.shape[1]
        products = np.concatenate(
            [np.repeat(flat[:, None, :], count, axis=1), hinged[:, :, None]], axis=2
        )
        return products, self._by_block(y * y)

    def moments(self, y: Floats) -> Floats:
        """Sums with ``y`` over all blocks: (places, 4), the last of its square."""
        products, squares = self._products(y)
        whole = products.sum(axis=0)
        return np.concatenate([whole, np.full((len(whole), 1), squares.sum())], axis=1)

    def line(self, y: Floats) -> Floats:
        """The straight line through ``y``."""
        whole = self.moments(y)[0]
        solved = np.linalg.solve(self._whole[0, :2, :2], whole[:2])
        found: Floats = np.einsum("ni,i->n", self._line, solved)
        return found

    def turned(self, fitted: Floats, residual: Floats, signs: Floats) -> Floats:
        """Moments of the line with its residuals' signs turned by block: (draws, places, 4)."""
        base, _ = self._products(fitted)
        noise, noise_squares = self._products(residual)
        cross = self._by_block(fitted * residual)
        fitted_squares = self._by_block(fitted * fitted)
        linear = base.sum(axis=0) + np.einsum("db,bpk->dpk", signs, noise)
        squares = (fitted_squares + noise_squares).sum() + 2 * np.einsum("db,b->d", signs, cross)
        wide = np.broadcast_to(squares[:, None, None], (*linear.shape[:2], 1))
        return np.concatenate([linear, wide], axis=2)

    def gains(self, moments: Floats) -> tuple[Floats, Floats]:
        """How much better a stick that bends upwards fits than the line, at each place.

        Returns:
            Share of the stick's own misfit, and (slope before, slope added) at each place.
        """
        return _gains(np.broadcast_to(self._whole, (len(moments), *self._whole.shape)), moments)

    def worse_parabola(self, y: Floats, place: int, counts: Floats) -> float:
        """Share of draws of blocks in which the best parabola misses more than the best stick."""
        misses = []
        for bend in (self._hinges[:, place], self._x * self._x):
            columns = np.concatenate([self._line, bend[:, None]], axis=1)
            weighed = columns * self._weight[:, None]
            solved = np.linalg.solve(
                np.einsum("ni,nj->ij", weighed, columns), np.einsum("ni,n->i", weighed, y)
            )
            misses.append(self._by_block((y - np.einsum("ni,i->n", columns, solved)) ** 2))
        ahead = np.einsum("db,b->d", counts, misses[1] - misses[0])
        return float(np.mean(ahead > 0))

    def redrawn(self, y: Floats, counts: Floats) -> NDArray[np.intp]:
        """Index of the best place for each draw of blocks."""
        products, squares = self._products(y)
        best = []
        for count in counts:
            gram = np.einsum("b,bpij->pij", count, self._gram)
            whole = np.einsum("b,bpi->pi", count, products)
            square = np.full((len(whole), 1), np.einsum("b,b->", count, squares))
            gain, _ = _gains(gram[None], np.concatenate([whole, square], axis=1)[None])
            best.append(int(np.argmax(gain[0])))
        return np.array(best, dtype=np.intp)


def _gains(gram: Floats, moments: Floats) -> tuple[Floats, Floats]:
    """See :meth:`_Sticks.gains`; one more axis in front, of draws."""
    # A draw may hold nothing beyond a place: then its stick is the line, not undefined.
    gram = gram + np.eye(3) * (_RESIDUE * gram[..., :1, :1])
    solved = np.linalg.solve(gram, moments[..., :3, None])[..., 0]
    straight = np.linalg.solve(gram[..., :2, :2], moments[..., :2, None])[..., 0]
    square = moments[..., 3]
    stick = square - (solved * moments[..., :3]).sum(axis=-1)
    line = square - (straight * moments[..., :2]).sum(axis=-1)
    gain = np.maximum(line - stick, 0.0) / np.maximum(stick, _RESIDUE * square + 1e-300)
    slopes = np.asarray(solved[..., 1:], dtype=np.float64)
    return np.asarray(np.where(slopes[..., 1] > 0, gain, 0.0), dtype=np.float64), slopes
