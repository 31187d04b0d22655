"""What calibrations are fitted with: the labelled scores or the labels they asked for, or a sentence that says so."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from calispan.core.contracts import Evidence, Given
from calispan.core.errors import InputError, NeedsError
from calispan.core.types import Scores

FitOn = Literal["held-out", "support"]


def asked_by(fit_on: FitOn) -> Evidence:
    """Labels of a held-out set, or out-of-fold scores of the method's own shots."""
    return Evidence.SUPPORT if fit_on == "support" else Evidence.LABELS


def labelled(given: Given, fit_on: FitOn, name: str) -> tuple[Scores, Tensor]:
    """The scores and labels that calibrator `name` is fitted on. [m, c], [m]"""
    evidence = given.support if fit_on == "support" else given.held_out
    if evidence is None and fit_on == "support":
        raise NeedsError(
            f"'{name}' with fit_on=support learns from out-of-fold scores of the shots, and none were given. "
            f'Fit it with calispan.fit(..., after=["{name}:fit_on=support"]), or pass held_out=(scores, labels) '
            "with fit_on=held-out."
        )
    if evidence is None:
        raise NeedsError(
            f"'{name}' is fitted on labelled held-out scores, and none were given. Pass held_out=(scores, labels), "
            "or choose a calibration without labels, such as 'sals'."
        )
    scores, labels = evidence
    rows, classes = scores.logits.shape[-2:]
    if scores.logits.ndim != 2 or labels.shape != (rows,) or rows == 0:
        raise InputError(
            f"'{name}' was given logits of shape {list(scores.logits.shape)} and labels of shape "
            f"{list(labels.shape)} to learn from; wanted [rows, classes] and [rows], with one row at least."
        )
    if not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise InputError(f"'{name}' was given labels outside 0..{classes - 1}; pass one class index a row.")
    return scores, labels.long().to(scores.logits.device)


def labels_of_loss(labels: Tensor | None, name: str) -> Tensor:
    """The labels a loss needs; test-time tuning has none. [..., n]"""
    if labels is None:
        raise NeedsError(
            f"'{name}' needs labels, and this loss has none (test-time tuning sees no labels). "
            "Leave it out, or use one that needs none, such as 'zs-norm' or 'penalty'."
        )
    return labels
