"""Confidence as such: its mean, and its mean minus accuracy with the sign kept."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import ClassVar

from torch import Tensor

from calispan.core.exact_sum import RowMean
from calispan.core.registry import metric
from calispan.core.rows import Rows


@metric("mean-confidence")
@dataclass(frozen=True)
class MeanConfidence:
    """Mean probability of the predicted class."""

    needs_labels: ClassVar[bool] = False
    needs_zero_shot: ClassVar[bool] = False
    lower_is_better: ClassVar[bool | None] = None

    def start(self) -> RowMean:
        return RowMean(attrgetter("confidence"))


@metric("overconfidence")
@dataclass(frozen=True)
class Overconfidence:
    """Mean confidence minus accuracy: above 0 the model claims more than it holds, below 0 less."""

    needs_labels: ClassVar[bool] = True
    needs_zero_shot: ClassVar[bool] = False
    lower_is_better: ClassVar[bool | None] = None
    zero_when_calibrated: ClassVar[bool] = True

    def start(self) -> RowMean:
        return RowMean(_excess)


def _excess(rows: Rows) -> Tensor:
    return rows.confidence - rows.correct.double()
