"""Accuracy: the share of rows whose first largest logit is the label's."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import ClassVar

from calispan.core.exact_sum import RowMean
from calispan.core.registry import metric


@metric("accuracy")
@dataclass(frozen=True)
class Accuracy:
    """Share of rows whose predicted class is the label; of several largest logits the first predicts."""

    needs_labels: ClassVar[bool] = True
    needs_zero_shot: ClassVar[bool] = False
    lower_is_better: ClassVar[bool | None] = False

    def start(self) -> RowMean:
        return RowMean(attrgetter("correct"))
