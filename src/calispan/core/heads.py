"""CosineHead: the classes x width matrix that most methods end in."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from calispan.core.store import storable
from calispan.core.types import Embeddings


def cosine_logits(features: Tensor, weights: Tensor, scale: float, bias: float = 0.0) -> Tensor:
    """Scale times cosine, plus bias; features are of unit length, weights need not be. [..., d] -> [..., c]"""
    # The scale goes onto the small matrix: one pass over c x d instead of one over n x c.
    logits = F.linear(features, F.normalize(weights, dim=-1) * scale)
    return logits + bias if bias else logits


@storable("cosine-head")
@dataclass(frozen=True, eq=False)
class CosineHead:
    """One direction a class; a logit is the scaled cosine to it."""

    weights: Tensor  # c d
    logit_scale: float
    logit_bias: float = 0.0

    def __call__(self, queries: Embeddings) -> Tensor:
        return cosine_logits(queries.views, self.weights, self.logit_scale, self.logit_bias)
