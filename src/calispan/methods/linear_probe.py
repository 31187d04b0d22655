"""Linear probes on the unit sphere (Silva-Rodríguez et al. 2024): from random weights, or from text (ZS-LP)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from calispan.core.adapting import train_weights
from calispan.core.contracts import Needs
from calispan.core.heads import CosineHead
from calispan.core.objective import Objective
from calispan.core.registry import method
from calispan.core.sampling import generator
from calispan.core.training import Training
from calispan.core.types import Problem


@method("linear-probe", paper="Silva-Rodríguez et al. 2024", also={"zs-lp": {"start": "zero-shot"}})
@dataclass(frozen=True)
class LinearProbe(Training):
    """One trained direction a class, from random weights or (zs-lp) from the zero-shot prototypes."""

    start: Literal["random", "zero-shot"] = "random"

    needs = Needs.EMBEDDINGS

    @property
    def starts_at_zero_shot(self) -> bool:
        return self.start == "zero-shot"

    def fit(self, problem: Problem, objective: Objective, *, seed: int) -> CosineHead:
        weights = problem.text  # with their own lengths: these set the size of a gradient step
        if self.start == "random":
            # Kaiming-normal: the published initialisation, N(0, 2 / d). Drawn by class name, so that a class starts
            # where it starts whatever the others are and whatever their order.
            width = weights.shape[1]
            drawn = [torch.randn(width, generator=generator(seed, f"weights of {name}")) for name in problem.classes]
            weights = (torch.stack(drawn) * math.sqrt(2 / width)).to(weights)
        return train_weights(self, problem, objective, weights, seed=seed)
