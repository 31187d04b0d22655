"""ZS-Norm, Penalty and SaLS (Murugesan et al. 2024): hold the logit range to the zero-shot one.

With m, R the minimum and range of a row's logits l, and m0, R0 those of its zero-shot logits, the range map is
l' = (R0 / R) (l - m) + m0. Softmax ignores m0, so it is a temperature R / R0 of the row's own. The three uses are
one formula in three places: in the loss, as a penalty in the loss, and after training.

A flat row (R = 0, which the paper leaves at 0/0) becomes flat at m0, with gradients of zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from calispan.core.contracts import Evidence, Given, RowSpans
from calispan.core.errors import RecipeError
from calispan.core.registry import calibrator, train_calibration
from calispan.core.score_maps import keep_argmax, map_logits
from calispan.core.store import storable
from calispan.core.types import Scores

PAPER = "Murugesan et al. 2024"


def range_map(logits: Tensor, zero_shot: Tensor, *, detach: bool = False) -> Tensor:
    """The map, differentiable. The gradient runs through each row's minimum and maximum unless detached. [..., n, c]

    `min(dim)` and `max(dim)` send it to one entry each, as the paper's code does; `amin` would split it among ties.
    Zero-shot logits that carry a gradient keep it, split evenly among ties.
    """
    ends = logits.detach() if detach else logits
    low = ends.min(dim=-1, keepdim=True).values
    span = ends.max(dim=-1, keepdim=True).values - low
    low0 = zero_shot.amin(dim=-1, keepdim=True)
    span0 = zero_shot.amax(dim=-1, keepdim=True) - low0
    flat = _is_flat(span, span0)
    span = torch.where(flat, 1, span)
    # Divided first: the quotient lies in [0, 1], so neither it nor its derivative overflows on the way.
    return (logits - low) / span * torch.where(flat, 0, span0) + low0


@train_calibration("zs-norm", paper=PAPER)
@dataclass(frozen=True, kw_only=True)
class ZsNorm:
    """Train on logits rescaled, row by row, to the range of the zero-shot logits; predict with the raw ones."""

    detach: bool = False  # True: no gradient through the minimum and maximum

    def reshape(self, scores: Scores) -> Scores:
        return map_logits(scores, lambda s: range_map(s.logits, s.zero_shot, detach=self.detach))

    def penalty(self, scores: Scores, labels: Tensor | None) -> float:
        return 0.0


@train_calibration("penalty", paper=PAPER)
@dataclass(frozen=True)
class RangePenalty:
    """Punish logits that leave the zero-shot range of their row.

    The paper writes a sum over rows and classes; its numbers were made with means, which is the default here.
    """

    weight: float = 10.0
    reduction: Literal["mean", "sum"] = "mean"

    def __post_init__(self) -> None:
        if not 0 <= self.weight < math.inf:
            raise RecipeError(f"penalty's weight is {self.weight}; wanted 0 or more.")
        if self.reduction not in ("mean", "sum"):
            raise RecipeError(f"penalty's reduction is '{self.reduction}'; wanted 'mean' or 'sum'.")

    def reshape(self, scores: Scores) -> Scores:
        return scores

    def penalty(self, scores: Scores, labels: Tensor | None) -> Tensor:
        logits, zero_shot = scores.logits, scores.zero_shot
        above = (logits - zero_shot.amax(dim=-1, keepdim=True)).relu()
        below = (zero_shot.amin(dim=-1, keepdim=True) - logits).relu()
        outside = above + below  # ... n c
        total = outside.sum(dim=(-2, -1)) if self.reduction == "sum" else outside.mean(dim=(-2, -1))
        return self.weight * total


@calibrator("sals", paper=PAPER)
@dataclass(frozen=True)
class Sals:
    """Rescale each row's logits to the range of its zero-shot logits; no labels, same predictions.

    `span` multiplies the zero-shot range: 1/2 and 1/4 are the paper's shrink study.
    """

    span: float = 1.0

    keeps_argmax = True
    needs = Evidence.NOTHING

    def __post_init__(self) -> None:
        if not 0 < self.span < math.inf:
            raise RecipeError(f"sals wants a span above 0, such as 1 or 0.5; came {self.span}.")

    def fit(self, given: Given) -> ZeroShotRange:
        return ZeroShotRange(self.span)


@storable("zero-shot-range")
@dataclass(frozen=True)
class ZeroShotRange:
    """The range map after training."""

    span: float = 1.0

    def __call__(self, scores: Scores) -> Scores:
        return map_logits(scores, lambda s: _rescaled(s.logits, s.zero_shot, self.span))

    def row_factor(self, rows: RowSpans) -> Tensor:
        """R0 / R times the factor; 0 for a flat row. [n, 1]"""
        wanted = rows.zero_shot_span if self.span == 1 else rows.zero_shot_span * self.span
        return (wanted / rows.span).nan_to_num_(0, 0, 0)


@torch.no_grad()
def _rescaled(logits: Tensor, zero_shot: Tensor, factor: float) -> Tensor:
    """`range_map` times a factor, in few passes over memory, and with the argmax kept to the last bit.

    It counts from the top: (l - max l) is 0 for the winners alone, and stays so under a factor. Adding the new
    maximum may round a close second up to it; such rows are rare, found exactly and mended.
    """
    high = logits.amax(dim=-1, keepdim=True)
    low0 = zero_shot.amin(dim=-1, keepdim=True)
    span0 = (zero_shot.amax(dim=-1, keepdim=True) - low0).mul_(factor)
    span = high - logits.amin(dim=-1, keepdim=True)
    flat = _is_flat(span, span0)
    scale = (span0 / span).masked_fill_(flat, 0)
    top = low0 + span0.masked_fill_(flat, 0)
    below = (logits - high).mul_(scale)  # ... n c, <= 0
    gap = _smallest_gap(below)
    out = below.add_(top)
    tied = (top - gap == top)[..., 0]  # a second that is as high as the winner now, or a flat row
    if bool(tied.any()):
        out[tied] = keep_argmax(logits[tied], out[tied])
    return out


@torch.no_grad()
def _is_flat(span: Tensor, span0: Tensor) -> Tensor:
    """Whether a row has no range, or one too small to divide 1 or the zero-shot range by."""
    return ~torch.isfinite((1 + span0) / span)


def _smallest_gap(below: Tensor) -> Tensor:
    """Distance from 0 to the nearest negative number of each row of numbers <= 0. [..., c] -> [..., 1]

    Read as signed integers, negative floats come before zero, and the nearer to zero, the smaller: their least
    integer is the sought number, in one pass without a mask.
    """
    whole = torch.int32 if below.dtype == torch.float32 else torch.int64
    return below.view(whole).amin(dim=-1, keepdim=True).view(below.dtype).abs()
