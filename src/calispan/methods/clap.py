"""CLAP (Silva-Rodríguez et al. 2024): ZS-LP held near the prototypes, each class by how well zero-shot knows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from calispan.core.adapting import train_weights, zero_shot_logits
from calispan.core.contracts import Needs
from calispan.core.heads import CosineHead
from calispan.core.objective import Objective
from calispan.core.registry import method
from calispan.core.training import Bank, Training
from calispan.core.types import Problem


@method("clap", paper="Silva-Rodríguez et al. 2024", also={"clap-adaptive": {"adaptive": True}})
@dataclass(frozen=True)
class Clap(Training):
    """ZS-LP plus mean_k a_k ||w_k - t_k||^2, where a_k is zero-shot's mean probability of class k on its shots."""

    weights: Literal["per-class", "corrected", "constant", "balanced"] = "per-class"
    adaptive: bool = False  # an augmented-Lagrangian update of the a_k after each epoch

    needs = Needs.EMBEDDINGS
    starts_at_zero_shot = True

    def fit(self, problem: Problem, objective: Objective, *, seed: int) -> CosineHead:
        start = problem.text
        strength = self._strength(problem)
        step = torch.zeros_like(strength)

        # Beyond this a multiplier makes momentum SGD swing apart. With 1000 classes it is 9,500 and never met; with a
        # handful of classes the published update runs away without it.
        stable = (1 + self.momentum) * len(problem.classes) / (2 * max(self.lr, 1e-12))

        def distance(weights: Tensor) -> Tensor:
            return (weights - start).square().sum(dim=-1)  # c

        def after_epoch(weights: Tensor) -> None:
            moved = distance(weights)
            strength.copy_((strength + step * moved).clamp(0, stable))
            step.copy_(moved)

        return train_weights(
            self,
            problem,
            objective,
            start,
            seed=seed,
            constraint=lambda weights: (strength * distance(weights)).mean(),
            after_epoch=after_epoch if self.adaptive else None,
        )

    def _strength(self, problem: Problem) -> Tensor:
        """The multiplier of each class. [c]"""
        count = len(problem.classes)
        if self.weights == "balanced":
            return problem.text.new_ones(count)
        bank = Bank.of(problem.support)
        zero_shot = zero_shot_logits(problem)
        total = problem.text.new_zeros(count)
        rows = problem.text.new_zeros(count)
        for part in torch.split(bank.every_row(), 4096):
            labels = bank.labels[part]
            of_truth = zero_shot(bank.features[part]).softmax(dim=-1).gather(1, labels[:, None])[:, 0]
            total.index_add_(0, labels, of_truth)
            rows.index_add_(0, labels, torch.ones_like(of_truth))
        strength = total / rows.clamp_min(1)  # a class without shots is not held: it does not move either
        if self.weights == "corrected":
            return strength / strength.mean()
        return strength.mean().expand(count).clone() if self.weights == "constant" else strength
