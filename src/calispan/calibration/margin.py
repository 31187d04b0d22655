"""MbLS (Liu et al. 2022): margin-based label smoothing, a penalty on logits far below the winner."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from calispan.core.errors import RecipeError
from calispan.core.registry import train_calibration
from calispan.core.types import Scores


@train_calibration("mbls", paper="Liu et al. 2022")
@dataclass(frozen=True)
class MarginSmoothing:
    """Punish distances to the winning logit beyond a margin: weight * mean relu(max l - l_k - margin)."""

    weight: float = 0.1
    margin: float = 10.0

    def __post_init__(self) -> None:
        if not 0 <= self.weight < math.inf or not 0 <= self.margin < math.inf:
            raise RecipeError(
                f"mbls came with weight {self.weight} and margin {self.margin}; wanted 0 or more for both."
            )

    def reshape(self, scores: Scores) -> Scores:
        return scores

    def penalty(self, scores: Scores, labels: Tensor | None) -> Tensor:
        top = scores.logits.max(dim=-1, keepdim=True).values  # the gradient runs through it, to one entry
        return self.weight * (top - scores.logits - self.margin).relu().mean(dim=(-2, -1))
