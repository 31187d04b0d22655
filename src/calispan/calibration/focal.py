"""Focal loss (Lin et al. 2017; for calibration Mukhoti et al. 2020): care less about rows that are already right."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from calispan.core.errors import RecipeError
from calispan.core.evidence import labels_of_loss
from calispan.core.registry import train_calibration
from calispan.core.types import Scores


@train_calibration("focal", paper="Mukhoti et al. 2020", also={"flsd-53": {"hard_gamma": 5.0}})
@dataclass(frozen=True)
class Focal:
    """Weigh each row's cross-entropy by (1 - p_y)^gamma; flsd-53 uses 5 where p_y < 0.2 and 3 elsewhere.

    Written as the difference to plain cross-entropy, which a loss of cross-entropy turns into the focal one.
    Beside a map such as zs-norm it goes last.
    """

    gamma: float = 3.0
    hard_gamma: float | None = None  # the gamma of rows with p_y < 0.2, where it differs

    def __post_init__(self) -> None:
        for gamma in (self.gamma, self.hard_gamma):
            if gamma is not None and not 0 <= gamma < math.inf:
                raise RecipeError(f"focal's gamma is {gamma}; wanted 0 or more.")

    def reshape(self, scores: Scores) -> Scores:
        return scores

    def penalty(self, scores: Scores, labels: Tensor | None) -> Tensor:
        labels = labels_of_loss(labels, "focal")
        log_p = scores.logits.log_softmax(dim=-1).gather(-1, labels[..., None])[..., 0]  # ... n
        # Kept above zero, so that a power below one has a finite slope where p_y rounds to 1.
        miss = (-torch.expm1(log_p)).clamp_min(torch.finfo(log_p.dtype).tiny)
        factor = miss.pow(self.gamma)
        if self.hard_gamma is not None:
            factor = torch.where(log_p.detach().exp() < 0.2, miss.pow(self.hard_gamma), factor)
        return ((1 - factor) * log_p).mean(dim=-1)
