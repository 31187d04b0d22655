"""TaskRes (Yu et al. 2023): keep the text prototypes and learn a residual to them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from calispan.core.adapting import train_weights
from calispan.core.contracts import Needs
from calispan.core.heads import CosineHead
from calispan.core.objective import Objective
from calispan.core.registry import method
from calispan.core.training import Training
from calispan.core.types import Problem


@method(
    "task-res",
    paper="Yu et al. 2023",
    also={
        "task-res-e": {"enhanced": True},
        "task-res@original": {"optimizer": "adam", "lr": 2e-4, "weight_decay": 5e-4, "epochs": 200},
    },
)
@dataclass(frozen=True)
class TaskRes(Training):
    """A learned residual beside frozen prototypes; task-res-e first fine-tunes the text projection (enhanced base)."""

    alpha: float = 0.5
    enhanced: bool = False
    base_epochs: int = 50
    base_lr: float = 0.002

    needs = Needs.EMBEDDINGS

    @property
    def starts_at_zero_shot(self) -> bool:
        return not self.enhanced

    def fit(self, problem: Problem, objective: Objective, *, seed: int) -> CosineHead:
        base = self._enhanced_base(problem, objective, seed) if self.enhanced else problem.text
        return train_weights(
            self,
            problem,
            objective,
            torch.zeros_like(base),
            seed=seed,
            directions=lambda residual: torch.add(base, residual, alpha=self.alpha),
        )

    def _enhanced_base(self, problem: Problem, objective: Objective, seed: int) -> torch.Tensor:
        """Prototypes under a fine-tuned text projection.

        The projection P is the tower's last, linear step, so tuning P equals tuning a width x width matrix M after
        it: every new projection P' is P M for some M. That needs the prototypes alone, not the tower. The published
        enhanced bases exist for RN50 only, and their training recipe was never published: this is ours.
        """
        text = problem.text
        identity = torch.eye(text.shape[1], dtype=text.dtype, device=text.device)
        first = replace(self, epochs=self.base_epochs, lr=self.base_lr)
        return train_weights(
            first, problem, objective, identity, seed=seed, directions=lambda matrix: text @ matrix
        ).weights
