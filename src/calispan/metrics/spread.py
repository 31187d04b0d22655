"""Norm and range of logits, and range inflation (Murugesan et al. 2024): the alarm that needs no labels."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor

from calispan.core.errors import RecipeError
from calispan.core.exact_sum import RowMean
from calispan.core.registry import metric
from calispan.core.rows import Rows

PAPER = "Murugesan et al. 2024"


@metric("norm-mean", paper=PAPER)
@dataclass(frozen=True)
class NormMean:
    """Mean Euclidean length of a row's logits."""

    needs_labels: ClassVar[bool] = False
    needs_zero_shot: ClassVar[bool] = False
    lower_is_better: ClassVar[bool | None] = None

    def start(self) -> RowMean:
        return RowMean(attrgetter("norm"))


@metric("range-mean", paper=PAPER)
@dataclass(frozen=True)
class RangeMean:
    """Mean range of a row's logits, largest minus smallest."""

    needs_labels: ClassVar[bool] = False
    needs_zero_shot: ClassVar[bool] = False
    lower_is_better: ClassVar[bool | None] = None

    def start(self) -> RowMean:
        return RowMean(attrgetter("span"))


@metric(
    "spread-quantile",
    paper=PAPER,
    also={
        f"{of}-p{percent:02d}": {"of": of, "quantile": percent / 100}
        for of in ("norm", "range")
        for percent in (5, 50, 95)
    },
)
@dataclass(frozen=True)
class SpreadQuantile:
    """Quantile over rows of the logit range or norm, linear between neighbouring rows.

    Exact, not O(bins): keeps 4 bytes a row (8 for float64 logits).
    """

    of: Literal["range", "norm"] = "range"
    quantile: float = 0.5

    needs_labels: ClassVar[bool] = False
    needs_zero_shot: ClassVar[bool] = False
    lower_is_better: ClassVar[bool | None] = None

    def __post_init__(self) -> None:
        if self.of not in ("range", "norm"):
            raise RecipeError(f"of is '{self.of}'; wanted 'range' or 'norm'.")
        if not 0 <= self.quantile <= 1:
            raise RecipeError(f"quantile is {self.quantile}; wanted a number within 0..1, such as 0.95.")

    def start(self) -> KeptNumbers:
        return KeptNumbers("span" if self.of == "range" else "norm", self.quantile)


class KeptNumbers:
    """One number of every row, and a quantile of them."""

    def __init__(self, column: str, quantile: float) -> None:
        self.column = column
        self.quantile = quantile
        self._kept: list[Tensor] = []

    def update(self, rows: Rows) -> None:
        self._kept.append(getattr(rows, self.column).to(rows.precision).cpu())

    def merge(self, other: Self) -> None:
        self._kept += other._kept

    def compute(self) -> float:
        return float(np.quantile(torch.cat(self._kept).double().numpy(), self.quantile))


@metric("range-inflation", paper=PAPER)
@dataclass(frozen=True)
class RangeInflation:
    """Mean logit range over mean zero-shot range of the same rows: above 1, adaptation has inflated confidence.

    A ratio of means, not a mean of ratios: a row whose zero-shot logits are nearly flat would rule the latter. Where
    all zero-shot rows are flat it is 1 if the logits are flat too, else infinite.
    """

    needs_labels: ClassVar[bool] = False
    needs_zero_shot: ClassVar[bool] = True
    lower_is_better: ClassVar[bool | None] = None

    def start(self) -> SpanRatio:
        return SpanRatio()


class SpanRatio:
    """Two means over the same rows, and their quotient."""

    def __init__(self) -> None:
        self.span = RowMean(attrgetter("span"))
        self.zero_shot = RowMean(attrgetter("zero_shot_span"))

    def update(self, rows: Rows) -> None:
        self.span.update(rows)
        self.zero_shot.update(rows)

    def merge(self, other: Self) -> None:
        self.span.merge(other.span)
        self.zero_shot.merge(other.zero_shot)

    def compute(self) -> float:
        return float(self.of_means(torch.tensor([self.span.compute(), self.zero_shot.compute()], dtype=torch.float64)))

    def terms(self, rows: Rows) -> Tensor:
        """[n 2]"""
        return torch.stack([rows.span, rows.zero_shot_span], dim=1)

    @staticmethod
    def of_means(means: Tensor) -> Tensor:
        """[... 2] -> [...]"""
        span, zero_shot = means.unbind(dim=-1)
        return torch.where((span == 0) & (zero_shot == 0), 1, span / zero_shot)
