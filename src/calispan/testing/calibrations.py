"""The laws of calibrations. Call them from a plug-in's own tests; each AssertionError says which law broke."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from calispan.core import store
from calispan.core.contracts import Calibrator, Evidence, Given, ScoreMap, TrainCalibration
from calispan.core.errors import NeedsError
from calispan.core.fingerprint import fingerprint
from calispan.core.objective import Objective, cross_entropy
from calispan.core.registry import calibrators, train_calibrations
from calispan.core.types import Scores

ROWS, CLASSES = 240, 6


def check_calibrator(spec: str | Calibrator, *, device: str = "cpu") -> None:
    """Every law of a calibration after training. `spec` is a name or a recipe."""
    recipe = calibrators.build(spec) if isinstance(spec, str) else spec
    assert isinstance(recipe.needs, Evidence), "needs is one of Evidence"
    assert fingerprint(recipe) == fingerprint(replace(recipe)), "a recipe is a frozen dataclass of plain values"  # type: ignore[type-var]
    if recipe.needs:
        _refuses(lambda: recipe.fit(Given()))
    for dtype in (torch.float64, torch.float32):
        scores, labels = labelled_scores(dtype=dtype, device=device)
        fitted = recipe.fit(_evidence(recipe, scores, labels))
        again = recipe.fit(_evidence(recipe, scores, labels))
        _keeps_shape(recipe, fitted, scores)
        _works_row_by_row(fitted, scores)
        _survives_the_disk(fitted, scores)
        assert torch.equal(fitted(scores).logits, again(scores).logits), "two fits on the same evidence are equal"
        if recipe.keeps_argmax:
            _keeps_argmax(fitted, dtype, device)
        hard = hard_scores(dtype=dtype, device=device)
        assert torch.isfinite(fitted(hard).logits).all(), "flat, tied and huge rows stay finite"
        learned = recipe.fit(_evidence(recipe, hard, torch.arange(len(hard), device=device) % CLASSES))
        assert torch.isfinite(learned(scores).logits).all(), "evidence of flat, tied and huge rows can be learned from"
    _takes_one_class(recipe, device)


def check_train_calibration(spec: str | TrainCalibration, *, device: str = "cpu") -> None:
    """Every law of a calibration inside the training loss. `spec` is a name or a recipe."""
    recipe = train_calibrations.build(spec) if isinstance(spec, str) else spec
    assert fingerprint(recipe) == fingerprint(replace(recipe)), "a recipe is a frozen dataclass of plain values"  # type: ignore[type-var]
    scores, labels = labelled_scores(dtype=torch.float64, device=device)
    kept = scores.logits.clone(), scores.zero_shot.clone()
    reshaped = recipe.reshape(scores)
    assert reshaped.logits.shape == scores.logits.shape, "reshape keeps the shape"
    assert reshaped.logits.dtype == scores.logits.dtype, "reshape keeps the type"
    assert torch.equal(reshaped.zero_shot, kept[1]), "reshape leaves the zero-shot logits alone"
    assert torch.as_tensor(recipe.penalty(scores, labels)).ndim == 0, "the penalty of one problem is a scalar"
    assert torch.equal(scores.logits, kept[0]), "the scores that came in are not changed"
    _leading_axis_stays_apart(recipe, scores, labels)
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(1)).to(device)
    total, _ = _loss_and_gradient(recipe, scores, labels)
    shuffled, _ = _loss_and_gradient(recipe, scores.rows(order), labels[order])
    _close(total, shuffled, "the order of rows does not change the loss")
    for hard in _every_hard_kind(device):
        answers = torch.arange(len(hard), device=device) % hard.logits.shape[-1]
        loss, gradient = _loss_and_gradient(recipe, hard, answers)
        assert torch.isfinite(loss), "the loss of flat, tied and huge rows is finite"
        assert torch.isfinite(gradient).all(), "the gradient of flat, tied and huge rows is finite"
    with contextlib.suppress(NeedsError):  # it needs labels and says so, or does without
        recipe.penalty(scores, None)


def labelled_scores(
    *, rows: int = ROWS, classes: int = CLASSES, dtype: torch.dtype = torch.float64, device: str = "cpu"
) -> tuple[Scores, Tensor]:
    """An overconfident adapted head beside zero-shot logits, two views a row, and labels that follow neither fully."""
    draws = torch.Generator().manual_seed(0)
    labels = torch.randint(classes, (rows,), generator=draws)
    truth = torch.nn.functional.one_hot(labels, classes).double()
    shape = (rows, 2, classes)
    zero_shot = 20 + 1.5 * truth[:, None] + torch.randn(shape, generator=draws, dtype=torch.float64)
    logits = 18 + 4 * truth[:, None] + 3 * torch.randn(shape, generator=draws, dtype=torch.float64)
    views = Scores(logits.to(device, dtype), zero_shot.to(device, dtype))
    return Scores(views.logits[:, 0], views.zero_shot[:, 0], views), labels.to(device)


def hard_scores(*, dtype: torch.dtype = torch.float64, device: str = "cpu") -> Scores:
    """Every pair of a hard row of logits and a hard row of zero-shot logits: flat, tied, tiny, huge."""
    ramp, info = torch.arange(CLASSES, dtype=dtype), torch.finfo(dtype)
    rows = torch.stack(
        [
            torch.zeros(CLASSES, dtype=dtype),
            torch.full((CLASSES,), 25.0, dtype=dtype),
            ramp.flip(0),
            (ramp // 2) * 5,  # two winners
            20 + ramp * 32 * info.eps,
            ramp * 1e-30,
            ramp * info.tiny * info.eps,  # the smallest steps there are
            (ramp - 2.5) * 4e3,  # +-1e4
            torch.where(ramp == 3, 1e4, -1e4).to(dtype),
        ]
    ).to(device)
    count = len(rows)
    return Scores(rows.repeat_interleave(count, dim=0), rows.repeat(count, 1))


def _every_hard_kind(device: str) -> Iterator[Scores]:
    yield hard_scores(dtype=torch.float64, device=device)
    yield hard_scores(dtype=torch.float32, device=device)
    one = hard_scores(device=device)
    yield Scores(one.logits[:, :1], one.zero_shot[:, :1])


def _evidence(recipe: Calibrator, scores: Scores, labels: Tensor) -> Given:
    """What the recipe asked for, and nothing else."""
    width = 16
    return Given(
        held_out=(scores, labels) if Evidence.LABELS in recipe.needs else None,
        support=(scores, labels) if Evidence.SUPPORT in recipe.needs else None,
        text=torch.eye(scores.logits.shape[-1], width, device=labels.device) if Evidence.TEXT in recipe.needs else None,
    )


def _refuses(action: Callable[[], Any]) -> None:
    try:
        action()
    except NeedsError as error:
        said = str(error)
    else:
        raise AssertionError("a calibrator that is not given what it needs raises NeedsError")
    assert len(said.split()) > 5, "a missing need is told in a sentence"


def _keeps_shape(recipe: Calibrator, fitted: ScoreMap, scores: Scores) -> None:
    kept = scores.logits.clone(), scores.zero_shot.clone()
    out = fitted(scores)
    assert out.logits.shape == scores.logits.shape, "the shape is kept"
    assert out.logits.dtype == scores.logits.dtype, "the type is kept"
    assert out.logits.device == scores.logits.device, "the device is kept"
    assert torch.isfinite(out.logits).all(), "finite scores stay finite"
    assert out.views is not None, "the views come along"
    assert out.views.logits.shape == (ROWS, 2, CLASSES), "the views keep their shape"
    assert torch.equal(scores.logits, kept[0]), "the scores that came in are not changed"
    if not getattr(recipe, "changes_zero_shot", False):
        assert torch.equal(out.zero_shot, kept[1]), "the zero-shot logits are left alone"


def _works_row_by_row(fitted: ScoreMap, scores: Scores) -> None:
    whole = fitted(scores).logits
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(1)).to(whole.device)
    _close(fitted(scores.rows(order)).logits, whole[order], "the order of rows does not matter")
    parts = [fitted(scores.rows(slice(start, start + 7))).logits for start in range(0, ROWS, 7)]
    _close(torch.cat(parts), whole, "rows may come in any chunk")
    assert fitted(scores.rows(slice(0, 0))).logits.shape == (0, CLASSES), "no rows are fine too"


def _survives_the_disk(fitted: ScoreMap, scores: Scores) -> None:
    with tempfile.TemporaryDirectory() as folder:
        read = store.load(store.save(fitted, folder))
    before, after = fitted(scores), read(scores)
    assert torch.equal(before.logits, after.logits), "save and load keep every bit of the logits"
    assert torch.equal(before.zero_shot, after.zero_shot), "save and load keep every bit of the zero-shot logits"


def _keeps_argmax(fitted: ScoreMap, dtype: torch.dtype, device: str) -> None:
    """On rows whose first two are as near as floats can be, in either order, and on hard rows that are not flat."""
    draws = torch.Generator().manual_seed(2)
    logits = (20 + 5 * torch.randn(4000, CLASSES, generator=draws)).to(dtype)
    top = logits.amax(dim=-1) + 0.5
    logits[:, 1] = top
    logits[0::4, 3] = torch.nextafter(top, torch.full_like(top, torch.inf))[0::4]  # the later one wins by a step
    logits[1::4, 3] = torch.nextafter(top, torch.full_like(top, -torch.inf))[1::4]
    logits[2::4, 3] = top[2::4]  # a tie: the first one counts
    zero_shot = (20 + torch.randn(4000, CLASSES, generator=draws)).to(dtype)
    near = Scores(logits.to(device), zero_shot.to(device))
    hard = hard_scores(dtype=dtype, device=device)
    spans = [rows.amax(dim=-1) - rows.amin(dim=-1) for rows in (hard.logits, hard.zero_shot)]
    uneven = torch.minimum(*spans) >= torch.finfo(dtype).tiny
    for scores in (near, hard.rows(uneven)):
        same = fitted(scores).logits.argmax(dim=-1) == scores.logits.argmax(dim=-1)
        assert same.all(), f"the argmax is kept, but {int((~same).sum())} of {len(same)} rows changed theirs"


def _takes_one_class(recipe: Calibrator, device: str) -> None:
    scores, labels = labelled_scores(rows=20, classes=1, device=device)
    out = recipe.fit(_evidence(recipe, scores, labels))(scores)
    assert torch.isfinite(out.logits).all(), "one class alone is fine"


def _loss_and_gradient(recipe: TrainCalibration, scores: Scores, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy under the calibration, and its gradient with respect to the logits."""
    logits = scores.logits.detach().clone().requires_grad_()
    loss = Objective((recipe,))(cross_entropy, Scores(logits, scores.zero_shot), labels)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    return loss.detach(), gradient


def _leading_axis_stays_apart(recipe: TrainCalibration, scores: Scores, labels: Tensor) -> None:
    stacked = Scores(scores.logits.view(4, -1, CLASSES), scores.zero_shot.view(4, -1, CLASSES))
    answers = labels.view(4, -1)
    penalty = recipe.penalty(stacked, answers)
    assert torch.as_tensor(penalty).shape in ((), (4,)), "a leading axis gives one penalty each"
    losses, gradients = _loss_and_gradient(recipe, stacked, answers)
    mapped = recipe.reshape(stacked).logits
    for one in range(4):
        alone = Scores(stacked.logits[one], stacked.zero_shot[one])
        loss, gradient = _loss_and_gradient(recipe, alone, answers[one])
        _close(recipe.reshape(alone).logits, mapped[one], "a problem's map does not depend on its neighbours")
        _close(loss, losses[one], "a problem's loss does not depend on its neighbours")
        _close(gradient, gradients[one], "a problem's gradient does not depend on its neighbours")


def _close(one: Tensor, other: Tensor, law: str) -> None:
    digits = 1e-10 if one.dtype == torch.float64 else 1e-5
    torch.testing.assert_close(one, other, rtol=digits, atol=digits, msg=lambda said: f"{law}: {said}")
