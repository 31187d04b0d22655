"""ECP (Pereyra et al. 2017): the explicit confidence penalty, a reward for entropy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from calispan.core.errors import RecipeError
from calispan.core.registry import train_calibration
from calispan.core.types import Scores


@train_calibration("ecp", paper="Pereyra et al. 2017")
@dataclass(frozen=True)
class ConfidencePenalty:
    """Reward the entropy of the prediction: loss - weight * H(p).

    The paper sums the entropy over classes; `reduction=mean` divides it by their number, as some code does.
    """

    weight: float = 0.1
    reduction: Literal["sum", "mean"] = "sum"

    def __post_init__(self) -> None:
        if not 0 <= self.weight < math.inf:
            raise RecipeError(f"ecp's weight is {self.weight}; wanted 0 or more.")
        if self.reduction not in ("mean", "sum"):
            raise RecipeError(f"ecp's reduction is '{self.reduction}'; wanted 'sum' or 'mean' over classes.")

    def reshape(self, scores: Scores) -> Scores:
        return scores

    def penalty(self, scores: Scores, labels: Tensor | None) -> Tensor:
        log_p = scores.logits.log_softmax(dim=-1)
        terms = log_p.exp() * log_p  # ... n c, finite also where p is 0
        negative_entropy = terms.sum(dim=-1) if self.reduction == "sum" else terms.mean(dim=-1)
        return self.weight * negative_entropy.mean(dim=-1)
