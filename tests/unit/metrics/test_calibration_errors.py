"""Binned calibration errors against slow loops, and beside two libraries: equal on random rows, not on edges."""

import math

import numpy as np
import pytest
import torch
from netcal import metrics as netcal_metrics
from torchmetrics.functional.classification import multiclass_calibration_error

from calispan.core.evaluation import evaluate
from calispan.core.types import Scores


def drawn(rows=400, classes=6, seed=0):
    draws = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, classes, generator=draws, dtype=torch.float64)
    # Calibrated rows: gaps of either sign, so that a row in the wrong bin shows.
    return logits, torch.multinomial(logits.softmax(dim=1), 1, generator=draws)[:, 0]


def probabilities_of(row):
    total = math.fsum(math.exp(value - max(row)) for value in row)
    return [math.exp(value - max(row)) / total for value in row]


def top_label(logits, labels):
    """Confidence and hit of every row."""
    rows = [probabilities_of(row) for row in logits.tolist()]
    return [(max(p), p.index(max(p)) == label) for p, label in zip(rows, labels.tolist(), strict=True)]


def bin_index(confidence, bins):
    return next(m for m in range(bins) if confidence <= (m + 1) / bins)


def gaps(pairs, bins):
    """(rows, summed confidence minus hits) of every bin."""
    out = [[0, 0.0] for _ in range(bins)]
    for confidence, hit in pairs:
        cell = out[bin_index(confidence, bins)]
        cell[0] += 1
        cell[1] += confidence - hit
    return out


@pytest.mark.parametrize("bins", [1, 10, 15, 20])
def test_ece_and_mce_against_a_loop(bins):
    logits, labels = drawn()
    found = evaluate(logits, labels, metrics=[f"ece:bins={bins}", f"mce:bins={bins}"])
    cells = gaps(top_label(logits, labels), bins)
    assert found[f"ece:bins={bins}"] == pytest.approx(sum(abs(gap) for _, gap in cells) / 400, abs=1e-10)
    largest = max(abs(gap) / count for count, gap in cells if count)
    assert found[f"mce:bins={bins}"] == pytest.approx(largest, abs=1e-10)


@pytest.mark.parametrize("bins", [10, 15])
def test_classwise_ece_against_a_loop(bins):
    logits, labels = drawn(rows=300, classes=4)
    rows = [probabilities_of(row) for row in logits.tolist()]
    total = 0.0
    for k in range(4):
        pairs = [(p[k], label == k) for p, label in zip(rows, labels.tolist(), strict=True)]
        total += sum(abs(gap) for _, gap in gaps(pairs, bins)) / 300
    name = f"classwise-ece:bins={bins}"
    assert evaluate(logits, labels, metrics=name)[name] == pytest.approx(total / 4, abs=1e-10)


def test_named_variants():
    logits, labels = drawn()
    found = evaluate(logits, labels, metrics=["ece", "ece-10", "ece-15", "ece-20", "ece:bins=10", "ece:bins=20"])
    assert found["ece"] == found["ece-15"]
    assert found["ece-10"] == found["ece:bins=10"]
    assert found["ece-20"] == found["ece:bins=20"]
    assert len(set(found.values())) == 3


def others(logits, labels, bins, norm="l1"):
    probabilities = logits.softmax(dim=1)
    theirs = multiclass_calibration_error(probabilities, labels, num_classes=logits.shape[1], n_bins=bins, norm=norm)
    return float(theirs), float(netcal_metrics.ECE(bins).measure(probabilities.numpy(), labels.numpy()))


@pytest.mark.parametrize(("rows", "classes", "bins"), [(2000, 5, 15), (3000, 10, 10), (1000, 3, 20)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_random_rows_agree_with_torchmetrics_and_netcal(rows, classes, bins, dtype):
    logits, labels = drawn(rows, classes, seed=bins)
    logits = logits.to(dtype)
    ours = evaluate(logits, labels, metrics=[f"ece:bins={bins}", f"mce:bins={bins}"])
    torchmetrics, netcal = others(logits, labels, bins)
    assert ours[f"ece:bins={bins}"] == pytest.approx(torchmetrics, abs=1e-6)
    assert ours[f"ece:bins={bins}"] == pytest.approx(netcal, abs=1e-6)
    worst, _ = others(logits, labels, bins, norm="max")
    assert ours[f"mce:bins={bins}"] == pytest.approx(worst, abs=1e-6)


def log(probabilities):
    return torch.tensor(probabilities, dtype=torch.float64).clamp_min(1e-300).log()


def test_full_confidence_shares_the_last_bin():
    """Two certain misses and two hits at 0.95, all of them in (0.9, 1]: mean confidence 0.975, accuracy a half."""
    logits, labels = log([[1, 0, 0], [1, 0, 0], [0.95, 0.03, 0.02], [0.95, 0.03, 0.02]]), torch.tensor([1, 2, 0, 0])
    assert evaluate(logits, labels, metrics="ece-10")["ece-10"] == pytest.approx(0.475, abs=1e-10)
    torchmetrics, _ = others(logits, labels, 10)
    assert torchmetrics == pytest.approx(0.525, abs=1e-6), "it has a bin of its own for confidence 1"


def test_an_inner_edge_belongs_to_the_bin_below():
    """0.5 lies in (0.4, 0.5] beside 0.45; the libraries' bins are closed on the left and put it beside 0.55."""
    rows = [[0.5, 0.3, 0.2], [0.5, 0.3, 0.2], [0.55, 0.25, 0.2], [0.45, 0.35, 0.2]]
    logits, labels = log(rows), torch.tensor([0, 0, 2, 1])
    wanted = (abs(0.45 + 0.5 + 0.5 - 2) + abs(0.55 - 0)) / 4
    assert evaluate(logits, labels, metrics="ece-10")["ece-10"] == pytest.approx(wanted, abs=1e-10)
    left_closed = (abs(0.45 - 0) + abs(0.5 + 0.5 + 0.55 - 2)) / 4
    assert others(logits, labels, 10) == (pytest.approx(left_closed, abs=1e-6), pytest.approx(left_closed, abs=1e-6))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("classes", [3, 5, 15])
def test_flat_rows_land_on_their_edge(classes, dtype):
    """A flat row's confidence is an edge of 15 bins; a row just above it must not share its bin."""
    flat, above = torch.full((classes,), 7.7, dtype=dtype), torch.full((classes,), 7.7, dtype=dtype)
    above[0] += 0.01
    found = evaluate(torch.stack([flat, above]), torch.tensor([0, 1]), metrics="ece-15")["ece-15"]
    confidence = float(above.double().softmax(dim=0)[0])
    assert found == pytest.approx((1 - 1 / classes + confidence) / 2, abs=1e-6)


def test_overconfidence_is_the_signed_gap():
    logits, labels = drawn()
    pairs = top_label(logits, labels)
    found = evaluate(logits, labels, metrics=["overconfidence", "mean-confidence", "accuracy", "ece:bins=1"])
    assert found["mean-confidence"] == pytest.approx(np.mean([confidence for confidence, _ in pairs]), abs=1e-10)
    assert found["accuracy"] == np.mean([hit for _, hit in pairs])
    assert found["overconfidence"] == pytest.approx(found["mean-confidence"] - found["accuracy"], abs=1e-11)
    assert found["overconfidence"] == pytest.approx(found["ece:bins=1"], abs=1e-11)
    sure = evaluate(Scores(logits / 100), labels * 0 + logits.argmax(dim=1), metrics="overconfidence")
    assert sure["overconfidence"] < -0.5, "too little confidence is told apart from too much"
