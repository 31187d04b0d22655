"""Histogram binning (Zadrozny and Elkan 2001): a probability becomes the frequency seen among its like.

Bins are open at the left and closed at the right. A bin nobody fell into answers with its centre.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from calispan.core.contracts import Evidence, Given
from calispan.core.errors import RecipeError
from calispan.core.evidence import FitOn, asked_by, labelled
from calispan.core.registry import calibrator
from calispan.core.score_maps import NEVER, check_classes, map_logits, map_rows, top_label, with_confidence
from calispan.core.store import storable
from calispan.core.types import Scores


@calibrator("histogram", paper="Zadrozny and Elkan 2001")
@dataclass(frozen=True)
class HistogramBinning:
    """Replace confidence by the accuracy of its bin; predictions may change where a bin is rarely right.

    `top-label` sets the winner's probability and lets the other classes keep their proportions; `one-vs-rest` bins
    every class on its own and normalises the row. Bins of equal width, or of equal mass.
    """

    bins: int = 15
    spacing: Literal["width", "mass"] = "width"
    mode: Literal["top-label", "one-vs-rest"] = "top-label"
    fit_on: FitOn = "held-out"

    keeps_argmax = False

    def __post_init__(self) -> None:
        if self.bins < 1:
            raise RecipeError(f"histogram came with {self.bins} bins; wanted 1 or more.")
        if self.spacing not in ("width", "mass") or self.mode not in ("top-label", "one-vs-rest"):
            raise RecipeError(
                f"histogram came with spacing '{self.spacing}' and mode '{self.mode}'; "
                "wanted 'width' or 'mass', and 'top-label' or 'one-vs-rest'."
            )

    @property
    def needs(self) -> Evidence:
        return asked_by(self.fit_on)

    @torch.no_grad()
    def fit(self, given: Given) -> Binned:
        scores, labels = labelled(given, self.fit_on, "histogram")
        logits = scores.logits.double()
        if self.mode == "top-label":
            confidence, winner = top_label(logits)
            values, right = confidence[None], (winner == labels)[None]
        else:
            values = logits.softmax(dim=-1).T.contiguous()  # c m
            right = labels[None] == torch.arange(len(values), device=labels.device)[:, None]
        edges = self._edges(values)
        return Binned(self.mode, edges, _frequencies(values, right, edges))

    def _edges(self, values: Tensor) -> Tensor:
        """Inner edges of the bins of every row. [r, m] -> [r, bins - 1]"""
        cuts = torch.arange(1, self.bins, device=values.device)
        if self.spacing == "width":
            return (cuts / self.bins).double().expand(len(values), -1).contiguous()
        ordered = values.sort(dim=-1).values
        count = ordered.shape[-1]
        after = (cuts * count / self.bins).round().long().clamp(1, max(1, count - 1))  # first row of the next bin
        return (ordered[:, after - 1] + ordered[:, after.clamp_max(count - 1)]) / 2


def _bins_of(values: Tensor, edges: Tensor) -> Tensor:
    """Bin number of every value; a value on an edge belongs to the bin on its left. [r, m], [r, b] -> [r, m]"""
    return torch.searchsorted(edges, values.contiguous())


def _frequencies(values: Tensor, right: Tensor, edges: Tensor) -> Tensor:
    """How often the values of each bin were right. [r, m], [r, m], [r, b] -> [r, b + 1]"""
    bins = _bins_of(values, edges)
    ends = torch.nn.functional.pad(edges, (1, 0), value=0.0), torch.nn.functional.pad(edges, (0, 1), value=1.0)
    centre = (ends[0] + ends[1]) / 2
    count = torch.zeros_like(centre).scatter_add_(-1, bins, torch.ones_like(values))
    hits = torch.zeros_like(centre).scatter_add_(-1, bins, right.double())
    return torch.where(count > 0, hits / count.clamp_min(1), centre)


@storable("binned")
@dataclass(frozen=True, eq=False)
class Binned:
    """Bins and their frequencies: one row of them for the winner, or one for every class."""

    mode: Literal["top-label", "one-vs-rest"]
    edges: Tensor  # r b-1, float64
    frequencies: Tensor  # r b, float64

    def __call__(self, scores: Scores) -> Scores:
        if self.mode == "one-vs-rest":
            check_classes(len(self.edges), scores.logits, "histogram")
        return map_logits(scores, lambda s: map_rows(self._binned, s.logits))

    def _binned(self, logits: Tensor) -> Tensor:
        edges, frequencies = self.edges.to(logits.device), self.frequencies.to(logits.device)
        if self.mode == "top-label":
            confidence, _ = top_label(logits)
            return with_confidence(logits, frequencies[0, _bins_of(confidence[None], edges)[0]])
        bins = _bins_of(logits.softmax(dim=-1).T, edges)  # c n
        # A row of zeros is a row of equals after the clamp: uniform.
        return frequencies.gather(-1, bins).T.clamp_min(NEVER).log().log_softmax(dim=-1)
