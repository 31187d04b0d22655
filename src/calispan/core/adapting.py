"""What trained adapters share: the loss of one batch of cached features under any objective."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional as F

from calispan.core.heads import CosineHead, cosine_logits
from calispan.core.objective import Objective, cross_entropy
from calispan.core.training import Bank, Training, minimise
from calispan.core.types import Problem, Scores


def zero_shot_logits(problem: Problem) -> Callable[[Tensor], Tensor]:
    """Zero-shot logits of unit features, with the prototypes normalised and scaled once. [n, d] -> [n, c]"""
    scaled = F.normalize(problem.text, dim=-1) * problem.logit_scale
    bias = problem.logit_bias
    return lambda features: F.linear(features, scaled) + bias if bias else F.linear(features, scaled)


def train_weights(
    recipe: Training,
    problem: Problem,
    objective: Objective,
    weights: Tensor,
    *,
    seed: int,
    directions: Callable[[Tensor], Tensor] = lambda weights: weights,
    constraint: Callable[[Tensor], Tensor] | None = None,
    after_epoch: Callable[[Tensor], None] | None = None,
) -> CosineHead:
    """Train one c x d matrix by cross-entropy under the objective; the head's rows are `directions(weights)`."""
    weights = weights.detach().clone().requires_grad_()
    zero_shot = zero_shot_logits(problem)
    scale, bias = problem.logit_scale, problem.logit_bias

    def loss_of(features: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        logits = cosine_logits(features, directions(weights), scale, bias)
        loss = objective(cross_entropy, Scores(logits, lambda: zero_shot(features)), labels)
        return loss if constraint is None else loss + constraint(weights)

    hook = None if after_epoch is None else lambda: after_epoch(weights.detach())
    minimise(recipe, [weights], Bank.of(problem.support), loss_of, seed=seed, after_epoch=hook)
    return CosineHead(directions(weights).detach(), scale, bias)
