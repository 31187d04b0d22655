"""Sums without rounding: float64 values as whole steps of 2^-40, so any order and any split gives the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from calispan.core.errors import InputError

if TYPE_CHECKING:
    from calispan.core.rows import Rows

_STEPS = 2**40  # steps in one unit: a value moves by at most 2^-41 when it is put on the grid
_MANY = 2**22  # rows added at once; so many values below _LARGEST fill at most 62 bits
_LARGEST = 2.0**40


class ExactSums:
    """Some sums side by side, each exact: an integer part and a count of steps of 2^-40, on the CPU."""

    def __init__(self, size: int = 1) -> None:
        self.whole = torch.zeros(size, dtype=torch.int64)
        self.steps = torch.zeros(size, dtype=torch.int64)  # 0 <= steps < _STEPS

    def add(self, values: Tensor, index: Tensor | None = None) -> None:
        """Add `values` [n] to the sums that `index` [n] names; without an index, to the only sum."""
        for start in range(0, len(values), _MANY):
            part = values[start : start + _MANY]
            where = None if index is None else index[start : start + _MANY]
            if part.is_floating_point():
                exact = part.double()
                largest = float(exact.abs().amax())
                if not largest < _LARGEST:  # NaN compares as false and so lands here too
                    raise InputError(
                        f"A row gave {largest}, which cannot be summed exactly. Logits must be finite, with "
                        "differences below 1e12; clamp log-probabilities of zero."
                    )
                floor = exact.floor()
                self._take(self.whole, floor.long(), where)
                self._take(self.steps, ((exact - floor) * _STEPS).round_().long(), where)
            else:
                self._take(self.whole, part.long(), where)
            self._carry()

    def merge(self, other: ExactSums) -> None:
        self.whole += other.whole
        self.steps += other.steps
        self._carry()

    def totals(self) -> Tensor:
        """The sums, each rounded once. [size]"""
        return self.whole.double() + self.steps.double() / _STEPS

    def total(self) -> float:
        return float(self.totals()[0])

    @staticmethod
    def _take(sums: Tensor, integers: Tensor, index: Tensor | None) -> None:
        if index is None:
            sums += int(integers.sum())
        else:
            here = torch.zeros(len(sums), dtype=torch.int64, device=integers.device)
            sums += here.index_add_(0, index, integers).cpu()

    def _carry(self) -> None:
        self.whole += self.steps // _STEPS
        self.steps %= _STEPS


class RowMean:
    """The state of a metric that is a mean over rows: one exact sum and a count."""

    def __init__(self, of: Callable[[Rows], Tensor]) -> None:
        self.of = of  # a plain function, so that the state can travel between processes
        self.sum = ExactSums()
        self.count = 0

    def update(self, rows: Rows) -> None:
        self.sum.add(self.of(rows))
        self.count += len(rows)

    def merge(self, other: Self) -> None:
        self.sum.merge(other.sum)
        self.count += other.count

    def compute(self) -> float:
        return self.sum.total() / self.count if self.count else float("nan")

    def terms(self, rows: Rows) -> Tensor:
        """What is averaged, row by row. [n 1]"""
        return self.of(rows).double()[:, None]

    @staticmethod
    def of_means(means: Tensor) -> Tensor:
        """The metric from the means of its terms. [... 1] -> [...]"""
        return means[..., 0]
