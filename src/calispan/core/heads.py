"""CosineHead: the classes x width matrix that most methods end in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from calispan.core.store import storable
from calispan.core.types import Embeddings


def cosine_logits(features: Tensor, weights: Tensor, scale: float, bias: float = 0.0) -> Tensor:
    """Scale times cosine, plus bias; features are of unit length, weights need not be. [..., d] -> [..., c]"""
    logits: Tensor = _CosineLogits.apply(features, weights, scale)
    return logits + bias if bias else logits


class _CosineLogits(torch.autograd.Function):
    """Scale times cosine, with its gradient in closed form.

    Lengths and scale go onto the columns after the product, so no normalised copy of the weights is made, forward or
    backward. With G the gradient of the logits l and f_k = scale / |w_k|:
    dw_k = f_k sum_n G_nk x_n - w_k (sum_n G_nk l_nk) / |w_k|^2.
    """

    @staticmethod
    def forward(ctx: Any, features: Tensor, weights: Tensor, scale: float) -> Tensor:
        lengths = torch.linalg.vector_norm(weights, dim=-1)  # c
        logits = F.linear(features, weights).mul_(scale / lengths)
        ctx.save_for_backward(features, weights, lengths, logits)
        ctx.scale = scale
        return logits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        features, weights, lengths, logits = ctx.saved_tensors
        scaled = grad * (ctx.scale / lengths)
        to_features = scaled @ weights if ctx.needs_input_grad[0] else None
        to_weights = None
        if ctx.needs_input_grad[1]:
            along = torch.linalg.vecdot(grad.flatten(0, -2), logits.flatten(0, -2), dim=0) / lengths.square()
            to_weights = scaled.flatten(0, -2).T @ features.flatten(0, -2)
            to_weights.addcmul_(weights, along[:, None], value=-1)
        return to_features, to_weights, None


@storable("cosine-head")
@dataclass(frozen=True, eq=False)
class CosineHead:
    """One direction a class; a logit is the scaled cosine to it."""

    weights: Tensor  # c d
    logit_scale: float
    logit_bias: float = 0.0

    def __call__(self, queries: Embeddings) -> Tensor:
        return cosine_logits(queries.views, self.weights, self.logit_scale, self.logit_bias)
