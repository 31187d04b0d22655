"""Vector scaling (Guo et al. 2017): a scale and a shift a class."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from calispan.core.contracts import Evidence, Given
from calispan.core.errors import RecipeError
from calispan.core.evidence import FitOn, asked_by, labelled
from calispan.core.registry import calibrator
from calispan.core.score_maps import check_classes, map_logits
from calispan.core.store import storable
from calispan.core.types import Scores

if TYPE_CHECKING:
    import numpy as np

_CHUNK = 1 << 20  # numbers in float64 at a time


@calibrator("vector", paper="Guo et al. 2017")
@dataclass(frozen=True)
class VectorScaling:
    """Learn softmax(w * l + b), a scale and a shift for every class, on labelled rows; predictions may change.

    The loss is the summed NLL + l2 * (|w - 1|^2 + |b|^2): few rows move the parameters little, many rows freely,
    and a class that is absent from them stays near w = 1, b = 0. l2=0 is the plain form, without that hold.
    """

    l2: float = 1.0
    fit_on: FitOn = "held-out"

    keeps_argmax = False

    def __post_init__(self) -> None:
        if not 0 <= self.l2 < math.inf:
            raise RecipeError(f"vector's l2 is {self.l2}; wanted 0 or more.")

    @property
    def needs(self) -> Evidence:
        return asked_by(self.fit_on)

    def fit(self, given: Given) -> ScaledByClass:
        scores, labels = labelled(given, self.fit_on, "vector")
        weight, shift = _fit(scores.logits, labels, self.l2)
        return ScaledByClass(weight, shift)


@storable("scaled-by-class")
@dataclass(frozen=True, eq=False)
class ScaledByClass:
    """w * l + b."""

    weight: Tensor  # c, float64
    shift: Tensor  # c, float64

    def __call__(self, scores: Scores) -> Scores:
        return map_logits(scores, lambda s: self._scaled(s.logits))

    def _scaled(self, logits: Tensor) -> Tensor:
        check_classes(len(self.weight), logits, "vector")
        return logits * self.weight.to(logits) + self.shift.to(logits)


@torch.no_grad()
def _fit(logits: Tensor, labels: Tensor, l2: float) -> tuple[Tensor, Tensor]:
    """Minimise the loss above, over its number of rows, from w = 1, b = 0; with l2 > 0 it is strictly convex."""
    import numpy as np
    from scipy.optimize import minimize

    rows, classes = logits.shape
    step = max(1, _CHUNK // classes)

    def loss_and_gradient(flat: np.ndarray[Any, Any]) -> tuple[float, np.ndarray[Any, Any]]:
        weight, shift = torch.split(torch.as_tensor(flat).to(logits.device), classes)
        pull = torch.cat([weight - 1, shift])
        loss = l2 * float(pull.square().sum())
        gradient = 2 * l2 * pull
        for some, answers in zip(torch.split(logits, step), torch.split(labels, step), strict=True):
            some = some.double()
            log_p = (some * weight + shift).log_softmax(dim=-1)
            loss -= float(log_p.gather(-1, answers[:, None]).sum())
            off = log_p.exp()
            off.scatter_add_(-1, answers[:, None], torch.full_like(off[:, :1], -1))
            gradient += torch.cat([(off * some).sum(dim=0), off.sum(dim=0)])
        return loss / rows, gradient.cpu().numpy() / rows

    start = np.concatenate([np.ones(classes), np.zeros(classes)])
    found = minimize(
        loss_and_gradient,
        start,
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 1000, "maxfun": 2000, "maxcor": 20, "ftol": 1e-13, "gtol": 1e-9},
    )
    weight, shift = torch.split(torch.as_tensor(found.x), classes)
    return weight.clone().to(logits.device), shift.clone().to(logits.device)
