"""Kept rows: for metrics that need every confidence in order, and so cannot live in a few numbers.

A row costs 5 bytes (a float32 confidence and a bool; 9 where logits are float64): 50 MB for ten million rows. Values
that are equal are treated as one group, so the order of rows and shards never shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from calispan.core.rows import Rows


@dataclass(frozen=True, eq=False)
class Ranking:
    """Rows grouped by confidence, in rising order. Inside a group rows stand in no order, so a group's hits count as
    spread evenly over its places."""

    confidence: Tensor  # g, float64, distinct
    counts: Tensor  # g
    hits: Tensor  # g

    @staticmethod
    def of(confidence: Tensor, correct: Tensor) -> Ranking:
        values, group, counts = torch.unique(confidence, return_inverse=True, return_counts=True)
        return Ranking(values.double(), counts, torch.bincount(group[correct], minlength=len(values)))

    @property
    def rows(self) -> int:
        return int(self.counts.sum())

    def falling(self) -> Ranking:
        """The most confident group first."""
        return Ranking(self.confidence.flip(0), self.counts.flip(0), self.hits.flip(0))

    def up_to(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Sums of confidence and of hits over the first so many rows, a place inside a group taken pro rata. [p]"""
        ends = self.counts.cumsum(0)  # g
        group = torch.searchsorted(ends, places.contiguous()).clamp_(max=len(ends) - 1)
        share = places - (ends - self.counts)[group]  # rows of the group that are in
        confidence = (self.confidence * self.counts).cumsum(0) - self.confidence * self.counts
        hits = self.hits.cumsum(0) - self.hits
        return (
            confidence[group] + self.confidence[group] * share,
            hits[group] + self.hits[group].double() / self.counts[group] * share,
        )


class KeptRows:
    """The state of a metric that reads the whole ranking."""

    def __init__(self, of: Callable[[Ranking], float]) -> None:
        self.of = of  # a plain function or a recipe's method, so that the state can travel between processes
        self._confidence: list[Tensor] = []
        self._correct: list[Tensor] = []

    def update(self, rows: Rows) -> None:
        self._confidence.append(rows.confidence.to(rows.precision).cpu())
        self._correct.append(rows.correct.cpu())

    def merge(self, other: Self) -> None:
        self._confidence += other._confidence
        self._correct += other._correct

    def compute(self) -> float:
        return self.of(self.ranking())

    def ranking(self) -> Ranking:
        return Ranking.of(torch.cat(self._confidence), torch.cat(self._correct))
