"""How sure is a metric? Bootstrap intervals, and a paired test between two calibrations of the same rows, by scipy.

Rows are resampled, never the logits walked again: a metric that is a function of row means (its state has `terms` and
`of_means`) is computed for many resamples in one matrix product, any other from its looked-up numbers row by row.

Intervals are of the basic kind, 2 * value - quantile. A binned error is biased upwards, its resampled copies twice so;
the basic interval takes the bias off. In simulations with 2,000 rows and a true error of 0.0175, a nominal 95 percent
held the truth in 90 percent of cases, and the percentile interval in 1 percent. An end may leave the metric's range.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from calispan.core.contracts import Metric, MetricState
from calispan.core.errors import InputError
from calispan.core.evaluation import check
from calispan.core.registry import metrics
from calispan.core.rows import Rows
from calispan.core.tiling import serial_torch
from calispan.core.types import Arrayish, Scores

Array = np.ndarray[Any, Any]

_BATCH_NUMBERS = 1 << 22  # row numbers of the resamples at hand


@runtime_checkable
class OfMeans(Protocol):
    """A metric state that is a function of row means."""

    def terms(self, rows: Rows) -> Tensor:
        """What is averaged. [n k]"""
        ...

    def of_means(self, means: Tensor) -> Tensor:
        """[... k] -> [...]"""
        ...


@dataclass(frozen=True)
class Interval:
    """A metric's value and the ends of its confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """A metric of two calibrations of the same rows; `difference` is second minus first, with its interval.

    `p_value` is the chance of a difference at least this far from zero if the two were exchangeable row by row.
    """

    first: float
    second: float
    difference: float
    low: float
    high: float
    p_value: float


def confidence_interval(
    scores: Scores,
    labels: Arrayish | None,
    metric: str | Metric = "ece-15",
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Interval:
    """Bootstrap interval of a metric: rows drawn with replacement, `resamples` times."""
    with serial_torch() as threads:
        measured = _Measured(metric, scores, labels, threads)
        low, high = _bootstrap(measured.of_draws, len(measured.rows), level, resamples, seed)
    return Interval(measured.value, low, high)


def compare(
    first: Scores,
    second: Scores,
    labels: Arrayish | None,
    metric: str | Metric = "ece-15",
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Comparison:
    """Whether two calibrations of the same rows differ in a metric.

    The interval draws the same rows of both. The p-value is a paired permutation test's: each row's two scores change
    places or not, at random.
    """
    if first.logits.shape != second.logits.shape:
        raise InputError(
            f"Scores of shape {tuple(first.logits.shape)} came to be compared with {tuple(second.logits.shape)}; "
            "wanted two scores of the same rows and classes."
        )
    with serial_torch() as threads:
        one, two = _Measured(metric, first, labels, threads), _Measured(metric, second, labels, threads)
        rows = len(one.rows)

        def difference(index: Array) -> Array:
            return two.of_draws(index) - one.of_draws(index)

        low, high = _bootstrap(difference, rows, level, resamples, seed)
        p_value = _swap_test(one, two, rows, resamples, seed)
    return Comparison(one.value, two.value, two.value - one.value, low, high, p_value)


class _Measured:
    """A metric of some rows, and of draws from them."""

    def __init__(
        self, metric: str | Metric, scores: Scores, labels: Arrayish | None, threads: int | None = None
    ) -> None:
        self.metric = metrics.build(metric)
        known = check({metric if isinstance(metric, str) else metrics.name_of(metric): self.metric}, scores, labels)
        self.rows = Rows(scores, known, threads=threads)
        if len(self.rows) < 2:
            raise InputError(f"{len(self.rows)} rows came to resample; wanted 2 or more.")
        state = self.metric.start()
        state.update(self.rows)
        self.value = state.compute()
        self.means = state if isinstance(state, OfMeans) else None
        self.terms: Array = np.empty(0) if self.means is None else self.means.terms(self.rows).cpu().numpy()  # n k

    def of_draws(self, index: Array) -> Array:
        """The metric of each row of draws. [b, n] -> [b]"""
        if self.means is None:
            return np.array([self._again([(self, draw)]) for draw in index])
        draws, rows = index.shape
        places = index + rows * np.arange(draws)[:, None]
        times = np.bincount(places.ravel(), minlength=draws * rows).reshape(draws, rows)  # how often each row came
        return self._of_sums(times @ self.terms)

    def with_swaps(self, other: _Measured, swapped: Array) -> Array:
        """The metric with the other's score in the swapped rows. [b, n] -> [b]"""
        if self.means is None:
            return np.array([self._again([(self, np.flatnonzero(~s)), (other, np.flatnonzero(s))]) for s in swapped])
        return self._of_sums(self.terms.sum(axis=0) + swapped @ (other.terms - self.terms))

    def _of_sums(self, sums: Array) -> Array:
        assert self.means is not None
        values: Array = self.means.of_means(torch.from_numpy(sums / len(self.rows))).numpy()
        return values

    def _again(self, parts: list[tuple[_Measured, Array]]) -> float:
        state: MetricState = self.metric.start()
        for source, index in parts:
            state.update(source.rows.take(torch.tensor(index, device=source.rows.scores.logits.device)))
        return state.compute()


def _bootstrap(
    statistic: Callable[[Array], Array], rows: int, level: float, resamples: int, seed: int
) -> tuple[float, float]:
    from scipy import stats

    if not 0 < level < 1:
        raise InputError(f"level is {level}; wanted a probability between 0 and 1, such as 0.95.")
    if resamples < 2:
        raise InputError(f"resamples is {resamples}; wanted 2 or more, such as 1000.")
    # What scipy draws from is the numbers of the rows.
    found = stats.bootstrap(
        (np.arange(rows),),
        lambda index, axis: statistic(index.reshape(-1, rows)).reshape(index.shape[:-1]),
        n_resamples=resamples,
        batch=max(1, _BATCH_NUMBERS // rows),
        vectorized=True,
        axis=-1,
        confidence_level=level,
        method="basic",
        random_state=np.random.default_rng(seed),
    ).confidence_interval
    return float(found.low), float(found.high)


def _swap_test(one: _Measured, two: _Measured, rows: int, resamples: int, seed: int) -> float:
    from scipy import stats

    def difference(left: Array, right: Array, axis: int) -> Array:
        swapped = left.reshape(-1, rows) >= rows  # the left place holds a row of the second scores
        return (two.with_swaps(one, swapped) - one.with_swaps(two, swapped)).reshape(left.shape[:-1])

    found = stats.permutation_test(
        (np.arange(rows), np.arange(rows) + rows),
        difference,
        permutation_type="samples",
        vectorized=True,
        n_resamples=resamples,
        batch=max(1, _BATCH_NUMBERS // rows),
        axis=-1,
        random_state=np.random.default_rng(seed),
    )
    return float(found.pvalue)
