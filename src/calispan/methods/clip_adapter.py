"""CLIP-Adapter (Gao et al. 2021): a small bottleneck on the image feature, blended with the feature itself."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from calispan.core.adapting import zero_shot_logits
from calispan.core.contracts import Needs
from calispan.core.errors import RecipeError
from calispan.core.heads import cosine_logits
from calispan.core.objective import Objective, cross_entropy
from calispan.core.registry import method
from calispan.core.sampling import generator
from calispan.core.store import storable
from calispan.core.training import Bank, Training, minimise
from calispan.core.types import Embeddings, Problem, Scores


def adapt(features: Tensor, down: Tensor, up: Tensor, ratio: float) -> Tensor:
    """r relu(W2 relu(W1 x)) + (1 - r) x, of unit length.

    No biases and ReLUs only: the map scales with x, so unit features give the same directions as raw ones.
    """
    bottleneck = F.relu(F.linear(F.relu(F.linear(features, down)), up))
    return F.normalize(ratio * bottleneck + (1 - ratio) * features, dim=-1)


@storable("clip-adapter-head")
@dataclass(frozen=True, eq=False)
class ClipAdapterHead:
    """The two matrices of the bottleneck, and the frozen prototypes."""

    down: Tensor  # d/4 d
    up: Tensor  # d d/4
    ratio: float
    weights: Tensor  # c d
    logit_scale: float
    logit_bias: float

    def __call__(self, queries: Embeddings) -> Tensor:
        adapted = adapt(queries.views, self.down, self.up, self.ratio)
        return cosine_logits(adapted, self.weights, self.logit_scale, self.logit_bias)


@method("clip-adapter", paper="Gao et al. 2021")
@dataclass(frozen=True)
class ClipAdapter(Training):
    """A bottleneck on the image feature, blended with the feature; the text side stays frozen."""

    ratio: float = 0.2
    reduction: int = 4

    needs = Needs.EMBEDDINGS
    starts_at_zero_shot = False  # the random bottleneck already turns the features

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.ratio < 1 or self.reduction < 1:
            raise RecipeError(f"clip-adapter wants ratio in [0, 1) and reduction >= 1; came {self!r}.")

    def fit(self, problem: Problem, objective: Objective, *, seed: int) -> ClipAdapterHead:
        width = problem.text.shape[1]
        hidden = max(1, width // self.reduction)
        draws = generator(seed, "weights")

        def linear_default(rows: int, columns: int) -> Tensor:
            bound = 1 / math.sqrt(columns)  # torch's default for linear layers
            return ((torch.rand(rows, columns, generator=draws) * 2 - 1) * bound).to(problem.text).requires_grad_()

        down, up = linear_default(hidden, width), linear_default(width, hidden)
        zero_shot = zero_shot_logits(problem)

        def loss_of(features: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
            # The prototypes are frozen, so the adapted feature goes through the zero-shot classifier itself.
            logits = zero_shot(adapt(features, down, up, self.ratio))
            return objective(cross_entropy, Scores(logits, lambda: zero_shot(features)), labels)

        minimise(self, [down, up], Bank.of(problem.support), loss_of, seed=seed)
        return ClipAdapterHead(
            down.detach(), up.detach(), self.ratio, problem.text, problem.logit_scale, problem.logit_bias
        )
