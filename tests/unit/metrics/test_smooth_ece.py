"""Smooth ECE: the worked examples, a quadrature of the definition, and the authors' package."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import relplot
import torch

from calispan.core.registry import recipe


def fed(confidence, hits):
    state = recipe("smooth-ece").start()
    rows = torch.as_tensor(confidence, dtype=torch.float64), torch.as_tensor(hits, dtype=torch.bool)
    state.update(Chunk(*rows))
    return state


class Chunk(SimpleNamespace):
    def __init__(self, confidence, correct):
        super().__init__(confidence=confidence, correct=correct)

    def __len__(self):
        return len(self.confidence)


def by_definition(confidence, hits, width, points=4001):
    """Mean over rows of kernel times residual, its absolute value integrated by the midpoint rule."""
    total = 0.0
    for i in range(points):
        t = (i + 0.5) / points
        value = 0.0
        for f, hit in zip(confidence, hits, strict=True):
            reflections = range(-4, 5)
            near = sum(math.exp(-(((t - f + 2 * n) / width) ** 2) / 2) for n in reflections)
            near += sum(math.exp(-(((t + f + 2 * n) / width) ** 2) / 2) for n in reflections)
            value += near / (width * math.sqrt(2 * math.pi)) * (f - hit)
        total += abs(value / len(confidence)) / points
    return total


def test_the_worked_examples():
    flat = fed([0.7] * 10, [True, False] * 5)
    for width in (0.01, 0.1, 0.5, 1.0):
        assert flat.at(width) == pytest.approx(0.2, abs=1e-9)
    assert flat.compute() == pytest.approx(0.2, abs=1e-9)
    four = fed([0.2, 0.4, 0.6, 0.8], [0, 0, 1, 1])
    assert four.at(0.1) == pytest.approx(0.236268, abs=1e-6)
    assert four.at(0.2) == pytest.approx(0.163176, abs=1e-6)
    assert four.compute() == pytest.approx(0.176731, abs=1e-6)


@pytest.mark.parametrize("width", [0.02, 0.1, 0.4, 1.0])
def test_the_definition_by_quadrature(width):
    confidence, hits = [0.0, 0.03, 0.31, 0.5, 0.77, 0.98, 1.0], [1, 0, 1, 0, 1, 0, 1]
    assert fed(confidence, hits).at(width) == pytest.approx(by_definition(confidence, hits, width), abs=2e-6)


def test_the_value_is_its_own_width():
    draws = np.random.default_rng(0)
    confidence = draws.uniform(0.3, 1, 3000)
    state = fed(confidence, draws.uniform(size=3000) < confidence**2)
    assert state.at(state.compute()) == pytest.approx(state.compute(), abs=1e-9)
    widths = [state.at(width) for width in (0.001, 0.01, 0.1, 0.5, 1.0)]
    assert all(after <= before + 1e-12 for before, after in itertools.pairwise(widths)), (
        "it does not grow with the width"
    )


@pytest.mark.parametrize("power", [1.0, 1.5, 3.0])
@pytest.mark.parametrize("rows", [300, 5000])
def test_the_authors_package_agrees(power, rows):
    draws = np.random.default_rng(1)
    confidence = draws.beta(4, 1.5, rows)
    hits = draws.uniform(size=rows) < confidence**power
    theirs = relplot.smECE(confidence, hits.astype(float))
    assert fed(confidence, hits).compute() == pytest.approx(theirs, abs=2e-3)


@pytest.mark.parametrize(("confidence", "hit", "error"), [(1.0, False, 1.0), (1.0, True, 0.0), (0.0, True, 1.0)])
def test_the_ends_of_the_scale(confidence, hit, error):
    assert fed([confidence] * 3, [hit] * 3).compute() == pytest.approx(error, abs=1e-6)
