"""Every registered metric under the public laws, and every law seen to break."""

from dataclasses import dataclass
from operator import attrgetter
from typing import ClassVar

import pytest
import torch

from calispan.core.exact_sum import RowMean
from calispan.core.registry import metrics
from calispan.testing.metrics import check_metric


@pytest.mark.parametrize("name", metrics.names())
def test_laws_of_metrics(name):
    check_metric(name)


class FloatMean:
    """A mean in float32, as one would write it first."""

    def __init__(self, of):
        self.of, self.total, self.count = of, 0.0, 0

    def update(self, rows):
        self.total += float(self.of(rows).float().sum())
        self.count += len(rows)

    def merge(self, other):
        self.total += other.total
        self.count += other.count

    def compute(self):
        return self.total / self.count


class ForgetfulMean(RowMean):
    def merge(self, other):
        self.sum.merge(other.sum)


class LongestChunk(FloatMean):
    """The last row of the longest chunk: shards agree with one pass, as they hold that row at the same place."""

    def update(self, rows):
        if len(rows) > self.count:
            self.total, self.count = float(self.of(rows)[-1]), len(rows)

    def merge(self, other):
        if other.count > self.count:
            self.total, self.count = other.total, other.count

    def compute(self):
        return self.total


def class_number(rows):
    return rows.predicted.double()


def shifted_labels(rows):
    rows.labels.add_(1).remainder_(5)
    return rows.correct


def nothing(rows):
    return torch.zeros(len(rows))


def always(rows):
    return torch.ones(len(rows))


def ratio(rows):
    return rows.span / rows.zero_shot_span


BROKEN = {
    "merged in the order": (FloatMean, "confidence", {}),
    "bit for bit what one pass gives": (ForgetfulMean, "confidence", {}),
    "order of rows does not matter": (LongestChunk, "confidence", {}),
    "not declared as needed is not asked for": (RowMean, "nll", {}),
    "labels are declared": (RowMean, "confidence", {"needs_labels": True}),
    "zero-shot logits are declared": (RowMean, "confidence", {"needs_zero_shot": True}),
    "renaming the classes": (RowMean, class_number, {}),
    "are not changed": (RowMean, shifted_labels, {"needs_labels": True}),
    "give a finite number, not: A row gave": (RowMean, ratio, {"needs_zero_shot": True}),
    "perfectly calibrated rows give zero": (RowMean, always, {"zero_when_calibrated": True}),
    "sharpened threefold": (RowMean, nothing, {"zero_when_calibrated": True}),
    "lower_is_better": (RowMean, "confidence", {"lower_is_better": "yes"}),
}


@pytest.mark.parametrize("law", BROKEN)
def test_every_law_can_break(law):
    state, of, declared = BROKEN[law]

    @dataclass(frozen=True)
    class Broken:
        needs_labels: ClassVar[bool] = declared.get("needs_labels", False)
        needs_zero_shot: ClassVar[bool] = declared.get("needs_zero_shot", False)
        lower_is_better: ClassVar[bool | None] = declared.get("lower_is_better")
        zero_when_calibrated: ClassVar[bool] = declared.get("zero_when_calibrated", False)

        def start(self):
            return state(attrgetter(of) if isinstance(of, str) else of)

    with pytest.raises(AssertionError, match=law):
        check_metric(Broken())
