"""Adaptive and debiased errors against slow loops and the worked example."""

import itertools
import math

import numpy as np
import pytest
import torch

from calispan.core.kept_rows import Ranking
from calispan.core.registry import recipe


def ranking(confidence, hits):
    return Ranking.of(torch.tensor(confidence, dtype=torch.float64), torch.tensor(hits, dtype=torch.bool))


def drawn(rows, seed=0, digits=None):
    draws = np.random.default_rng(seed)
    confidence = draws.uniform(0.2, 1, rows)
    if digits is not None:
        confidence = confidence.round(digits)
    return confidence.tolist(), (draws.uniform(size=rows) < confidence**1.5).tolist()


def adaptive(confidence, hits, bins):
    """Rows in order, cut into bins of equal size."""
    rows = sorted(zip(confidence, hits, strict=True))
    error = 0.0
    for m in range(bins):
        part = rows[m * len(rows) // bins : (m + 1) * len(rows) // bins]
        error += abs(sum(c for c, _ in part) - sum(h for _, h in part)) / len(rows)
    return error


@pytest.mark.parametrize(("rows", "bins"), [(1000, 15), (997, 10), (7, 15), (1, 3)])
def test_adaptive_error_against_a_loop(rows, bins):
    confidence, hits = drawn(rows)
    assert recipe("ace", bins=bins).of(ranking(confidence, hits)) == pytest.approx(adaptive(confidence, hits, bins))


def test_tied_rows_count_as_spread_evenly():
    """The bins' hits are their means over every order of the tied rows."""
    confidence, hits = [0.3, 0.6, 0.6, 0.6, 0.6, 0.9], [0, 1, 1, 0, 0, 1]
    orders = set(itertools.permutations(hits[1:5]))
    halves = [(hits[0] + sum(order[:2]), sum(order[2:]) + hits[5]) for order in orders]
    low, high = np.mean(halves, axis=0)
    wanted = (abs(0.3 + 0.6 + 0.6 - low) + abs(0.6 + 0.6 + 0.9 - high)) / 6
    assert recipe("ace", bins=2).of(ranking(confidence, hits)) == pytest.approx(wanted)
    flat = ranking([0.8] * 10, [1] * 5 + [0] * 5)
    assert recipe("ace", bins=3).of(flat) == pytest.approx(0.3)


def debiased(confidence, hits, bins):
    """As Kumar et al. describe it: split the sorted rows, borders half-way, then bins by comparison."""
    ordered = sorted(confidence)
    if len(set(ordered)) < len(ordered) / 4:
        parts = [[value] for value in sorted(set(ordered))]
    else:
        parts = [part.tolist() for part in np.array_split(ordered, min(bins, len(ordered)))]
    borders = sorted({(left[-1] + right[0]) / 2 for left, right in itertools.pairwise(parts)})
    cells = {}
    for one, hit in zip(confidence, hits, strict=True):
        cells.setdefault(sum(border < one for border in borders), []).append((one, hit))
    total = 0.0
    for cell in cells.values():
        count = len(cell)
        if count > 1:
            sure, right = sum(c for c, _ in cell) / count, sum(h for _, h in cell) / count
            total += count / len(confidence) * ((sure - right) ** 2 - right * (1 - right) / (count - 1))
    return math.sqrt(max(0.0, total))


@pytest.mark.parametrize(
    ("rows", "bins", "digits"),
    [(1000, 15, None), (997, 10, None), (300, 15, 2), (300, 15, 1), (40, 15, 1), (5, 15, None)],
)
@pytest.mark.parametrize("seed", range(3))
def test_debiased_error_against_a_loop(rows, bins, digits, seed):
    confidence, hits = drawn(rows, seed, digits)
    found = recipe("debiased-ece", bins=bins).of(ranking(confidence, hits))
    assert found == pytest.approx(debiased(confidence, hits, bins), abs=1e-10)


def test_the_worked_example():
    assert recipe("debiased-ece").of(ranking([0.6] * 10, [1] * 8 + [0] * 2)) == pytest.approx(0.149071, abs=1e-6)


def test_label_noise_alone_is_taken_off():
    """Calibrated rows: the plug-in error of small bins is all noise, and most of it goes."""
    draws = np.random.default_rng(0)
    plain, corrected = [], []
    for _ in range(200):
        confidence = draws.uniform(0.4, 1, 300)
        rows = ranking(confidence, draws.uniform(size=300) < confidence)
        plain.append(recipe("ace").of(rows))
        corrected.append(recipe("debiased-ece").of(rows) ** 2)
    assert np.mean(plain) > 0.05
    assert np.mean(corrected) < 0.05**2
