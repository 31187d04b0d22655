"""Proper scores, norms, ranges and range inflation against slow loops."""

import math

import numpy as np
import pytest
import torch

from calispan.core.errors import RecipeError
from calispan.core.evaluation import evaluate
from calispan.core.registry import recipe
from calispan.core.types import Scores


def drawn(rows=300, classes=5):
    draws = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(rows, classes, generator=draws, dtype=torch.float64)
    zero_shot = torch.randn(rows, classes, generator=draws, dtype=torch.float64)
    return Scores(logits, zero_shot), torch.randint(classes, (rows,), generator=draws)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-6)])
def test_proper_scores_against_a_loop(dtype, tolerance):
    scores, labels = drawn()
    found = evaluate(scores.logits.to(dtype), labels, metrics=["nll", "brier", "brier-top-label"])
    nll = brier = top = 0.0
    for row, label in zip(scores.logits.tolist(), labels.tolist(), strict=True):
        total = math.fsum(map(math.exp, row))
        p = [math.exp(value) / total for value in row]
        nll -= math.log(p[label]) / 300
        brier += math.fsum((q - (k == label)) ** 2 for k, q in enumerate(p)) / 300
        top += (max(p) - (p.index(max(p)) == label)) ** 2 / 300
    assert found["nll"] == pytest.approx(nll, abs=tolerance)
    assert found["brier"] == pytest.approx(brier, abs=tolerance)
    assert found["brier-top-label"] == pytest.approx(top, abs=tolerance)


def test_a_certain_miss_costs_its_margin_and_a_brier_of_two():
    logits = torch.tensor([[1e4, -1e4, 0.0]])
    found = evaluate(logits, [1], metrics=["nll", "brier", "brier-top-label"])
    assert found == {"nll": 2e4, "brier": 2.0, "brier-top-label": 1.0}


def test_norms_and_ranges_against_a_loop():
    scores, _ = drawn()
    rows = scores.logits.tolist()
    norms = [math.sqrt(math.fsum(value * value for value in row)) for row in rows]
    spans = [max(row) - min(row) for row in rows]
    zero_spans = [max(row) - min(row) for row in scores.zero_shot.tolist()]
    wanted = {
        "norm-mean": np.mean(norms),
        "range-mean": np.mean(spans),
        "range-inflation": sum(spans) / sum(zero_spans),
    }
    for kind, numbers in (("norm", norms), ("range", spans)):
        wanted |= {f"{kind}-p{percent:02d}": np.percentile(numbers, percent) for percent in (5, 50, 95)}
    wanted["spread-quantile:of=norm,quantile=0.2"] = np.quantile(norms, 0.2)
    found = evaluate(scores, metrics=list(wanted))
    assert found == {name: pytest.approx(number, abs=1e-10) for name, number in wanted.items()}


@pytest.mark.parametrize("factor", [0.25, 1.0, 3.0])
def test_inflation_is_the_factor_of_the_logits(factor):
    scores, _ = drawn()
    scaled = Scores(scores.zero_shot * factor + 4, scores.zero_shot)
    assert evaluate(scaled)["range-inflation"] == pytest.approx(factor, abs=1e-10)


def test_one_flat_zero_shot_row_does_not_rule_the_inflation():
    scores, _ = drawn()
    before = evaluate(scores)["range-inflation"]
    scores.zero_shot[0] = 5.0
    assert evaluate(scores)["range-inflation"] == pytest.approx(before, rel=0.01)


def test_inflation_of_flat_zero_shot_rows():
    flat, steep = torch.ones(3, 4), torch.arange(12.0).view(3, 4)
    assert evaluate(Scores(flat, flat))["range-inflation"] == 1.0
    assert evaluate(Scores(steep, flat))["range-inflation"] == math.inf
    assert evaluate(Scores(flat, steep))["range-inflation"] == 0.0


def test_calibrations_are_seen_in_the_adapted_range_alone():
    scores, _ = drawn()
    before = evaluate(scores)["range-inflation"]
    both = [lambda given: Scores(given.logits * 2, given.zero_shot * 100)]
    assert evaluate(scores, after=both)["range-inflation"] == pytest.approx(2 * before, abs=1e-10)


@pytest.mark.parametrize("bad", ["spread-quantile:quantile=1.5", "spread-quantile:of=height"])
def test_parameters_out_of_range_are_refused(bad):
    with pytest.raises(RecipeError):
        recipe(bad)
