"""LogitNorm, ECP, label smoothing, focal and margin losses against loops: values and gradients."""

import math

import pytest
import torch

from calispan.calibration.entropy import ConfidencePenalty
from calispan.calibration.focal import Focal
from calispan.calibration.label_smoothing import LabelSmoothing
from calispan.calibration.logit_norm import LogitNorm
from calispan.calibration.margin import MarginSmoothing
from calispan.core.errors import NeedsError, RecipeError
from calispan.core.objective import Objective, cross_entropy
from calispan.core.types import Scores


def draw(rows=6, classes=5):
    draws = torch.Generator().manual_seed(3)
    logits = 3 * torch.randn(rows, classes, generator=draws, dtype=torch.float64)
    return logits, torch.randint(classes, (rows,), generator=draws)


def softmax(row):
    top = max(row)
    weights = [math.exp(value - top) for value in row]
    return [weight / sum(weights) for weight in weights]


def loss_and_gradient(recipe, logits, labels):
    live = logits.clone().requires_grad_()
    loss = Objective((recipe,))(cross_entropy, Scores(live, logits), labels)
    loss.backward()
    return loss.item(), live.grad


def agree(recipe, row_loss):
    """`row_loss(row, label)` gives one row's loss and gradient, in plain Python."""
    logits, labels = draw()
    pairs = [row_loss(row, label) for row, label in zip(logits.tolist(), labels.tolist(), strict=True)]
    loss, gradient = loss_and_gradient(recipe, logits, labels)
    assert loss == pytest.approx(sum(pair[0] for pair in pairs) / len(pairs), abs=1e-10)
    expected = torch.tensor([pair[1] for pair in pairs], dtype=torch.float64) / len(pairs)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("temperature", [0.04, 1.0])
def test_logit_norm(temperature):
    def row_loss(row, y):
        length = math.sqrt(sum(value * value for value in row))
        p = softmax([value / (length + 1e-7) / temperature for value in row])
        outer = [p[k] - (k == y) for k in range(len(row))]
        along = sum(g * value for g, value in zip(outer, row, strict=True))
        gradient = [
            (outer[k] / (length + 1e-7) - along * row[k] / (length * (length + 1e-7) ** 2)) / temperature
            for k in range(len(row))
        ]
        return -math.log(p[y]), gradient

    agree(LogitNorm(temperature), row_loss)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_ecp(reduction):
    def row_loss(row, y):
        p = softmax(row)
        share = 0.3 / (1 if reduction == "sum" else len(row))
        entropy = -sum(q * math.log(q) for q in p)
        gradient = [p[k] - (k == y) + share * p[k] * (math.log(p[k]) + entropy) for k in range(len(row))]
        return -math.log(p[y]) - share * entropy, gradient

    agree(ConfidencePenalty(0.3, reduction), row_loss)


@pytest.mark.parametrize("smoothing", [0.05, 0.1, 1.0])
def test_label_smoothing(smoothing):
    def row_loss(row, y):
        p = softmax(row)
        target = [(1 - smoothing) * (k == y) + smoothing / len(row) for k in range(len(row))]
        return -sum(t * math.log(q) for t, q in zip(target, p, strict=True)), [
            q - t for t, q in zip(target, p, strict=True)
        ]

    agree(LabelSmoothing(smoothing), row_loss)
    logits, labels = draw()
    torch_own = torch.nn.functional.cross_entropy(logits, labels, label_smoothing=smoothing)
    assert loss_and_gradient(LabelSmoothing(smoothing), logits, labels)[0] == pytest.approx(torch_own.item(), abs=1e-12)


@pytest.mark.parametrize("recipe", [Focal(), Focal(0.0), Focal(0.5), Focal(2.0), Focal(3.0, 5.0)])
def test_focal(recipe):
    def row_loss(row, y):
        p = softmax(row)
        gamma = recipe.hard_gamma if recipe.hard_gamma is not None and p[y] < 0.2 else recipe.gamma
        by_p = gamma * (1 - p[y]) ** (gamma - 1) * math.log(p[y]) - (1 - p[y]) ** gamma / p[y]
        return -((1 - p[y]) ** gamma) * math.log(p[y]), [by_p * p[y] * ((k == y) - p[k]) for k in range(len(row))]

    agree(recipe, row_loss)


def test_focal_of_a_quarter():
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    loss, _ = loss_and_gradient(Focal(3.0), logits, torch.tensor([1]))
    assert loss == pytest.approx(0.584843, abs=1e-6)


def test_flsd_53_is_five_below_a_fifth():
    for p, gamma in ((0.19, 5), (0.21, 3)):
        logits = torch.tensor([[p, 1 - p]], dtype=torch.float64).log()
        loss, _ = loss_and_gradient(Focal(3.0, 5.0), logits, torch.tensor([0]))
        assert loss == pytest.approx(-((1 - p) ** gamma) * math.log(p), abs=1e-12)


def test_mbls():
    def row_loss(row, y):
        p = softmax(row)
        top = row.index(max(row))
        share = 0.4 / len(row)
        gradient = [p[k] - (k == y) for k in range(len(row))]
        loss = -math.log(p[y])
        for k, value in enumerate(row):
            if row[top] - value > 2:
                loss += share * (row[top] - value - 2)
                gradient[k] -= share
                gradient[top] += share
        return loss, gradient

    agree(MarginSmoothing(0.4, 2.0), row_loss)


def test_mbls_example():
    scores = Scores(torch.tensor([[12.0, 1.0, 0.0]]))
    assert MarginSmoothing(weight=1.0, margin=10.0).penalty(scores, None).item() == pytest.approx(1.0)
    assert MarginSmoothing().penalty(scores, None).item() == pytest.approx(0.1)


def test_penalties_that_add_up():
    logits, labels = draw()
    several = Objective((LabelSmoothing(), ConfidencePenalty(), MarginSmoothing(margin=1.0)))
    together = several(cross_entropy, Scores(logits), labels).item()
    plain = cross_entropy(logits, labels).item()
    apart = [loss_and_gradient(recipe, logits, labels)[0] - plain for recipe in several.calibrations]
    assert together == pytest.approx(plain + sum(apart), abs=1e-12)


@pytest.mark.parametrize("recipe", [Focal(), LabelSmoothing()])
def test_losses_of_labels_say_that_they_need_them(recipe):
    with pytest.raises(NeedsError, match="needs labels"):
        recipe.penalty(Scores(torch.zeros(2, 3)), None)


@pytest.mark.parametrize("recipe", [ConfidencePenalty(), MarginSmoothing(), LogitNorm()])
def test_the_others_work_without_labels(recipe):
    assert torch.isfinite(torch.as_tensor(recipe.penalty(Scores(torch.randn(2, 3)), None)))


@pytest.mark.parametrize(
    "build",
    [
        lambda: LogitNorm(temperature=0.0),
        lambda: ConfidencePenalty(weight=-0.1),
        lambda: ConfidencePenalty(reduction="max"),
        lambda: LabelSmoothing(smoothing=1.5),
        lambda: Focal(gamma=-1.0),
        lambda: Focal(hard_gamma=math.nan),
        lambda: MarginSmoothing(margin=-1.0),
    ],
)
def test_bad_parameters_are_refused(build):
    with pytest.raises(RecipeError, match="wanted"):
        build()
