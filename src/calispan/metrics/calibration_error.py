"""Calibration error in equal-width bins (Naeini et al. 2015, Guo et al. 2017), its maximum, and its class-wise form.

Bins are left-open and right-closed, ((m-1)/M, m/M]; see `calispan.core.reliability`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from calispan.core.exact_sum import ExactSums
from calispan.core.registry import metric
from calispan.core.reliability import Reliability, bin_of, check_bins
from calispan.core.rows import Rows


@metric(
    "ece",
    paper="Naeini et al. 2015, Guo et al. 2017",
    also={"ece-10": {"bins": 10}, "ece-15": {"bins": 15}, "ece-20": {"bins": 20}},
)
@dataclass(frozen=True)
class ExpectedCalibrationError:
    """Gap between confidence and accuracy in equal-width bins, weighted by the rows of each bin."""

    bins: int = 15

    needs_labels: ClassVar[bool] = True
    needs_zero_shot: ClassVar[bool] = False
    lower_is_better: ClassVar[bool | None] = True
    zero_when_calibrated: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_bins(self.bins)

    def start(self) -> Reliability:
        return Reliability(self.bins)


@metric("mce", paper="Naeini et al. 2015")
@dataclass(frozen=True)
class MaximumCalibrationError:
    """Largest gap between confidence and accuracy of any equal-width bin, however few rows it holds."""

    bins: int = 15

    needs_labels: ClassVar[bool] = True
    needs_zero_shot: ClassVar[bool] = False
    lower_is_better: ClassVar[bool | None] = True
    zero_when_calibrated: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_bins(self.bins)

    def start(self) -> LargestGap:
        return LargestGap(self.bins)


class LargestGap:
    """A reliability state that answers with its worst bin."""

    def __init__(self, bins: int) -> None:
        self.reliability = Reliability(bins)

    def update(self, rows: Rows) -> None:
        self.reliability.update(rows)

    def merge(self, other: Self) -> None:
        self.reliability.merge(other.reliability)

    def compute(self) -> float:
        return float(self.reliability.gaps.abs().max())

    def terms(self, rows: Rows) -> Tensor:
        """[n 2*bins]"""
        return self.reliability.terms(rows)

    def of_means(self, means: Tensor) -> Tensor:
        """[... 2*bins] -> [...]"""
        shares, gaps = means.tensor_split(2, dim=-1)
        return torch.where(shares > 0, gaps / shares, 0).abs().amax(dim=-1)


@metric("classwise-ece", paper="Kull et al. 2019")
@dataclass(frozen=True)
class ClasswiseCalibrationError:
    """Calibration error of every class's probability, not only the winner's, averaged over classes.

    Memory is 32 bytes a class and bin, whatever the number of rows.
    """

    bins: int = 15

    needs_labels: ClassVar[bool] = True
    needs_zero_shot: ClassVar[bool] = False
    lower_is_better: ClassVar[bool | None] = True
    zero_when_calibrated: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_bins(self.bins)

    def start(self) -> ClasswiseGaps:
        return ClasswiseGaps(self.bins)


class ClasswiseGaps:
    """Summed probability minus hits in every bin of every class; the rows of a bin cancel out of its weighted gap."""

    def __init__(self, bins: int) -> None:
        self.bins = bins
        self.rows = 0
        self.probability: ExactSums | None = None  # made when the number of classes is known
        self.hits: ExactSums | None = None

    def update(self, rows: Rows) -> None:
        size = rows.classes * self.bins
        if self.probability is None or self.hits is None:
            self.probability, self.hits = ExactSums(size), ExactSums(size)
        cells = torch.arange(rows.classes, device=rows.labels.device) * self.bins
        for tile in rows.tiles():
            probabilities = tile.probabilities  # t c
            index = bin_of(probabilities, self.bins).add_(cells)
            self.probability.add(probabilities.flatten(), index.flatten())
            assert tile.labels is not None
            hit = index.gather(1, tile.labels)[:, 0]
            self.hits.add(torch.ones_like(hit), hit)
        self.rows += len(rows)

    def merge(self, other: Self) -> None:
        if other.probability is None or other.hits is None:
            return
        if self.probability is None or self.hits is None:
            self.probability, self.hits = ExactSums(len(other.hits.whole)), ExactSums(len(other.hits.whole))
        self.probability.merge(other.probability)
        self.hits.merge(other.hits)
        self.rows += other.rows

    def compute(self) -> float:
        if self.probability is None or self.hits is None:
            return float("nan")
        gaps = (self.probability.totals() - self.hits.totals()).abs()
        classes = len(gaps) // self.bins
        return float(gaps.sum() / (self.rows * classes))
