"""Temperature scaling (Guo et al. 2017), and one temperature of the zero-shot model (LeVine et al. 2023).

The mean NLL of softmax(l / T) is convex in 1 / T, so its derivative has one zero, and a bracketed search on log T
finds it. T stays within [0.01, 100]: it is never negative, and data that could be fitted perfectly (T -> 0) or not
at all (T -> infinity) end at the bounds. Rows that are all flat say nothing; T is 1 then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from calispan.core.contracts import Evidence, Given
from calispan.core.errors import RecipeError
from calispan.core.evidence import FitOn, asked_by, labelled
from calispan.core.registry import calibrator
from calispan.core.score_maps import keep_argmax, map_logits
from calispan.core.store import storable
from calispan.core.types import Scores

LOWEST, HIGHEST = 1e-2, 1e2
_CHUNK = 1 << 20  # numbers in float64 at a time

Target = Literal["logits", "zero-shot", "both"]


@calibrator("temperature", paper="Guo et al. 2017")
@dataclass(frozen=True)
class Temperature:
    """Divide all logits by the one temperature that minimises the NLL of labelled rows."""

    fit_on: FitOn = "held-out"

    keeps_argmax = True

    @property
    def needs(self) -> Evidence:
        return asked_by(self.fit_on)

    def fit(self, given: Given) -> Tempered:
        scores, labels = labelled(given, self.fit_on, "temperature")
        return Tempered(best_temperature(scores.logits, labels))


@calibrator("zero-shot-temperature", paper="LeVine et al. 2023")
@dataclass(frozen=True)
class ZeroShotTemperature:
    """One temperature fitted on the zero-shot logits of a labelled source, applied to any adapted head.

    `target=logits` divides the head's logits; `zero-shot` divides the reference, so that a SaLS after it holds rows
    to R0 / T; `both` does both.
    """

    target: Target = "logits"
    fit_on: FitOn = "held-out"

    keeps_argmax = True

    def __post_init__(self) -> None:
        if self.target not in ("logits", "zero-shot", "both"):
            raise RecipeError(
                f"zero-shot-temperature's target is '{self.target}'; wanted 'logits', 'zero-shot' or 'both'."
            )

    @property
    def needs(self) -> Evidence:
        return asked_by(self.fit_on)

    @property
    def changes_zero_shot(self) -> bool:
        return self.target != "logits"

    def fit(self, given: Given) -> Tempered:
        scores, labels = labelled(given, self.fit_on, "zero-shot-temperature")
        return Tempered(best_temperature(scores.zero_shot, labels), self.target)


@storable("temperature")
@dataclass(frozen=True)
class Tempered:
    """Logits, zero-shot logits or both, over a temperature."""

    temperature: float
    target: Target = "logits"

    def __call__(self, scores: Scores) -> Scores:
        if self.target != "zero-shot":
            scores = map_logits(scores, lambda s: keep_argmax(s.logits, s.logits / self.temperature))
        return scores if self.target == "logits" else self._zero_shot(scores)

    def _zero_shot(self, scores: Scores) -> Scores:
        views = None if scores.views is None else self._zero_shot(scores.views)
        return Scores(scores.logits, lambda: scores.zero_shot / self.temperature, views)


@torch.no_grad()
def best_temperature(logits: Tensor, labels: Tensor) -> float:
    """The temperature of least mean NLL, within its bounds. [n, c], [n]"""
    from scipy.optimize import brentq

    def slope(log_temperature: float) -> float:
        """Derivative of the summed NLL with respect to 1 / T: it falls as T grows."""
        inverse = math.exp(-log_temperature)
        total = 0.0
        step = max(1, _CHUNK // logits.shape[-1])
        for rows, answers in zip(torch.split(logits, step), torch.split(labels, step), strict=True):
            below = rows.double() - rows.amax(dim=-1, keepdim=True)
            expected = ((below * inverse).softmax(dim=-1) * below).sum(dim=-1)
            total += float((expected - below.gather(-1, answers[:, None])[:, 0]).sum())
        return total

    if bool((logits == logits[:, :1]).all()):
        return 1.0
    low, high = math.log(LOWEST), math.log(HIGHEST)
    if slope(low) <= 0:
        return LOWEST
    if slope(high) >= 0:
        return HIGHEST
    return math.exp(brentq(slope, low, high, xtol=1e-12, rtol=1e-12))
