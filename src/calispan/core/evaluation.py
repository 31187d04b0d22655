"""Evaluation: scores, labels and score maps in, metrics out; rows may come in any chunks, from any number of shards."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from calispan.core.contracts import Calibrator, Evidence, Given, Metric, MetricState, ScoreMap
from calispan.core.errors import CalispanWarning, InputError, NeedsError
from calispan.core.registry import calibrators
from calispan.core.registry import metrics as registered
from calispan.core.rows import Rows
from calispan.core.tiling import serial_torch, slice_rows
from calispan.core.types import Arrayish, Scores

DEFAULT_METRICS = ("accuracy", "ece-10", "ece-15", "nll", "brier", "aurc", "range-inflation")

# A block bounds what a metric may make beside the input. The first is small: it tells which passes the metrics want,
# and the later ones, also of later evaluations, make them all in one walk.
_FIRST_BLOCK = 64
_BLOCK_ROWS = 1 << 16
_BLOCK_LOGITS = 1 << 26
_SUM_TO_ONE = 1e-3
_seen_to_want: dict[tuple[Metric, ...], frozenset[str]] = {}


class Evaluation:
    """Metrics by name or recipe, fed chunk by chunk: `update`, `merge`, `compute`.

    Shards merged in any order give bit for bit what one pass gives (on a CPU; a GPU's own sums over classes may
    differ in the last bit with the number of rows at hand).
    """

    def __init__(self, metrics: str | Metric | Sequence[str | Metric] = DEFAULT_METRICS) -> None:
        given = [metrics] if isinstance(metrics, str) or not isinstance(metrics, Sequence) else metrics
        self.metrics: dict[str, Metric] = {}
        for spec in given:
            recipe = registered.build(spec)
            self.metrics[spec if isinstance(spec, str) else registered.name_of(recipe)] = recipe
        if not self.metrics:
            raise InputError(f"No metrics came to evaluate. Name some, such as {', '.join(DEFAULT_METRICS[:3])}.")
        self.states: dict[str, MetricState] = {name: recipe.start() for name, recipe in self.metrics.items()}
        self.rows = 0
        self._passes = _seen_to_want.get(tuple(self.metrics.values()), frozenset())
        self._sums_to_one = True

    def update(self, scores: Scores, labels: Arrayish | None = None, maps: Sequence[ScoreMap] = ()) -> None:
        """Take in rows, seen through the score maps in their order."""
        with serial_torch() as threads:
            self._update(scores, labels, maps, threads)

    def _update(self, scores: Scores, labels: Arrayish | None, maps: Sequence[ScoreMap], threads: int) -> None:
        known = check(self.metrics, scores, labels, before=self.rows)
        for start, stop in _blocks(len(scores), int(scores.logits.shape[-1]), first=not self._passes):
            rows = Rows(
                slice_rows(scores, start, stop),
                None if known is None else known[start:stop],
                maps,
                expect=self._passes,
                start=self.rows,
                threads=threads,
            )
            self._sums_to_one = self._sums_to_one and _look_like_probabilities(rows)
            for state in self.states.values():
                state.update(rows)
            self._passes |= rows.asked
            self.rows += len(rows)
        _seen_to_want[tuple(self.metrics.values())] = self._passes

    def merge(self, other: Self) -> None:
        """Take in the rows of another evaluation of the same metrics."""
        if self.metrics != other.metrics:
            raise InputError(
                f"Evaluations of different metrics cannot be merged: {', '.join(self.metrics)} here, "
                f"{', '.join(other.metrics)} there."
            )
        for name, state in self.states.items():
            state.merge(other.states[name])
        self.rows += other.rows
        self._sums_to_one = self._sums_to_one and other._sums_to_one

    def compute(self) -> dict[str, float]:
        """Every metric by the name it was asked under; fractions, not percent."""
        if not self.rows:
            raise InputError("There are no rows to evaluate. Pass scores of one row or more.")
        if self._sums_to_one:
            warnings.warn(
                "Every row of logits lies within 0..1 and sums to 1: these look like probabilities. Pass logits, or "
                "the logarithm of the probabilities; a softmax of probabilities is nearly flat.",
                CalispanWarning,
                stacklevel=2,
            )
        with serial_torch():
            return {name: state.compute() for name, state in self.states.items()}


def evaluate(
    scores: Scores | Arrayish,
    labels: Arrayish | None = None,
    metrics: str | Metric | Sequence[str | Metric] | None = None,
    after: str | Calibrator | ScoreMap | Sequence[str | Calibrator | ScoreMap] = (),
) -> dict[str, float]:
    """Metrics of scores, by name. `after` calibrates on the way: fitted score maps, or names that need no fitting.

    Without `metrics`, the usual ones that these scores can answer.
    """
    scores = scores if isinstance(scores, Scores) else Scores(scores)
    if metrics is None:
        metrics = [name for name in DEFAULT_METRICS if _can_answer(registered.build(name), scores, labels)]
        if not metrics:
            raise NeedsError("The usual metrics need labels or zero-shot logits, and neither came. Pass one of them.")
    evaluation = Evaluation(metrics)
    evaluation.update(scores, labels, score_maps(after))
    return evaluation.compute()


def score_maps(after: Any) -> tuple[ScoreMap, ...]:
    """Score maps from maps, and from names or recipes of calibrators that are fitted with nothing."""
    return tuple(_score_map(spec) for spec in (after if isinstance(after, (list, tuple)) else [after]))


def _score_map(spec: Any) -> ScoreMap:
    if callable(spec):
        fitted: ScoreMap = spec
        return fitted
    recipe = calibrators.build(spec)
    if recipe.needs != Evidence.NOTHING:
        raise NeedsError(
            f"Calibrator '{calibrators.name_of(recipe)}' is fitted with {str(recipe.needs.name).lower()} first. Pass "
            "the fitted score map, or calibrate the scores before you evaluate them."
        )
    return recipe.fit(Given())


def check(metrics: Mapping[str, Metric], scores: Scores, labels: Arrayish | None, *, before: int = 0) -> Tensor | None:
    """Refuse scores and labels that do not fit each other or the metrics. The labels as a tensor beside the scores."""
    if scores.logits.ndim != 2:
        raise InputError(
            f"Scores of shape {tuple(scores.logits.shape)} came; metrics want [rows, classes], one problem at a time. "
            "Pick one along the leading axes."
        )
    for name, recipe in metrics.items():
        if recipe.needs_labels and labels is None:
            raise NeedsError(f"Metric '{name}' needs labels. Pass one class index a row, or leave the metric out.")
        if recipe.needs_zero_shot and not scores.has_zero_shot:
            raise NeedsError(
                f"Metric '{name}' needs zero-shot logits of the same rows. Build Scores(logits, zero_shot), or leave "
                "the metric out."
            )
    return None if labels is None else _checked_labels(labels, scores, before)


def _can_answer(recipe: Metric, scores: Scores, labels: Arrayish | None) -> bool:
    return (labels is not None or not recipe.needs_labels) and (scores.has_zero_shot or not recipe.needs_zero_shot)


def _checked_labels(labels: Arrayish, scores: Scores, before: int) -> Tensor:
    given = torch.as_tensor(labels)
    rows, classes = scores.logits.shape
    if given.is_floating_point() or given.is_complex() or given.dtype == torch.bool or given.ndim != 1:
        raise InputError(
            f"Labels came as {given.dtype} of shape {tuple(given.shape)}; wanted one whole number a row, a class "
            f"index within 0..{classes - 1}."
        )
    if len(given) != rows:
        raise InputError(f"{len(given)} labels came for {rows} rows of scores; wanted one a row.")
    outside = (given < 0) | (given >= classes)
    if bool(outside.any()):
        row = int(outside.nonzero()[0, 0])
        raise InputError(
            f"Label {int(given[row])} of row {before + row} is outside 0..{classes - 1}, the classes of the scores. "
            "Count classes from 0, in the order of the columns."
        )
    return given.long().to(scores.logits.device)


def _blocks(rows: int, classes: int, *, first: bool) -> Iterator[tuple[int, int]]:
    size = max(1, min(_BLOCK_ROWS, _BLOCK_LOGITS // classes))
    start = 0
    while start < rows:
        stop = min(rows, start + (min(size, _FIRST_BLOCK) if first and not start else size))
        yield start, stop
        start = stop


def _look_like_probabilities(rows: Rows) -> bool:
    """Whether every row lies in 0..1 and sums to 1. Most logits are told apart by their first row."""
    first = rows.scores.logits[:1].double()
    if rows.classes < 2 or abs(float(first.sum()) - 1) > _SUM_TO_ONE:
        return False
    if bool(((rows.given_sum - 1).abs() > _SUM_TO_ONE).any()):
        return False
    tiles = (tile.given.logits for tile in rows.tiles())
    return all(float(logits.min()) >= 0 and float(logits.max()) <= 1 for logits in tiles)
