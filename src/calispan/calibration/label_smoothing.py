"""Label smoothing (Szegedy et al. 2016): a little of the target goes to every class."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from calispan.core.errors import RecipeError
from calispan.core.evidence import labels_of_loss
from calispan.core.registry import train_calibration
from calispan.core.types import Scores


@train_calibration("label-smoothing", paper="Szegedy et al. 2016")
@dataclass(frozen=True)
class LabelSmoothing:
    """Cross-entropy to (1 - smoothing) of the label and smoothing / K of every class.

    Written as the difference to plain cross-entropy, e (mean_k -log p_k + log p_y), which a loss of cross-entropy
    turns into the smoothed one. Beside a map such as zs-norm it goes last.
    """

    smoothing: float = 0.05

    def __post_init__(self) -> None:
        if not 0 <= self.smoothing <= 1:
            raise RecipeError(f"label-smoothing's smoothing is {self.smoothing}; wanted a number in [0, 1].")

    def reshape(self, scores: Scores) -> Scores:
        return scores

    def penalty(self, scores: Scores, labels: Tensor | None) -> Tensor:
        labels = labels_of_loss(labels, "label-smoothing")
        logits = scores.logits
        # The normaliser of log-softmax cancels: -mean log p + log p_y = l_y - mean l.
        lead = logits.gather(-1, labels[..., None])[..., 0] - logits.mean(dim=-1)  # ... n
        return self.smoothing * lead.mean(dim=-1)
