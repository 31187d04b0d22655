"""The training objective: a method's own loss on reshaped scores, plus the penalties of the calibrations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from calispan.core.contracts import TrainCalibration
from calispan.core.types import Scores

_LEAST = 1e-30

BaseLoss = Callable[[Tensor, Tensor | None], Tensor]


def cross_entropy(logits: Tensor, labels: Tensor | None) -> Tensor:
    """Mean cross-entropy over rows; leading axes stay apart. [..., n, c], [..., n] -> [...]"""
    assert labels is not None, "cross-entropy needs labels"
    rows, truth = logits.flatten(0, -2), labels.flatten()
    if logits.device.type == "cpu":
        rowwise: Tensor = _SoftmaxCrossEntropy.apply(rows, truth)
    else:
        rowwise = F.cross_entropy(rows, truth, reduction="none")  # nothing to gain there, and it reads nothing back
    return rowwise.view(labels.shape).mean(dim=-1)


class _SoftmaxCrossEntropy(torch.autograd.Function):
    """log sum exp l - l_y of each row, with its gradient p - onehot(y) in closed form. [n, c], [n] -> [n]

    The probabilities are made once, going forward, and become the gradient where they lie; the library's pair of
    log-softmax and likelihood exponentiates twice and fills one more matrix. At the size of ImageNet that is a
    twentieth of a training step.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        probabilities = torch.softmax(logits, dim=-1)
        of_truth = probabilities.gather(-1, labels[:, None])[:, 0]
        loss = -of_truth.log()
        rare = of_truth < _LEAST  # the label's probability is too near zero in floating point to have a logarithm
        if bool(rare.any()):
            loss[rare] = F.cross_entropy(logits[rare], labels[rare], reduction="none")
        ctx.save_for_backward(probabilities, labels)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        probabilities, labels = ctx.saved_tensors
        to_logits = probabilities.mul_(grad[:, None])  # ours alone: nothing else saw them
        return to_logits.scatter_add_(-1, labels[:, None], -grad[:, None]), None


@dataclass(frozen=True)
class Objective:
    """Base loss and any number of calibrations, applied in the order given.

    Each calibration sees the scores as those before it left them: its penalty is taken there, then its map.
    So `["penalty", "zs-norm"]` penalises raw logits and trains on normalised ones.
    """

    calibrations: tuple[TrainCalibration, ...] = ()

    def __call__(self, base_loss: BaseLoss, scores: Scores, labels: Tensor | None) -> Tensor:
        penalties: list[Tensor | float] = []
        for calibration in self.calibrations:
            penalties.append(calibration.penalty(scores, labels))
            scores = calibration.reshape(scores)
        loss = base_loss(scores.logits, labels)
        for penalty in penalties:
            loss = loss + penalty
        return loss
