"""The training objective: a method's own loss on reshaped scores, plus the penalties of the calibrations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from calispan.core.contracts import TrainCalibration
from calispan.core.types import Scores

BaseLoss = Callable[[Tensor, Tensor | None], Tensor]


def cross_entropy(logits: Tensor, labels: Tensor | None) -> Tensor:
    """Mean cross-entropy over rows; leading axes stay apart. [..., n, c], [..., n] -> [...]"""
    assert labels is not None, "cross-entropy needs labels"
    if logits.ndim == 2:
        return F.cross_entropy(logits, labels)
    rowwise = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none")
    return rowwise.view(labels.shape).mean(dim=-1)


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
