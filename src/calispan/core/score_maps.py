"""What score maps share: every view is mapped, the winner stays, float64 inside, rows that mean probabilities."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from calispan.core.errors import InputError
from calispan.core.types import Scores

# A probability that was counted is kept this far from 0 and 1: its logarithm stays finite.
NEVER = 1e-9
_CHUNK = 1 << 18  # numbers at a time: 2 MiB of float64, which a core's cache holds


def map_logits(scores: Scores, new_logits: Callable[[Scores], Tensor]) -> Scores:
    """The same rows under `new_logits(scores)`, and so for every view of them where there are views."""
    views = None if scores.views is None else scores.views.replace(new_logits(scores.views))
    return scores.replace(new_logits(scores), views)


@torch.no_grad()
def map_rows(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """`function` of the same rows of each tensor, in float64, a bounded number of rows at a time. [..., c] -> [..., c]

    The answer has the type of the first tensor.
    """
    first = tensors[0]
    flat = [tensor.reshape(-1, first.shape[-1]) for tensor in tensors]
    out = torch.empty_like(flat[0])
    step = max(1, _CHUNK // first.shape[-1])
    for start in range(0, len(out), step):
        rows = slice(start, start + step)
        out[rows] = function(*(tensor[rows].double() for tensor in flat))
    return out.reshape(first.shape)


@torch.no_grad()
def keep_argmax(before: Tensor, after: Tensor) -> Tensor:
    """`after`, with each row's first winner of `before` as its first winner again. [..., c]

    A map that keeps order may still round two neighbouring numbers to one. Where that happens to a winner, it is
    raised by one floating-point step.
    """
    winner = before.argmax(dim=-1, keepdim=True)
    lost = after.argmax(dim=-1, keepdim=True) != winner
    if not bool(lost.any()):
        return after
    top = after.amax(dim=-1, keepdim=True)
    raised = torch.nextafter(top, torch.full_like(top, math.inf))
    return after.scatter(-1, winner, torch.where(lost, raised, after.gather(-1, winner)))


def top_label(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Confidence and predicted class of every row. [n, c] -> [n], [n]"""
    return logits.softmax(dim=-1).amax(dim=-1), logits.argmax(dim=-1)


def with_confidence(logits: Tensor, confidence: Tensor) -> Tensor:
    """Log-probabilities that give each row's winner this probability; the others keep their proportions. [n, c], [n]"""
    if logits.shape[-1] == 1:
        return torch.zeros_like(logits)
    winner = logits.argmax(dim=-1, keepdim=True)
    others = logits.scatter(-1, winner, -math.inf).log_softmax(dim=-1)  # n c, they sum to one without the winner
    sure = confidence[:, None].clamp(NEVER, 1 - NEVER)
    return (others + torch.log1p(-sure)).scatter(-1, winner, sure.log())


def check_classes(fitted: int, logits: Tensor, name: str) -> None:
    """A map with a parameter a class cannot serve another class set."""
    if logits.shape[-1] != fitted:
        raise InputError(
            f"'{name}' was fitted for {fitted} classes but the scores have {logits.shape[-1]}. "
            "Fit it on scores of the same classes."
        )
