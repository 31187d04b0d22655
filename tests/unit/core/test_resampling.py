"""Bootstrap and paired test: every draw against a plain evaluation of the drawn rows, and what the numbers promise."""

import math

import numpy as np
import pytest
import torch

from calispan.core.errors import InputError, NeedsError
from calispan.core.evaluation import evaluate
from calispan.core.registry import metrics
from calispan.core.resampling import Comparison, OfMeans, _Measured, compare, confidence_interval
from calispan.core.types import Scores
from calispan.testing.metrics import drawn_rows

ROWS = 60


def pair(rows=ROWS, factor=1.6):
    """Two calibrations of the same calibrated rows: as they are, and overconfident."""
    scores, labels = drawn_rows(rows=rows, classes=4)
    return scores, Scores(20 + factor * (scores.logits - 20), scores.zero_shot), labels


@pytest.mark.parametrize("name", metrics.names())
def test_draws_and_swaps_are_those_of_a_plain_evaluation(name):
    first, second, labels = pair()
    one, two = _Measured(name, first, labels), _Measured(name, second, labels)
    draws = np.random.default_rng(0)
    index = draws.integers(ROWS, size=(3, ROWS))
    wanted = [
        evaluate(first.rows(torch.tensor(draw)), labels[torch.tensor(draw)], metrics=name)[name] for draw in index
    ]
    np.testing.assert_allclose(one.of_draws(index), wanted, rtol=1e-9, atol=1e-9)
    swapped = draws.uniform(size=(3, ROWS)) < 0.5
    wanted = []
    for swap in torch.from_numpy(swapped)[..., None]:
        mixed = Scores(torch.where(swap, second.logits, first.logits), first.zero_shot)
        wanted.append(evaluate(mixed, labels, metrics=name)[name])
    np.testing.assert_allclose(one.with_swaps(two, swapped), wanted, rtol=1e-9, atol=1e-9)


def test_binned_and_averaged_metrics_take_the_fast_way():
    fast = {name for name in metrics.names() if isinstance(metrics.build(name).start(), OfMeans)}
    assert {"accuracy", "ece-15", "mce", "nll", "brier", "range-inflation", "overconfidence"} <= fast
    assert not fast & {"auroc", "aurc", "ace", "range-p95"}


def test_the_interval_of_a_share_is_the_binomial_one():
    scores, _, labels = pair(rows=2000)
    found = confidence_interval(scores, labels, "accuracy", resamples=4000)
    assert found.value == evaluate(scores, labels, metrics="accuracy")["accuracy"]
    half = 1.96 * math.sqrt(found.value * (1 - found.value) / 2000)
    assert found.low == pytest.approx(found.value - half, abs=0.1 * half)
    assert found.high == pytest.approx(found.value + half, abs=0.1 * half)
    narrow = confidence_interval(scores, labels, "accuracy", resamples=4000, level=0.5)
    assert narrow.high - narrow.low == pytest.approx(2 * half * 0.6745 / 1.96, rel=0.1)


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    """Confidence c in (0.5, 1) of two classes, right with chance c - 0.1 (c - 0.5): the true error is 0.025."""
    draws = np.random.default_rng(0)
    held = 0
    for seed in range(60):
        confidence = draws.uniform(0.5, 1, 1000)
        hit = draws.uniform(size=1000) < confidence - 0.1 * (confidence - 0.5)
        logits = torch.from_numpy(np.log(np.stack([confidence, 1 - confidence], axis=1)))
        found = confidence_interval(Scores(logits), (~hit).astype(int), "ece-15", resamples=200, seed=seed)
        held += found.low <= 0.025 <= found.high
    assert held >= 45, f"95 percent intervals held the truth in {held} of 60 cases"


@pytest.mark.parametrize("metric", ["ece-15", "auroc"])
def test_the_seed_alone_decides(metric):
    first, second, labels = pair()
    once = compare(first, second, labels, metric, resamples=50, seed=1)
    assert compare(first, second, labels, metric, resamples=50, seed=1) == once
    assert compare(first, second, labels, metric, resamples=50, seed=2) != once
    interval = confidence_interval(first, labels, metric, resamples=50, seed=1)
    assert confidence_interval(first, labels, metric, resamples=50, seed=1) == interval


def test_a_difference_is_found_and_has_a_direction():
    first, second, labels = pair(rows=1500)
    worse = compare(first, second, labels, "ece-15", resamples=300)
    assert worse.difference == worse.second - worse.first > 0
    assert 0 < worse.low < worse.high
    assert worse.p_value < 0.02
    better = compare(second, first, labels, "ece-15", resamples=300)
    assert (better.first, better.second, better.difference) == (worse.second, worse.first, -worse.difference)
    assert better.high < 0
    assert better.p_value < 0.02


def test_equal_scores_do_not_differ():
    first, _, labels = pair()
    value = evaluate(first, labels, metrics="nll")["nll"]
    assert compare(first, first, labels, "nll", resamples=50) == Comparison(value, value, 0.0, 0.0, 0.0, 1.0)


@pytest.mark.parametrize("metric", ["ece-10", "mce", "auroc"])
def test_few_rows_are_swapped_in_every_way(metric):
    first, second, labels = pair(rows=7)
    found = compare(first, second, labels, metric, resamples=1000).p_value
    differences = []
    for number in range(2**7):
        swap = torch.tensor([number >> place & 1 for place in range(7)], dtype=torch.bool)[:, None]
        one = Scores(torch.where(swap, second.logits, first.logits))
        two = Scores(torch.where(swap, first.logits, second.logits))
        values = [evaluate(scores, labels, metrics=metric)[metric] for scores in (one, two)]
        differences.append(values[1] - values[0])
    beyond = [np.mean([sign * d >= sign * differences[0] - 1e-9 for d in differences]) for sign in (1, -1)]
    assert found == pytest.approx(min(1.0, 2 * min(beyond)))


def test_p_values_of_exchangeable_scores_are_even():
    """Two noisy copies of the same scores: no copy is better, whatever the draw."""
    draws = torch.Generator().manual_seed(0)
    scores, labels = drawn_rows(rows=300, classes=3)
    found = []
    for seed in range(80):
        noisy = [scores.logits + torch.randn(300, 3, generator=draws, dtype=torch.float64) for _ in range(2)]
        found.append(compare(Scores(noisy[0]), Scores(noisy[1]), labels, "ece-15", resamples=99, seed=seed).p_value)
    assert np.mean(np.array(found) < 0.1) < 0.25
    assert 0.35 < np.mean(found) < 0.65


def test_rows_in_pairs_tell_more_than_two_intervals():
    """The same small shift in every row is lost in the spread of rows, but not in their differences."""
    scores, labels = drawn_rows(rows=400, classes=4)
    sharper = Scores(20 + 1.3 * (scores.logits - 20))
    found = compare(scores, sharper, labels, "mean-confidence", resamples=200)
    alone = confidence_interval(scores, labels, "mean-confidence", resamples=200)
    assert found.high - found.low < (alone.high - alone.low) / 2


def test_metrics_without_labels_need_none():
    scores, _, _ = pair()
    assert (
        confidence_interval(scores, None, "range-inflation", resamples=20).value == evaluate(scores)["range-inflation"]
    )
    with pytest.raises(NeedsError, match="'ece-15' needs labels"):
        confidence_interval(scores, None)


def test_bad_requests_are_refused_in_a_sentence():
    first, second, labels = pair()
    with pytest.raises(InputError, match="wanted two scores of the same rows"):
        compare(first, second.rows(slice(0, 9)), labels)
    with pytest.raises(InputError, match="1 rows came to resample"):
        confidence_interval(first.rows(slice(0, 1)), labels[:1])
    with pytest.raises(InputError, match="level is 95"):
        confidence_interval(first, labels, level=95)
    with pytest.raises(InputError, match="resamples is 0"):
        confidence_interval(first, labels, resamples=0)
