"""Isotonic regression against scikit-learn's in every mode."""

import numpy as np
import pytest
import torch
from sklearn.isotonic import IsotonicRegression

from calispan.calibration.isotonic import Isotonic
from calispan.core.contracts import Evidence, Given
from calispan.core.errors import InputError, RecipeError
from calispan.core.types import Scores


def draw(rows=300, classes=4, seed=0):
    draws = torch.Generator().manual_seed(seed)
    logits = (6 * torch.randn(rows, classes, generator=draws, dtype=torch.float64)).round() / 2  # many equal values
    labels = torch.multinomial((logits / 2).softmax(-1), 1, generator=draws)[:, 0]
    return Scores(logits), labels


def oracle(values, right, queries):
    fitted = IsotonicRegression(out_of_bounds="clip").fit(np.ravel(values), np.ravel(right).astype(float))
    return fitted.predict(np.ravel(queries)).reshape(queries.shape)


@pytest.fixture
def sets():
    scores, labels = draw()
    unseen, _ = draw(seed=1)
    return scores, labels, unseen


def test_pooled(sets):
    scores, labels, unseen = sets
    p, q = scores.probabilities().numpy(), unseen.probabilities().numpy()
    mapped = oracle(p, np.eye(4)[labels.numpy()], q) + 1e-9 * q
    out = Isotonic().fit(Given(held_out=(scores, labels)))(unseen).probabilities().numpy()
    np.testing.assert_allclose(out, mapped / mapped.sum(-1, keepdims=True), atol=1e-10)


def test_top_label(sets):
    scores, labels, unseen = sets
    p, q = scores.probabilities().numpy(), unseen.probabilities().numpy()
    theta = oracle(p.max(-1), p.argmax(-1) == labels.numpy(), q.max(-1)).clip(1e-9, 1 - 1e-9)
    out = Isotonic("top-label").fit(Given(held_out=(scores, labels)))(unseen).probabilities().numpy()
    winner = unseen.logits.argmax(-1).numpy()
    rows = np.arange(len(q))
    np.testing.assert_allclose(out[rows, winner], theta, atol=1e-10)
    rest = q.copy()
    rest[rows, winner] = 0
    rest *= ((1 - theta) / rest.sum(-1))[:, None]
    rest[rows, winner] = theta
    np.testing.assert_allclose(out, rest, atol=1e-10)


def test_one_vs_rest(sets):
    scores, labels, unseen = sets
    p, q = scores.probabilities().numpy(), unseen.probabilities().numpy()
    mapped = np.stack([oracle(p[:, k], labels.numpy() == k, q[:, k]) for k in range(4)], axis=-1).clip(1e-9)
    out = Isotonic("one-vs-rest").fit(Given(held_out=(scores, labels)))(unseen).probabilities().numpy()
    np.testing.assert_allclose(out, mapped / mapped.sum(-1, keepdims=True), atol=1e-10)


def test_pooled_keeps_the_order_of_every_row(sets):
    scores, labels, unseen = sets
    out = Isotonic().fit(Given(held_out=(scores, labels)))(unseen).logits
    order = unseen.logits.argsort(dim=-1, stable=True)
    assert (out.gather(-1, order).diff(dim=-1) >= 0).all()
    assert Isotonic().keeps_argmax
    assert not Isotonic("top-label").keeps_argmax


def test_values_outside_the_fitted_range_are_clipped():
    held_out = Scores(torch.tensor([[0.6, 0.4], [0.7, 0.3]]).log().repeat(2, 1))
    fitted = Isotonic("top-label").fit(Given(held_out=(held_out, torch.tensor([0, 0, 1, 0]))))
    out = fitted(Scores(torch.tensor([[0.55, 0.45], [0.65, 0.35], [0.99, 0.01]]).double().log())).probabilities()
    assert out[:, 0].tolist() == pytest.approx([0.5, 0.75, 1.0], abs=1e-6)


def test_one_row_is_enough_to_be_defined():
    fitted = Isotonic("one-vs-rest").fit(Given(held_out=(Scores(torch.tensor([[2.0, 1.0, 0.0]])), torch.tensor([0]))))
    out = fitted(Scores(torch.tensor([[0.0, 5.0, 1.0]]))).probabilities()
    assert out[0].tolist() == pytest.approx([1, 0, 0], abs=1e-8)


def test_needs_and_refusals(sets):
    scores, labels, _ = sets
    assert Isotonic().needs == Evidence.LABELS
    assert Isotonic(fit_on="support").needs == Evidence.SUPPORT
    with pytest.raises(RecipeError, match="mode is 'multi'"):
        Isotonic(mode="multi")
    fitted = Isotonic("one-vs-rest").fit(Given(held_out=(scores, labels)))
    with pytest.raises(InputError, match="fitted for 4 classes"):
        fitted(Scores(torch.zeros(2, 3)))
