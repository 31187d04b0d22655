"""LogitNorm (Wei et al. 2022): train on logits of fixed length, so that length cannot mean certainty."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from calispan.core.errors import RecipeError
from calispan.core.registry import train_calibration
from calispan.core.score_maps import map_logits
from calispan.core.types import Scores


@train_calibration("logit-norm", paper="Wei et al. 2022")
@dataclass(frozen=True)
class LogitNorm:
    """Train on logits of unit length over a temperature; predict with the raw ones.

    CLIP logits share a large offset, so l / ||l|| is nearly constant and only a small temperature gives a signal:
    0.04 is the authors' value for images of 100 classes, 1.0 their code's default.
    """

    temperature: float = 0.04

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise RecipeError(f"logit-norm's temperature is {self.temperature}; wanted a number above 0.")

    def reshape(self, scores: Scores) -> Scores:
        return map_logits(scores, lambda s: self._normed(s.logits))

    def penalty(self, scores: Scores, labels: Tensor | None) -> float:
        return 0.0

    def _normed(self, logits: Tensor) -> Tensor:
        length: Tensor = torch.linalg.vector_norm(logits, dim=-1, keepdim=True)
        return logits / (length + 1e-7) / self.temperature
