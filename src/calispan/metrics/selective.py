"""Selective prediction: does confidence tell right rows from wrong ones? AUROC, AURC, coverage and accuracy there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from calispan.core.errors import RecipeError
from calispan.core.exact_sum import RowMean
from calispan.core.kept_rows import KeptRows, Ranking
from calispan.core.registry import metric
from calispan.core.rows import Rows


@metric("auroc", paper="Hendrycks and Gimpel 2017")
@dataclass(frozen=True)
class CorrectnessAuroc:
    """Chance that a correct row is more confident than a wrong one; equal confidence counts half.

    0.5 where all rows are correct, or all wrong: there is nothing to tell apart. Exact, not O(bins): keeps 5 bytes a
    row (9 for float64 logits).
    """

    needs_labels: ClassVar[bool] = True
    needs_zero_shot: ClassVar[bool] = False
    lower_is_better: ClassVar[bool | None] = False

    def start(self) -> KeptRows:
        return KeptRows(_auroc)


@metric("aurc", paper="Geifman and El-Yaniv 2017")
@dataclass(frozen=True)
class AreaUnderRiskCoverage:
    """Error rate of the k most confident rows, averaged over all k.

    Among equal confidences every order is as good as another; the mean over orders is taken. Exact, not O(bins):
    keeps 5 bytes a row (9 for float64 logits).
    """

    needs_labels: ClassVar[bool] = True
    needs_zero_shot: ClassVar[bool] = False
    lower_is_better: ClassVar[bool | None] = True

    def start(self) -> KeptRows:
        return KeptRows(_aurc)


@metric("coverage-at")
@dataclass(frozen=True)
class CoverageAt:
    """Share of rows whose confidence reaches a threshold."""

    threshold: float = 0.9

    needs_labels: ClassVar[bool] = False
    needs_zero_shot: ClassVar[bool] = False
    lower_is_better: ClassVar[bool | None] = None

    def __post_init__(self) -> None:
        if not 0 <= self.threshold <= 1:
            raise RecipeError(f"threshold is {self.threshold}; wanted a confidence within 0..1, such as 0.9.")

    def start(self) -> RowMean:
        return RowMean(self.reached)

    def reached(self, rows: Rows) -> Tensor:
        """[n]"""
        return rows.confidence >= self.threshold


@metric("accuracy-at")
@dataclass(frozen=True)
class AccuracyAt:
    """Accuracy of the most confident share of the rows.

    The last row may belong in part, and so may a group of equal confidences: they count pro rata. Exact, not
    O(bins): keeps 5 bytes a row (9 for float64 logits).
    """

    coverage: float = 0.8

    needs_labels: ClassVar[bool] = True
    needs_zero_shot: ClassVar[bool] = False
    lower_is_better: ClassVar[bool | None] = False

    def __post_init__(self) -> None:
        if not 0 < self.coverage <= 1:
            raise RecipeError(f"coverage is {self.coverage}; wanted a share of the rows within 0..1, such as 0.8.")

    def start(self) -> KeptRows:
        return KeptRows(self.of)

    def of(self, ranking: Ranking) -> float:
        """The accuracy in a whole ranking."""
        places = torch.tensor([self.coverage * ranking.rows], dtype=torch.float64)
        _, hits = ranking.falling().up_to(places)
        return float(hits / places)


def _auroc(ranking: Ranking) -> float:
    misses = ranking.counts - ranking.hits
    right, wrong = int(ranking.hits.sum()), int(misses.sum())
    if not right or not wrong:
        return 0.5
    below = misses.cumsum(0) - misses
    # Twice the number of pairs in order, ties once: whole numbers until the last division.
    return int((ranking.hits * (2 * below + misses)).sum()) / (2 * right * wrong)


def _aurc(ranking: Ranking) -> float:
    places = torch.arange(1, ranking.rows + 1)
    _, hits = ranking.falling().up_to(places)
    return float((1 - hits / places).sum() / ranking.rows)
