"""Temperature scaling against a golden-section search of the plain NLL, netcal, and closed forms."""

import math

import pytest
import torch

from calispan.calibration.temperature import HIGHEST, LOWEST, Temperature, ZeroShotTemperature, best_temperature
from calispan.calibration.zero_shot_range import Sals
from calispan.core.contracts import Evidence, Given
from calispan.core.errors import InputError, NeedsError, RecipeError
from calispan.core.types import Scores


def draw(rows=200, classes=4, sharpness=3.0, seed=0):
    draws = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, classes, generator=draws, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(-1), 1, generator=draws)[:, 0]
    return sharpness * logits, labels  # the right temperature is near `sharpness`


def nll_by_loops(logits, labels, temperature):
    total = 0.0
    for row, y in zip(logits.tolist(), labels.tolist(), strict=True):
        top = max(row) / temperature
        total += top + math.log(sum(math.exp(value / temperature - top) for value in row)) - row[y] / temperature
    return total / len(logits)


def golden_section(function, low, high):
    """The minimum of a function with one valley."""
    ratio = (math.sqrt(5) - 1) / 2
    while high - low > 1e-9:
        a, b = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, b) if function(a) < function(b) else (a, high)
    return (low + high) / 2


@pytest.mark.parametrize("sharpness", [0.3, 1.0, 7.0])
def test_it_is_the_minimum_of_the_nll(sharpness):
    logits, labels = draw(sharpness=sharpness)
    found = best_temperature(logits, labels)
    expected = math.exp(golden_section(lambda u: nll_by_loops(logits, labels, math.exp(u)), -4.0, 4.0))
    assert found == pytest.approx(expected, rel=1e-6)
    assert nll_by_loops(logits, labels, found) <= nll_by_loops(logits, labels, expected) + 1e-12
    assert 0.5 * sharpness < found < 2 * sharpness


def test_its_derivative_is_zero_to_ten_digits():
    logits, labels = draw()
    inverse = torch.tensor(1 / best_temperature(logits, labels), dtype=torch.float64, requires_grad=True)
    torch.nn.functional.cross_entropy(logits * inverse, labels).backward()
    assert abs(inverse.grad.item()) < 1e-10


def test_two_rows_in_closed_form():
    # Logit 3 is right three times of four: softmax(3 / T) must be 3/4, so T = 3 / log 3.
    logits = torch.tensor([[3.0, 0.0]]).repeat(4, 1)
    assert best_temperature(logits, torch.tensor([0, 0, 0, 1])) == pytest.approx(3 / math.log(3), rel=1e-9)


@pytest.mark.filterwarnings("ignore")  # the oracle's own
def test_netcal_agrees():
    from netcal.scaling import TemperatureScaling

    logits, labels = draw(rows=2000)
    oracle = TemperatureScaling()
    oracle.fit(logits.softmax(-1).numpy(), labels.numpy(), random_state=0)
    probabilities = oracle.transform(logits.softmax(-1).numpy())
    out = Temperature().fit(Given(held_out=(Scores(logits), labels)))(Scores(logits)).probabilities()
    torch.testing.assert_close(out, torch.as_tensor(probabilities).double(), rtol=0, atol=2e-4)


def test_bounds():
    ramp = torch.arange(4.0).repeat(3, 1)
    assert best_temperature(ramp, torch.tensor([3, 3, 3])) == LOWEST  # separable
    assert best_temperature(1e4 * ramp, torch.tensor([3, 3, 3])) == LOWEST
    assert best_temperature(ramp, torch.tensor([0, 0, 0])) == HIGHEST  # always wrong
    assert best_temperature(-1e4 * ramp, torch.tensor([3, 3, 3])) == HIGHEST
    assert best_temperature(torch.full((3, 4), 25.0), torch.tensor([0, 1, 2])) == 1.0  # flat
    assert best_temperature(torch.randn(3, 1), torch.tensor([0, 0, 0])) == 1.0  # one class


def test_many_rows_are_summed_in_chunks(monkeypatch):
    logits, labels = draw()
    whole = best_temperature(logits, labels)
    monkeypatch.setattr("calispan.calibration.temperature._CHUNK", 28)
    assert best_temperature(logits, labels) == pytest.approx(whole, rel=1e-10)


@pytest.mark.parametrize("recipe", [Temperature, ZeroShotTemperature])
def test_it_learns_from_what_it_names_and_from_nothing_else(recipe):
    logits, labels = draw()
    evidence = (Scores(logits, logits), labels)
    assert recipe().needs == Evidence.LABELS
    assert recipe(fit_on="support").needs == Evidence.SUPPORT
    fitted = recipe().fit(Given(held_out=evidence))
    assert recipe(fit_on="support").fit(Given(support=evidence)) == fitted
    with pytest.raises(NeedsError, match="held_out="):
        recipe().fit(Given(support=evidence))
    with pytest.raises(NeedsError, match="fit_on=support"):
        recipe(fit_on="support").fit(Given(held_out=evidence))


def test_zero_shot_temperature_acts_where_it_is_told():
    zero_shot, labels = draw(sharpness=2.0)
    logits, _ = draw(sharpness=5.0, seed=1)
    views = Scores(logits[:, None], zero_shot[:, None])
    scores = Scores(logits, zero_shot, views)
    given = Given(held_out=(scores, labels))
    t = best_temperature(zero_shot, labels)
    for target, on_logits, on_reference in (("logits", t, 1), ("zero-shot", 1, t), ("both", t, t)):
        out = ZeroShotTemperature(target).fit(given)(scores)
        for now, before in ((out, scores), (out.views, views)):
            torch.testing.assert_close(now.logits, before.logits / on_logits, rtol=1e-12, atol=0)
            torch.testing.assert_close(now.zero_shot, before.zero_shot / on_reference, rtol=1e-12, atol=0)
    # Before SaLS, the reference's range is R0 / T.
    anchored = Sals().fit(Given())(ZeroShotTemperature("zero-shot").fit(given)(scores)).logits
    expected = (zero_shot.amax(-1) - zero_shot.amin(-1)) / t
    torch.testing.assert_close(anchored.amax(-1) - anchored.amin(-1), expected, rtol=1e-12, atol=1e-12)


def test_it_works_without_zero_shot_logits():
    logits, labels = draw()
    out = Temperature().fit(Given(held_out=(Scores(logits), labels)))(Scores(logits))
    assert not out.has_zero_shot


def test_bad_parameters_and_evidence_are_refused():
    with pytest.raises(RecipeError, match="target is 'reference'"):
        ZeroShotTemperature(target="reference")
    for labels in (torch.tensor([0, 1]), torch.tensor([0, 1, 4]), torch.tensor([0, 1, -1])):
        with pytest.raises(InputError, match="'temperature' was given"):
            Temperature().fit(Given(held_out=(Scores(torch.randn(3, 4)), labels)))
    with pytest.raises(InputError, match="one row at least"):
        Temperature().fit(Given(held_out=(Scores(torch.zeros(0, 4)), torch.zeros(0, dtype=torch.long))))
