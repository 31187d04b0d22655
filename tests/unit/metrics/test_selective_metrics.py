"""AUROC, AURC, coverage and accuracy there, against scikit-learn and slow loops over every order of tied rows."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from calispan.core.errors import RecipeError
from calispan.core.evaluation import evaluate
from calispan.core.kept_rows import KeptRows, Ranking
from calispan.core.registry import recipe
from calispan.core.rows import Rows
from calispan.core.types import Scores


def value(name, confidence, hits, **parameters):
    state = recipe(name, **parameters).start()
    assert isinstance(state, KeptRows)
    return state.of(Ranking.of(torch.tensor(confidence, dtype=torch.float64), torch.tensor(hits, dtype=torch.bool)))


def drawn(rows, digits, seed):
    draws = np.random.default_rng(seed)
    confidence = draws.uniform(0.2, 1, rows).round(digits)
    return confidence.tolist(), (draws.uniform(size=rows) < confidence).tolist()


@pytest.mark.parametrize("digits", [1, 2, 15])
@pytest.mark.parametrize("seed", range(3))
def test_auroc_is_scikit_learns(digits, seed):
    confidence, hits = drawn(400, digits, seed)
    assert value("auroc", confidence, hits) == pytest.approx(roc_auc_score(hits, confidence), abs=1e-12)


def test_auroc_of_one_kind_of_rows_is_chance():
    assert value("auroc", [0.1, 0.9], [1, 1]) == value("auroc", [0.1, 0.9], [0, 0]) == 0.5


def risks(hits):
    """Error rate of the first k rows, for every k."""
    misses = list(itertools.accumulate(1 - hit for hit in hits))
    return [Fraction(miss, k) for k, miss in enumerate(misses, start=1)]


def orders(confidence, hits):
    """Every order of the rows that falls in confidence."""
    places = range(len(hits))
    for order in itertools.permutations(places):
        if all(confidence[a] >= confidence[b] for a, b in itertools.pairwise(order)):
            yield [hits[place] for place in order]


TIES = [
    ([0.9, 0.8, 0.7, 0.6], [1, 0, 1, 0]),
    ([0.9, 0.9, 0.9, 0.5, 0.5, 0.1], [1, 0, 0, 1, 0, 1]),
    ([0.5] * 6, [1, 0, 0, 1, 0, 0]),
    ([1.0], [0]),
]


@pytest.mark.parametrize(("confidence", "hits"), TIES)
def test_aurc_is_the_mean_over_orders(confidence, hits):
    every = [sum(risks(order)) / len(hits) for order in orders(confidence, hits)]
    assert value("aurc", confidence, hits) == pytest.approx(float(sum(every) / len(every)), abs=1e-12)


def test_aurc_against_a_loop():
    confidence, hits = drawn(500, 15, 0)
    ordered = [hit for _, hit in sorted(zip(confidence, hits, strict=True), reverse=True)]
    assert value("aurc", confidence, hits) == pytest.approx(float(sum(risks(ordered)) / 500), abs=1e-12)


@pytest.mark.parametrize(("confidence", "hits"), TIES)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6])
def test_accuracy_of_the_most_confident_rows_is_the_mean_over_orders(confidence, hits, rows):
    if rows <= len(hits):
        every = [Fraction(sum(order[:rows]), rows) for order in orders(confidence, hits)]
        found = value("accuracy-at", confidence, hits, coverage=rows / len(hits))
        assert found == pytest.approx(float(sum(every) / len(every)), abs=1e-12)


def test_full_coverage_is_accuracy_and_a_part_of_a_row_counts_in_part():
    assert value("accuracy-at", [0.9, 0.2, 0.4], [1, 0, 1], coverage=1.0) == pytest.approx(2 / 3)
    assert value("accuracy-at", [0.9, 0.2], [1, 0], coverage=0.75) == pytest.approx(1 / 1.5)


def test_coverage_counts_rows_that_reach_the_threshold():
    logits = torch.tensor([[0.6, 0.4], [0.75, 0.25], [0.5, 0.5], [0.25, 0.75]], dtype=torch.float64).log()
    found = evaluate(logits, metrics=["coverage-at:threshold=0.5", "coverage-at:threshold=0.74", "coverage-at"])
    assert list(found.values()) == [1.0, 0.5, 0.0]


@pytest.mark.parametrize(("name", "bad"), [("coverage-at:threshold=1.5", "1.5"), ("accuracy-at:coverage=0", "0")])
def test_parameters_out_of_range_are_refused(name, bad):
    with pytest.raises(RecipeError, match=bad):
        recipe(name)


def test_kept_rows_cost_what_they_say():
    for dtype, size in ((torch.float32, 5), (torch.float64, 9)):
        state = recipe("aurc").start()
        state.update(Rows(Scores(torch.randn(100, 3, dtype=dtype)), torch.zeros(100, dtype=torch.long)))
        held = [*state._confidence, *state._correct]
        assert sum(part.numel() * part.element_size() for part in held) == 100 * size
