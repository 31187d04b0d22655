"""The laws of metrics. `check_metric("ece-15")` runs them all; a broken one raises an AssertionError that names it."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from calispan.core.contracts import Metric, MetricState
from calispan.core.errors import CalispanError
from calispan.core.fingerprint import fingerprint
from calispan.core.registry import metrics
from calispan.core.rows import Rows
from calispan.core.types import Scores

CLASSES = 5
CUTS = (0, 1, 70, 71, 200, 503)  # shards of uneven size, one row among them


def check_metric(spec: str | Metric, *, device: str = "cpu") -> None:
    """Every law of a metric. A calibration error says so by a class variable `zero_when_calibrated = True`."""
    recipe = metrics.build(spec) if isinstance(spec, str) else spec
    assert fingerprint(recipe) == fingerprint(replace(recipe)), "a recipe is a frozen dataclass of plain values"  # type: ignore[type-var]
    assert recipe.lower_is_better in (True, False, None), "lower_is_better is True, False or None"
    for dtype in (torch.float64, torch.float32):
        scores, labels = drawn_rows(rows=CUTS[-1], dtype=dtype, device=device)
        kept = scores.logits.clone(), scores.zero_shot.clone(), labels.clone()
        value = measure(recipe, scores, labels)
        assert math.isfinite(value), "plain rows give a finite number"
        for now, then in zip((scores.logits, scores.zero_shot, labels), kept, strict=True):
            assert torch.equal(now, then), "the rows that came in are not changed"
        _merges(recipe, scores, labels, value)
        _forgets_the_order(recipe, scores, labels, value)
        _asks_for_what_it_declares(recipe, scores, labels, value)
        _treats_classes_alike(recipe, scores, labels, value)
    _stands_hard_rows(recipe, device)
    if getattr(recipe, "zero_when_calibrated", False):
        _is_zero_when_calibrated(recipe, device)


def measure(recipe: Metric, scores: Scores, labels: Tensor | None) -> float:
    """The metric of these rows in one pass."""
    return _fed(recipe, scores, labels).compute()


def drawn_rows(
    *, rows: int, classes: int = CLASSES, dtype: torch.dtype = torch.float64, device: str = "cpu", sharper: float = 1.0
) -> tuple[Scores, Tensor]:
    """Labels drawn from the softmax of random logits, so perfectly calibrated; then the logits are made sharper."""
    draws = torch.Generator().manual_seed(0)
    zero_shot = 2.5 * torch.randn(rows, classes, generator=draws, dtype=torch.float64)
    logits = zero_shot + torch.randn(rows, classes, generator=draws, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(dim=1), 1, generator=draws)[:, 0]
    return Scores((20 + logits * sharper).to(device, dtype), (20 + zero_shot).to(device, dtype)), labels.to(device)


def hard_rows(classes: int = CLASSES) -> Scores:
    """Flat, tied, tiny and huge rows, each against each as zero-shot logits."""
    ramp = torch.arange(classes, dtype=torch.float32)
    rows = torch.stack(
        [
            torch.zeros(classes),
            torch.full((classes,), 25.0),
            ramp.flip(0),
            (ramp // 2) * 5,  # two winners, where there are more than three classes
            ramp * 1e-30,
            (ramp - 2) * 5e3,  # +-1e4
            torch.where(ramp == 3, 1e4, -1e4),
        ]
    )
    return Scores(rows.repeat_interleave(len(rows), dim=0), rows.repeat(len(rows), 1))


def _fed(recipe: Metric, scores: Scores, labels: Tensor | None) -> MetricState:
    state = recipe.start()
    state.update(Rows(scores, labels))
    return state


def _merges(recipe: Metric, scores: Scores, labels: Tensor, value: float) -> None:
    shards = [_fed(recipe, scores.rows(slice(a, b)), labels[a:b]) for a, b in pairwise(CUTS)]
    for order in ((0, 1, 2, 3, 4), (3, 0, 4, 2, 1)):
        copies = [pickle.loads(pickle.dumps(shards[place])) for place in order]  # states travel between processes
        total: Any = copies[0]
        for other in copies[1:]:
            total.merge(other)
        assert total.compute() == value, f"shards merged in the order {order} give bit for bit what one pass gives"
    grown = recipe.start()
    for a, b in pairwise(CUTS):
        grown.update(Rows(scores.rows(slice(a, b)), labels[a:b]))
    assert grown.compute() == value, "chunks give bit for bit what one pass gives"


def _forgets_the_order(recipe: Metric, scores: Scores, labels: Tensor, value: float) -> None:
    order = torch.randperm(len(scores), generator=torch.Generator().manual_seed(1)).to(labels.device)
    assert measure(recipe, scores.rows(order), labels[order]) == value, "the order of rows does not matter"


def _asks_for_what_it_declares(recipe: Metric, scores: Scores, labels: Tensor, value: float) -> None:
    """What it does not declare can be left out; what it declares matters."""
    poorer = Scores(scores.logits, scores.zero_shot if recipe.needs_zero_shot else None)
    try:
        found = measure(recipe, poorer, labels if recipe.needs_labels else None)
    except CalispanError as error:
        raise AssertionError(f"what is not declared as needed is not asked for, but: {error}") from error
    assert found == value, "what is not declared as needed does not matter"
    if recipe.needs_labels:
        wrong = (scores.logits.argmax(dim=1) + 1) % scores.logits.shape[1]
        assert measure(recipe, scores, wrong) != value, "labels are declared as needed, and so they matter"
    if recipe.needs_zero_shot:
        other = Scores(scores.logits, scores.zero_shot.square())
        assert measure(recipe, other, labels) != value, "zero-shot logits are declared as needed, and so they matter"


def _treats_classes_alike(recipe: Metric, scores: Scores, labels: Tensor, value: float) -> None:
    order = torch.tensor([3, 0, 4, 1, 2], device=labels.device)
    renamed = measure(recipe, scores.select(order), order.argsort()[labels])
    digits = 1e-10 if scores.logits.dtype == torch.float64 else 1e-5
    assert math.isclose(renamed, value, rel_tol=digits, abs_tol=digits), "renaming the classes changes nothing"


def _stands_hard_rows(recipe: Metric, device: str) -> None:
    hard = hard_rows().to(torch.device(device))
    kinds = {
        "flat, tied and huge rows": hard,
        "the same in float64": Scores(hard.logits.double(), hard.zero_shot.double()),
        "float16 rows": Scores(hard.logits.half(), hard.zero_shot.half()),
        "one class": Scores(hard.logits[:, :1], hard.zero_shot[:, :1]),
        "flat rows alone": Scores(hard.logits[:1], hard.zero_shot[:1]),
    }
    for kind, scores in kinds.items():
        labels = torch.arange(len(scores), device=device) % scores.logits.shape[1]
        try:
            value = measure(recipe, scores, labels)
        except CalispanError as error:
            raise AssertionError(f"{kind} give a finite number, not: {error}") from error
        assert math.isfinite(value), f"{kind} give a finite number, not {value}"


def _is_zero_when_calibrated(recipe: Metric, device: str) -> None:
    """Within 0.05, which noise of 20,000 rows does not reach even in a bin of 300; sharpened, beyond it."""
    fair = abs(measure(recipe, *drawn_rows(rows=20_000, classes=3, device=device)))
    assert fair < 0.05, f"perfectly calibrated rows give zero, but it is {fair:.4f}"
    sharp = abs(measure(recipe, *drawn_rows(rows=20_000, classes=3, device=device, sharper=3.0)))
    assert sharp > 0.05, f"rows sharpened threefold are miscalibrated, but it is {sharp:.4f}"
