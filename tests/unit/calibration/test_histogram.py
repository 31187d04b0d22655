"""Histogram binning against counting loops, and where edges, empty bins and certain rows land."""

import itertools
import math

import pytest
import torch

from calispan.calibration.histogram import Binned, HistogramBinning, _bins_of
from calispan.core.contracts import Evidence, Given
from calispan.core.errors import InputError, RecipeError
from calispan.core.types import Scores


def draw(rows=160, classes=4, seed=0):
    draws = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(rows, classes, generator=draws, dtype=torch.float64)
    labels = torch.multinomial((logits / 2).softmax(-1), 1, generator=draws)[:, 0]
    return Scores(logits), labels


def rows_of(confidences):
    """Two-class scores whose first class wins with these probabilities."""
    p = torch.tensor(confidences, dtype=torch.float64)
    return Scores(torch.stack([p, 1 - p], dim=-1).log())


def edges_by_loops(values, bins, spacing):
    if spacing == "width":
        return [m / bins for m in range(1, bins)]
    ordered, count = sorted(values), len(values)
    firsts = [min(max(round(m * count / bins), 1), count - 1) for m in range(1, bins)]
    return [(ordered[first - 1] + ordered[first]) / 2 for first in firsts]


def frequency_by_loops(value, values, right, edges):
    """Of the values in the bin of `value`, how many were right; bins are (low, high]."""
    ends = [-math.inf, *edges, math.inf]
    for low, high in itertools.pairwise(ends):
        if low < value <= high:
            hits = [r for v, r in zip(values, right, strict=True) if low < v <= high]
            return sum(hits) / len(hits) if hits else (max(low, 0.0) + min(high, 1.0)) / 2
    raise AssertionError


@pytest.mark.parametrize("spacing", ["width", "mass"])
def test_top_label(spacing):
    scores, labels = draw()
    p = scores.probabilities()
    confidence = p.amax(-1).tolist()
    right = (p.argmax(-1) == labels).tolist()
    edges = edges_by_loops(confidence, 10, spacing)
    recipe = HistogramBinning(bins=10, spacing=spacing)
    unseen, _ = draw(seed=1)
    out = recipe.fit(Given(held_out=(scores, labels)))(unseen).probabilities()
    for new, old in zip(out.tolist(), unseen.probabilities().tolist(), strict=True):
        winner = old.index(max(old))
        theta = min(max(frequency_by_loops(old[winner], confidence, right, edges), 1e-9), 1 - 1e-9)
        for k in range(4):
            expected = theta if k == winner else (1 - theta) * old[k] / (1 - old[winner])
            assert new[k] == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("spacing", ["width", "mass"])
def test_one_vs_rest(spacing):
    scores, labels = draw()
    p = scores.probabilities()
    unseen, _ = draw(seed=1)
    recipe = HistogramBinning(bins=6, spacing=spacing, mode="one-vs-rest")
    out = recipe.fit(Given(held_out=(scores, labels)))(unseen).probabilities()
    for new, old in zip(out.tolist(), unseen.probabilities().tolist(), strict=True):
        parts = []
        for k in range(4):
            values, right = p[:, k].tolist(), (labels == k).tolist()
            parts.append(max(frequency_by_loops(old[k], values, right, edges_by_loops(values, 6, spacing)), 1e-9))
        assert new == pytest.approx([part / sum(parts) for part in parts], abs=1e-10)


def test_more_bins_of_equal_mass_than_rows():
    confidence, labels = [0.6, 0.7, 0.7, 0.9], torch.tensor([1, 0, 1, 0])
    fitted = HistogramBinning(bins=10, spacing="mass").fit(Given(held_out=(rows_of(confidence), labels)))
    assert (fitted.edges.diff() >= 0).all()
    p = rows_of(confidence).probabilities().amax(-1).tolist()
    edges = edges_by_loops(p, 10, "mass")
    expected = [frequency_by_loops(value, p, (labels == 0).tolist(), edges) for value in p]
    found = fitted.frequencies[0, _bins_of(torch.tensor([p], dtype=torch.float64), fitted.edges)[0]]
    assert found.tolist() == pytest.approx(expected, abs=1e-12)
    assert expected == [0.0, 0.5, 0.5, 1.0]


def test_edges_belong_to_the_bin_on_their_left():
    edges = torch.tensor([[0.2, 0.4, 0.6, 0.8]], dtype=torch.float64)
    values = torch.tensor([[0.0, 0.2, 0.8, 1.0]], dtype=torch.float64)
    assert _bins_of(values, edges).tolist() == [[0, 0, 3, 4]]
    fitted = Binned("top-label", edges, torch.tensor([[0.0, 0.0, 0.0, 0.5, 0.0]], dtype=torch.float64))
    for confidence, theta in ((0.8 - 1e-12, 0.5), (0.8 + 1e-12, 0.0)):
        out = fitted(rows_of([confidence])).probabilities()
        assert out[0, 0].item() == pytest.approx(theta, abs=1e-8)


def test_an_empty_bin_answers_with_its_centre():
    fitted = HistogramBinning(bins=10).fit(Given(held_out=(rows_of([0.95, 0.97]), torch.tensor([0, 1]))))
    assert fitted.frequencies[0].tolist() == pytest.approx([0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.5])


def test_a_bin_that_is_never_right_changes_the_prediction():
    fitted = HistogramBinning(bins=2).fit(Given(held_out=(rows_of([0.9, 0.8]), torch.tensor([1, 1]))))
    out = fitted(rows_of([0.7])).logits
    assert out.argmax().item() == 1
    assert torch.isfinite(out).all()
    assert not HistogramBinning().keeps_argmax


def test_a_certain_row_spreads_its_doubt():
    # All the mass of the others has underflowed; their proportions live on in the logits.
    fitted = Binned("top-label", torch.zeros(1, 0).double(), torch.tensor([[0.7]]).double())
    out = fitted(Scores(torch.tensor([[5000.0, 1.0, 1.0]]))).probabilities()
    assert out[0].tolist() == pytest.approx([0.7, 0.15, 0.15], abs=1e-6)


def test_a_row_of_zeros_is_uniform():
    fitted = Binned("one-vs-rest", torch.zeros(3, 0).double(), torch.zeros(3, 1).double())
    assert fitted(Scores(torch.tensor([[3.0, 1.0, 2.0]]))).probabilities()[0].tolist() == pytest.approx([1 / 3] * 3)


def test_needs_and_refusals():
    assert HistogramBinning().needs == Evidence.LABELS
    assert HistogramBinning(fit_on="support").needs == Evidence.SUPPORT
    for bad in ({"bins": 0}, {"spacing": "even"}, {"mode": "both"}):
        with pytest.raises(RecipeError, match="wanted"):
            HistogramBinning(**bad)
    scores, labels = draw()
    fitted = HistogramBinning(mode="one-vs-rest").fit(Given(held_out=(scores, labels)))
    with pytest.raises(InputError, match="fitted for 4 classes"):
        fitted(Scores(torch.zeros(2, 3)))
