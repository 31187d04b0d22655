"""Isotonic regression (Zadrozny and Elkan 2002; pooled: Mix-n-Match, Zhang et al. 2020).

The best non-decreasing function from a probability to the frequency of being right, found by pooling adjacent
violators (scipy). It is linear between its knots and constant outside the range it was fitted on. It wants hundreds
of rows; `pooled` sorts rows x classes numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from calispan.core.contracts import Evidence, Given
from calispan.core.errors import RecipeError
from calispan.core.evidence import FitOn, asked_by, labelled
from calispan.core.registry import calibrator
from calispan.core.score_maps import (
    NEVER,
    check_classes,
    keep_argmax,
    map_logits,
    map_rows,
    top_label,
    with_confidence,
)
from calispan.core.store import storable
from calispan.core.types import Scores

if TYPE_CHECKING:
    import numpy as np

Mode = Literal["pooled", "top-label", "one-vs-rest"]


@calibrator("isotonic", paper="Zhang et al. 2020")
@dataclass(frozen=True)
class Isotonic:
    """Map probabilities through a fitted non-decreasing function.

    `pooled` fits one function f on all entries of all rows and returns f(p) + 1e-9 p, normalised: order is kept.
    `top-label` fits correctness on confidence; `one-vs-rest` fits every class on its own. Those two may change
    predictions.
    """

    mode: Mode = "pooled"
    fit_on: FitOn = "held-out"

    def __post_init__(self) -> None:
        if self.mode not in ("pooled", "top-label", "one-vs-rest"):
            raise RecipeError(f"isotonic's mode is '{self.mode}'; wanted 'pooled', 'top-label' or 'one-vs-rest'.")

    @property
    def keeps_argmax(self) -> bool:
        return self.mode == "pooled"

    @property
    def needs(self) -> Evidence:
        return asked_by(self.fit_on)

    @torch.no_grad()
    def fit(self, given: Given) -> Increasing:
        scores, labels = labelled(given, self.fit_on, "isotonic")
        logits = scores.logits.double()
        if self.mode == "top-label":
            confidence, winner = top_label(logits)
            curves = [_curve(confidence, winner == labels)]
        else:
            p = logits.softmax(dim=-1)  # m c
            truth = torch.zeros_like(p, dtype=torch.bool).scatter_(-1, labels[:, None], True)
            pairs = [(p, truth)] if self.mode == "pooled" else zip(p.T, truth.T, strict=True)
            curves = [_curve(values, right) for values, right in pairs]
        longest = max(len(x) for x, _ in curves)
        x = torch.stack([_padded(x, longest, step=1.0) for x, _ in curves]).to(labels.device)
        y = torch.stack([_padded(y, longest, step=0.0) for _, y in curves]).to(labels.device)
        return Increasing(self.mode, x, y)


def _curve(values: Tensor, right: Tensor) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Knots of the non-decreasing fit: where it starts, ends, and turns. Equal values count as one, with weight."""
    import numpy as np
    from scipy.optimize import isotonic_regression

    # Equal but for the last bits is equal, or noise would decide what is pooled.
    x = values.cpu().numpy().ravel().round(14)
    order = np.argsort(x)
    x, hits = x[order], right.cpu().numpy().ravel()[order]
    starts = np.flatnonzero(np.diff(x, prepend=-1.0))
    x, weights = x[starts], np.diff(starts, append=len(x))
    y = isotonic_regression(np.add.reduceat(hits, starts, dtype=np.int64) / weights, weights=weights.astype(float)).x
    turns = np.ones(len(y), dtype=bool)
    turns[1:-1] = (y[1:-1] != y[:-2]) | (y[1:-1] != y[2:])
    return x[turns], y[turns]


def _padded(knots: np.ndarray[Any, Any], count: int, *, step: float) -> Tensor:
    """Repeat the last knot, each time farther by a step, so that curves of all classes fit one tensor."""
    extra = knots[-1] + step * torch.arange(1, count + 2 - len(knots), dtype=torch.float64)
    return torch.cat([torch.as_tensor(knots), extra])


@storable("increasing")
@dataclass(frozen=True, eq=False)
class Increasing:
    """Piecewise linear non-decreasing functions: one, or one for every class."""

    mode: Mode
    x: Tensor  # r k, float64
    y: Tensor  # r k, float64

    def __call__(self, scores: Scores) -> Scores:
        if self.mode == "one-vs-rest":
            check_classes(len(self.x), scores.logits, "isotonic")
        return map_logits(scores, lambda s: self._mapped(s.logits))

    def _mapped(self, logits: Tensor) -> Tensor:
        match self.mode:
            case "top-label":
                return map_rows(self._top_label, logits)
            case "one-vs-rest":
                return map_rows(self._by_class, logits)
            case "pooled":
                return keep_argmax(logits, map_rows(self._pooled, logits))

    def _top_label(self, logits: Tensor) -> Tensor:
        confidence, _ = top_label(logits)
        return with_confidence(logits, self._read(confidence[None])[0])

    def _by_class(self, logits: Tensor) -> Tensor:
        frequencies = self._read(logits.softmax(dim=-1).T).T
        return frequencies.clamp_min(NEVER).log().log_softmax(dim=-1)

    def _pooled(self, logits: Tensor) -> Tensor:
        log_p = logits.log_softmax(dim=-1)
        frequencies = self._read(log_p.exp().reshape(1, -1)).view_as(log_p)
        # log(f + 1e-9 p), which stays finite where f is 0 and p underflows
        return torch.logaddexp(frequencies.log(), log_p + math.log(1e-9)).log_softmax(dim=-1)

    def _read(self, values: Tensor) -> Tensor:
        """Every row's function at its values. [r, m] -> [r, m]"""
        x, y = self.x.to(values.device), self.y.to(values.device)
        right = torch.searchsorted(x, values.contiguous()).clamp(1, x.shape[-1] - 1)
        x0, x1, y0, y1 = (t.gather(-1, i) for t in (x, y) for i in (right - 1, right))
        return y0 + (y1 - y0) * ((values - x0) / (x1 - x0)).clamp(0, 1)
