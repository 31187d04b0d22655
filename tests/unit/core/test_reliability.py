"""Bins: left-open, right-closed, and exact at their edges; the reliability state against a loop."""

import math
from types import SimpleNamespace

import pytest
import torch

from calispan.core.errors import RecipeError
from calispan.core.reliability import Reliability, bin_of


def where(confidence, bins):
    return bin_of(torch.tensor([confidence], dtype=torch.float64), bins).item()


@pytest.mark.parametrize("bins", range(1, 101))
def test_edges_belong_to_the_bin_on_their_left(bins):
    assert where(0.0, bins) == 0
    assert where(1.0, bins) == bins - 1
    for edge in range(1, bins):
        assert where(edge / bins, bins) == edge - 1
        assert where(math.nextafter(edge / bins, 1), bins) == edge
        assert where(math.nextafter(edge / bins, 0), bins) == edge - 1


def test_the_usual_formula_misplaces_edges():
    assert math.ceil(25 * (7 / 25) - 1) == 7
    assert where(7 / 25, 25) == 6


@pytest.mark.parametrize("bins", [1, 7, 10, 15])
def test_the_state_against_a_loop(bins):
    draws = torch.Generator().manual_seed(0)
    confidence = torch.rand(500, generator=draws, dtype=torch.float64)
    confidence[:bins] = torch.arange(1, bins + 1) / bins
    correct = torch.rand(500, generator=draws) < confidence
    state = Reliability(bins)
    state.update(SimpleNamespace(confidence=confidence, correct=correct))

    counts, hits, sums = [0] * bins, [0] * bins, [0.0] * bins
    for one, hit in zip(confidence.tolist(), correct.tolist(), strict=True):
        home = next(m for m in range(bins) if one <= (m + 1) / bins)
        counts[home] += 1
        hits[home] += hit
        sums[home] += one
    assert state.counts.tolist() == counts
    assert state.hits.tolist() == hits
    torch.testing.assert_close(
        state.confidence, torch.tensor(sums) / torch.tensor(counts), atol=1e-6, rtol=0, check_dtype=False
    )
    error = sum(abs(total - right) for total, right in zip(sums, hits, strict=True)) / 500
    assert state.compute() == pytest.approx(error, abs=1e-11)
    means = state.terms(SimpleNamespace(confidence=confidence, correct=correct)).mean(dim=0)
    assert float(state.of_means(means)) == pytest.approx(error, abs=1e-11)


def test_empty_bins_are_nan_in_a_diagram_and_nothing_in_the_error():
    state = Reliability(4)
    state.update(SimpleNamespace(confidence=torch.tensor([0.6, 0.7]).double(), correct=torch.tensor([True, False])))
    assert state.counts.tolist() == [0, 0, 2, 0]
    assert torch.isnan(state.confidence).tolist() == torch.isnan(state.accuracy).tolist() == [True, True, False, True]
    assert state.gaps.tolist() == pytest.approx([0, 0, 0.15, 0])
    assert state.compute() == pytest.approx(0.15)


def test_bins_are_one_or_more():
    with pytest.raises(RecipeError, match="bins is 0"):
        Reliability(0)
