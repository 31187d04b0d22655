"""Vector scaling: stationary in loops, the l2 hold, and recovery of a known distortion."""

import math

import pytest
import torch

from calispan.calibration.vector import ScaledByClass, VectorScaling
from calispan.core.contracts import Evidence, Given
from calispan.core.errors import InputError, RecipeError
from calispan.core.types import Scores


def draw(rows=150, classes=4, seed=0):
    draws = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, classes, generator=draws, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(-1), 1, generator=draws)[:, 0]
    return logits, labels


def gradient_by_loops(logits, labels, weight, shift, l2):
    by_weight = [2 * l2 * (w - 1) for w in weight]
    by_shift = [2 * l2 * b for b in shift]
    for row, y in zip(logits.tolist(), labels.tolist(), strict=True):
        scaled = [w * value + b for w, value, b in zip(weight, row, shift, strict=True)]
        total = sum(math.exp(value) for value in scaled)
        for k, value in enumerate(scaled):
            off = math.exp(value) / total - (k == y)
            by_weight[k] += off * row[k]
            by_shift[k] += off
    return by_weight + by_shift


@pytest.mark.parametrize("l2", [1.0, 0.01])
def test_it_is_the_stationary_point_of_a_convex_loss(l2):
    logits, labels = draw()
    fitted = VectorScaling(l2=l2).fit(Given(held_out=(Scores(logits), labels)))
    gradient = gradient_by_loops(logits, labels, fitted.weight.tolist(), fitted.shift.tolist(), l2)
    assert max(map(abs, gradient)) < 1e-5 * len(logits)
    out = fitted(Scores(logits)).logits
    torch.testing.assert_close(out, logits * fitted.weight + fitted.shift, rtol=0, atol=1e-12)


def test_it_undoes_a_scale_and_a_shift_by_class():
    logits, labels = draw(rows=20_000)
    weight = torch.tensor([2.0, 1.0, 0.5, 3.0], dtype=torch.float64)
    shift = torch.tensor([1.0, -1.0, 0.0, 2.0], dtype=torch.float64)
    distorted = Scores((logits - shift) / weight)
    out = VectorScaling(l2=1e-3).fit(Given(held_out=(distorted, labels)))(distorted).probabilities()
    assert (out - logits.softmax(-1)).abs().mean() < 0.01
    assert (distorted.probabilities() - logits.softmax(-1)).abs().mean() > 0.05


def test_a_class_without_rows_stays_where_it_was():
    logits, labels = draw()
    logits = torch.cat([logits, torch.full((len(logits), 1), -60.0)], dim=1)  # never likely, never seen
    fitted = VectorScaling().fit(Given(held_out=(Scores(logits), labels)))
    assert fitted.weight[4].item() == pytest.approx(1, abs=1e-6)
    assert fitted.shift[4].item() == pytest.approx(0, abs=1e-6)


def test_without_l2_separable_data_ends_in_finite_numbers():
    logits = torch.tensor([[3.0, 0.0], [0.0, 3.0]]).repeat(10, 1)
    fitted = VectorScaling(l2=0.0).fit(Given(held_out=(Scores(logits), torch.tensor([0, 1]).repeat(10))))
    assert torch.isfinite(torch.cat([fitted.weight, fitted.shift])).all()
    assert (fitted.weight > 1).all()


def test_many_rows_are_summed_in_chunks(monkeypatch):
    logits, labels = draw()
    whole = VectorScaling().fit(Given(held_out=(Scores(logits), labels)))
    monkeypatch.setattr("calispan.calibration.vector._CHUNK", 28)
    parts = VectorScaling().fit(Given(held_out=(Scores(logits), labels)))
    torch.testing.assert_close(parts.weight, whole.weight, rtol=0, atol=1e-5)
    torch.testing.assert_close(parts.shift, whole.shift, rtol=0, atol=1e-5)


def test_needs_and_refusals():
    assert VectorScaling().needs == Evidence.LABELS
    assert VectorScaling(fit_on="support").needs == Evidence.SUPPORT
    with pytest.raises(RecipeError, match="wanted 0 or more"):
        VectorScaling(l2=-1.0)
    fitted = ScaledByClass(torch.ones(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64))
    with pytest.raises(InputError, match="fitted for 4 classes but the scores have 3"):
        fitted(Scores(torch.zeros(2, 3)))
