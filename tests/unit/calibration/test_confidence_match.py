"""Confidence matching against bisection in loops, the published example, and every row that has no answer."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calispan.calibration import confidence_match
from calispan.calibration.confidence_match import ConfidenceMatch, matching_inverse_temperature
from calispan.core.contracts import Given
from calispan.core.types import Scores


def confidence(row, inverse):
    top = max(row)
    return 1 / sum(math.exp((value - top) * inverse) for value in row)


def bisect(row, reference):
    """The inverse temperature within [exp(-5), exp(5)] that comes nearest to the reference's confidence."""
    target = confidence(reference, 1.0)
    low, high = -5.0, 5.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if confidence(row, math.exp(middle)) < target else (low, middle)
    return math.exp((low + high) / 2)


def test_the_example_of_two():
    logits, zero_shot = torch.tensor([[4.0, 2.0, 0.0]]).double(), torch.tensor([[2.0, 1.0, 0.0]]).double()
    assert 1 / matching_inverse_temperature(logits, zero_shot).item() == pytest.approx(2, abs=1e-12)
    out = ConfidenceMatch().fit(Given())(Scores(logits, zero_shot)).probabilities()
    assert logits.softmax(-1).amax().item() == pytest.approx(0.86681, abs=1e-5)
    assert out.amax().item() == pytest.approx(0.66524, abs=1e-5)


@given(
    seed=st.integers(0, 10**6),
    classes=st.integers(2, 60),
    width=st.floats(0.05, 40),
    reference=st.floats(0.05, 40),
)
@settings(max_examples=120, deadline=None)
def test_it_agrees_with_bisection(seed, classes, width, reference):
    draws = torch.Generator().manual_seed(seed)
    logits = width * torch.randn(4, classes, generator=draws, dtype=torch.float64)
    zero_shot = reference * torch.randn(4, classes, generator=draws, dtype=torch.float64)
    found = matching_inverse_temperature(logits, zero_shot)
    for row, other, beta in zip(logits.tolist(), zero_shot.tolist(), found.tolist(), strict=True):
        assert confidence(row, beta) == pytest.approx(confidence(row, bisect(row, other)), abs=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_confidence_is_exact(dtype):
    draws = torch.Generator().manual_seed(0)
    logits = (25 + 5 * torch.randn(500, 200, generator=draws)).to(dtype)
    zero_shot = (22 + 2 * torch.randn(500, 200, generator=draws)).to(dtype)
    out = ConfidenceMatch().fit(Given())(Scores(logits, zero_shot)).logits
    wanted = zero_shot.double().softmax(-1).amax(-1)
    digits = 1e-6 if dtype == torch.float32 else 1e-10
    torch.testing.assert_close(out.double().softmax(-1).amax(-1), wanted, rtol=0, atol=digits)
    assert torch.equal(out.argmax(-1), logits.argmax(-1))


def test_the_winner_stays_where_the_smallest_floats_round_to_zero():
    step = torch.finfo(torch.float32).tiny * torch.finfo(torch.float32).eps
    scores = Scores(torch.tensor([[0.0, step, 0.0]]), torch.zeros(1, 3))
    assert ConfidenceMatch().fit(Given())(scores).logits.argmax().item() == 1


def test_where_confidence_rounds_to_one_the_odds_still_agree():
    logits = torch.tensor([[30.0, 10.0, 0.0]]).double()
    zero_shot = torch.tensor([[90.0, 0.0, 10.0]]).double()  # c = 1 - 2e-35
    beta = matching_inverse_temperature(logits, zero_shot).item()
    odds = math.log(math.exp(-20 * beta) + math.exp(-30 * beta))
    assert odds == pytest.approx(math.log(math.exp(-80) + math.exp(-90)), rel=1e-10)


@pytest.mark.parametrize(
    ("row", "reference", "tau"),
    [
        ([25.0, 25.0, 25.0], [2.0, 1.0, 0.0], 1.0),  # a flat row has no temperature: it stays
        ([0.0, 0.0, 0.0], [0.0, 0.0, 0.0], 1.0),
        ([3.0, 1.0, 0.0], [5.0, 5.0, 5.0], math.exp(5)),  # a flat reference asks for an infinite one
        ([1e4, 1e4, -1e4], [5.0, 5.0, 5.0], math.exp(5)),
        ([1e7, 1e7, -1e7], [5.0, 5.0, 5.0], math.exp(5)),  # every weight underflows on the way
        ([3.0, 3.0, 0.0], [9.0, 1.0, 0.0], math.exp(-5)),  # two winners never exceed a half
        ([1e-3, 0.0, 0.0], [100.0, 1.0, 0.0], math.exp(-5)),
        ([3.0], [8.0], 1.0),  # one class
    ],
)
def test_rows_without_an_answer(row, reference, tau):
    logits, zero_shot = torch.tensor([row]).double(), torch.tensor([reference]).double()
    assert 1 / matching_inverse_temperature(logits, zero_shot).item() == pytest.approx(tau, rel=1e-12)


def test_two_winners_below_a_half_have_an_answer():
    logits, zero_shot = torch.tensor([[3.0, 3.0, 0.0]]).double(), torch.tensor([[0.4, 0.2, 0.0]]).double()
    out = ConfidenceMatch().fit(Given())(Scores(logits, zero_shot)).probabilities()
    assert out[0, 0].item() == pytest.approx(zero_shot.softmax(-1).amax().item(), abs=1e-12)
    assert out[0, 0] == out[0, 1]


def test_few_steps_are_walked(monkeypatch):
    draws = torch.Generator().manual_seed(4)
    logits, zero_shot = 25 + 6 * torch.randn(2, 300, 100, generator=draws, dtype=torch.float64)
    calls = []
    step = confidence_match._log_odds
    monkeypatch.setattr(confidence_match, "_log_odds", lambda *a: calls.append(1) or step(*a))
    matching_inverse_temperature(logits, zero_shot)
    assert len(calls) <= 12


def test_offsets_do_not_matter():
    draws = torch.Generator().manual_seed(1)
    logits, zero_shot = torch.randn(2, 20, 6, generator=draws, dtype=torch.float64)
    here = matching_inverse_temperature(logits, zero_shot)
    there = matching_inverse_temperature(logits + 40, zero_shot - 70)
    torch.testing.assert_close(here, there, rtol=1e-9, atol=0)


def test_rows_do_not_wait_for_each_other():
    draws = torch.Generator().manual_seed(2)
    logits, zero_shot = 5 * torch.randn(2, 50, 9, generator=draws, dtype=torch.float64)
    together = matching_inverse_temperature(logits, zero_shot)
    alone = [matching_inverse_temperature(logits[i : i + 1], zero_shot[i : i + 1]) for i in range(50)]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-12, atol=0)


def test_every_view_is_matched_to_its_own():
    draws = torch.Generator().manual_seed(3)
    logits, zero_shot = 3 * torch.randn(2, 12, 6, generator=draws, dtype=torch.float64)
    views = Scores(logits.view(4, 3, 6), zero_shot.view(4, 3, 6))
    out = ConfidenceMatch().fit(Given())(Scores(views.logits[:, 0], views.zero_shot[:, 0], views))
    wanted = zero_shot.softmax(-1).amax(-1)
    torch.testing.assert_close(out.views.probabilities().amax(-1).flatten(), wanted, rtol=0, atol=1e-10)
    torch.testing.assert_close(out.probabilities().amax(-1), wanted.view(4, 3)[:, 0], rtol=0, atol=1e-10)
