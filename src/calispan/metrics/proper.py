"""Proper scoring rules: negative log-likelihood and the Brier score (Brier 1950), whole and of the winner alone."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import ClassVar

from torch import Tensor

from calispan.core.exact_sum import RowMean
from calispan.core.registry import metric
from calispan.core.rows import Rows


@metric("nll")
@dataclass(frozen=True)
class NegativeLogLikelihood:
    """Mean negative logarithm of the label's probability."""

    needs_labels: ClassVar[bool] = True
    needs_zero_shot: ClassVar[bool] = False
    lower_is_better: ClassVar[bool | None] = True

    def start(self) -> RowMean:
        return RowMean(attrgetter("nll"))


@metric("brier", paper="Brier 1950")
@dataclass(frozen=True)
class Brier:
    """Mean over rows of the squared difference between probabilities and the one-hot label, summed over classes."""

    needs_labels: ClassVar[bool] = True
    needs_zero_shot: ClassVar[bool] = False
    lower_is_better: ClassVar[bool | None] = True

    def start(self) -> RowMean:
        return RowMean(attrgetter("brier"))


@metric("brier-top-label")
@dataclass(frozen=True)
class BrierTopLabel:
    """Mean squared difference between the winner's confidence and whether it is right."""

    needs_labels: ClassVar[bool] = True
    needs_zero_shot: ClassVar[bool] = False
    lower_is_better: ClassVar[bool | None] = True

    def start(self) -> RowMean:
        return RowMean(_squared_miss)


def _squared_miss(rows: Rows) -> Tensor:
    return (rows.confidence - rows.correct.double()) ** 2
