"""Calibration error in bins of equal mass: adaptive (Nixon et al. 2019) and debiased (Kumar et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from calispan.core.kept_rows import KeptRows, Ranking
from calispan.core.registry import metric
from calispan.core.reliability import check_bins


@metric("ace", paper="Nixon et al. 2019")
@dataclass(frozen=True)
class AdaptiveCalibrationError:
    """Calibration error in bins that hold equally many rows, of the winner's confidence.

    Exact, not O(bins): keeps 5 bytes a row (9 for float64 logits). A bin's border may cut a group of equal
    confidences; the group's hits then count as spread evenly over it.
    """

    bins: int = 15

    needs_labels: ClassVar[bool] = True
    needs_zero_shot: ClassVar[bool] = False
    lower_is_better: ClassVar[bool | None] = True
    zero_when_calibrated: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_bins(self.bins)

    def start(self) -> KeptRows:
        return KeptRows(self.of)

    def of(self, ranking: Ranking) -> float:
        """The error of a whole ranking."""
        borders = torch.arange(self.bins + 1) * ranking.rows // self.bins
        confidence, hits = ranking.up_to(borders)
        return float((confidence.diff() - hits.diff()).abs().sum() / ranking.rows)


@metric("debiased-ece", paper="Kumar et al. 2019")
@dataclass(frozen=True)
class DebiasedCalibrationError:
    """Root mean squared calibration error in equal-mass bins, less what label noise alone would add.

    sqrt(max(0, sum_m n_m/N [(conf_m - acc_m)^2 - acc_m (1 - acc_m) / (n_m - 1)])). Bin borders lie half-way between
    neighbouring rows; bins of one row give nothing; with fewer distinct confidences than a quarter of the rows, each
    has a bin of its own. Exact, not O(bins): keeps 5 bytes a row (9 for float64 logits).
    """

    bins: int = 15

    needs_labels: ClassVar[bool] = True
    needs_zero_shot: ClassVar[bool] = False
    lower_is_better: ClassVar[bool | None] = True
    zero_when_calibrated: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_bins(self.bins)

    def start(self) -> KeptRows:
        return KeptRows(self.of)

    def of(self, ranking: Ranking) -> float:
        """The error of a whole ranking."""
        group = self._bins(ranking)
        size = int(group[-1]) + 1
        confidence, counts, hits = (
            torch.zeros(size, dtype=torch.float64).index_add_(0, group, part.double())
            for part in (ranking.confidence * ranking.counts, ranking.counts, ranking.hits)
        )
        accuracy = hits / counts.clamp_min(1)
        noise = accuracy * (1 - accuracy) / (counts - 1).clamp_min(1)
        squares = (confidence / counts.clamp_min(1) - accuracy) ** 2 - noise
        squares = torch.where(counts < 2, 0, squares)
        return float((counts / ranking.rows * squares).sum().clamp_min(0).sqrt())

    def _bins(self, ranking: Ranking) -> Tensor:
        """The bin of every group of equal confidences, rising. [g]"""
        values, rows = ranking.confidence, ranking.rows
        if len(values) < rows / 4:
            return torch.arange(len(values))
        # As equal as can be, the larger bins first.
        bins = min(self.bins, rows)
        sizes = torch.full((bins,), rows // bins)
        sizes[: rows % bins] += 1
        last = sizes.cumsum(0)[:-1]  # places, counted from 1, of the last row of every bin but the final one
        ends = ranking.counts.cumsum(0)
        left, right = (values[torch.searchsorted(ends, place)] for place in (last, last + 1))
        return torch.searchsorted((left + right) / 2, values)
