"""Reliability: how often rows are right against how sure they are, bin by bin (Guo et al. 2017).

Bin m of M is ((m-1)/M, m/M], left-open and right-closed; the first also holds confidence 0. Confidence is
compared with the float64 numbers m/M, so 7/25 belongs to bin 7 of 25; ceil(25 * confidence), as it is often written,
rounds its way into bin 8.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from calispan.core.errors import RecipeError
from calispan.core.exact_sum import ExactSums
from calispan.core.rows import Rows


def check_bins(bins: int) -> None:
    """For the recipes that have bins."""
    if bins < 1:
        raise RecipeError(f"bins is {bins}; wanted 1 or more, such as 15.")


def bin_of(confidence: Tensor, bins: int) -> Tensor:
    """Index of the bin of every confidence in [0, 1], as int64."""
    inner = torch.arange(1, bins, device=confidence.device, dtype=torch.float64) / bins
    # An edge belongs to the bin on its left: bucketize counts the edges that lie strictly below.
    return torch.bucketize(confidence.double(), inner)


class Reliability:
    """What a reliability diagram and the binned errors need, in O(bins): rows, hits and summed confidence of a bin."""

    def __init__(self, bins: int = 15) -> None:
        check_bins(bins)
        self.counts = torch.zeros(bins, dtype=torch.int64)
        self.hits = torch.zeros(bins, dtype=torch.int64)
        self._confidence = ExactSums(bins)

    @property
    def bins(self) -> int:
        return len(self.counts)

    @property
    def confidence(self) -> Tensor:
        """Mean confidence of every bin; NaN where a bin is empty. [bins]"""
        return self._confidence.totals() / self.counts

    @property
    def accuracy(self) -> Tensor:
        """Share of correct rows in every bin; NaN where a bin is empty. [bins]"""
        return self.hits.double() / self.counts

    @property
    def gaps(self) -> Tensor:
        """Mean confidence minus accuracy of every bin; 0 where a bin is empty. [bins]"""
        return (self._confidence.totals() - self.hits) / self.counts.clamp_min(1)

    def update(self, rows: Rows) -> None:
        confidence, correct = rows.confidence, rows.correct
        index = bin_of(confidence, self.bins)
        self.counts += torch.bincount(index, minlength=self.bins).cpu()
        self.hits += torch.bincount(index[correct], minlength=self.bins).cpu()
        self._confidence.add(confidence, index)

    def merge(self, other: Self) -> None:
        self.counts += other.counts
        self.hits += other.hits
        self._confidence.merge(other._confidence)

    def compute(self) -> float:
        """Expected calibration error: the gaps, weighted by the rows of their bins."""
        return float((self.gaps.abs() * self.counts).sum() / self.counts.sum())

    def terms(self, rows: Rows) -> Tensor:
        """Per row: 1 and confidence minus hit, in the columns of its bin. [n 2*bins]"""
        confidence = rows.confidence
        index = bin_of(confidence, self.bins)[:, None]
        values = torch.stack([torch.ones_like(confidence), confidence - rows.correct.double()], dim=1)
        out = torch.zeros(len(values), 2 * self.bins, dtype=torch.float64, device=confidence.device)
        return out.scatter_(1, torch.cat([index, index + self.bins], dim=1), values)

    def of_means(self, means: Tensor) -> Tensor:
        """The error from the means of the terms. [... 2*bins] -> [...]"""
        return means[..., self.bins :].abs().sum(dim=-1)
