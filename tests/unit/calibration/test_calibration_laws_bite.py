"""Each law of calibrations breaks on a calibration with just that fault."""

import itertools
from dataclasses import dataclass

import pytest
import torch

from calispan.core.contracts import Evidence
from calispan.core.errors import NeedsError, StoreError
from calispan.core.store import storable
from calispan.core.types import Scores
from calispan.testing.calibrations import check_calibrator, check_train_calibration

fresh = itertools.count()


def span(logits):
    return logits.amax(-1, keepdim=True) - logits.amin(-1, keepdim=True)


def by_position(rows):
    return torch.linspace(1, 2, rows.shape[-2], dtype=rows.dtype)[:, None]


MAPS = {
    "the shape is kept": lambda s: Scores(s.logits[:, :2], None, s.views),
    "the type is kept": lambda s: s.replace(s.logits.half()),
    "finite scores stay finite": lambda s: s.replace(s.logits.exp().exp()),
    "the views come along": lambda s: Scores(s.logits, s.zero_shot),
    "the views keep their shape": lambda s: Scores(s.logits, s.zero_shot, Scores(s.views.logits[:, :1])),
    "the scores that came in are not changed": lambda s: s.replace(s.logits.mul_(0.5)),
    "the zero-shot logits are left alone": lambda s: Scores(s.logits, s.zero_shot + 1, s.views),
    "the order of rows does not matter": lambda s: s.replace(s.logits * by_position(s.logits)),
    "rows may come in any chunk": lambda s: s.replace(s.logits - s.logits.mean()),
    "flat, tied and huge rows stay finite": lambda s: s.replace(s.logits * (span(s.zero_shot) / span(s.logits))),
    "one class alone is fine": lambda s: s.replace(s.logits / (s.logits.shape[-1] - 1)),
}


@storable("faulty-map")
@dataclass(frozen=True)
class FaultyMap:
    law: str

    def __call__(self, scores):
        return MAPS[self.law](scores)


@dataclass(frozen=True)
class Faulty:
    law: str
    keeps_argmax = False
    needs = Evidence.NOTHING

    def fit(self, given):
        return FaultyMap(self.law)


@pytest.mark.parametrize("law", MAPS)
def test_laws_of_score_maps(law):
    with pytest.raises(AssertionError, match=law):
        check_calibrator(Faulty(law))


@storable("faulty-shift")
@dataclass(frozen=True)
class Shift:
    by: float

    def __call__(self, scores):
        return scores.replace(scores.logits + self.by)


@storable("faulty-forgetful")
@dataclass(frozen=True)
class Forgetful:
    """It knows something that is no field, so the disk does not."""

    def __post_init__(self):
        object.__setattr__(self, "by", float(next(fresh)))

    def __call__(self, scores):
        return scores.replace(scores.logits + self.by)


class Unnamed:
    def __call__(self, scores):
        return scores


@storable("faulty-rounding")
@dataclass(frozen=True)
class Rounding:
    def __call__(self, scores):
        return scores.replace((scores.logits * 100).round() / 100)


def learned_from_spans(given):
    if given.held_out is None:
        raise NeedsError("This one learns from labelled scores, and there are none here.")
    return Shift(float((1 / span(given.held_out[0].logits)).mean()))


FITS = {
    "a missing need is told": (Evidence.LABELS, False, lambda given: _raise(NeedsError("no labels"))),
    "raises NeedsError": (Evidence.LABELS, False, lambda given: Shift(0.0)),
    "two fits on the same evidence are equal": (Evidence.NOTHING, False, lambda given: Shift(float(next(fresh)))),
    "evidence of flat, tied and huge rows": (Evidence.LABELS, False, learned_from_spans),
    "the argmax is kept": (Evidence.NOTHING, True, lambda given: Rounding()),
    "save and load keep every bit of the logits": (Evidence.NOTHING, False, lambda given: Forgetful()),
}


def _raise(error):
    raise error


@dataclass(frozen=True)
class FaultyFit:
    law: str

    needs = property(lambda self: FITS[self.law][0])
    keeps_argmax = property(lambda self: FITS[self.law][1])

    def fit(self, given):
        return FITS[self.law][2](given)


@pytest.mark.parametrize("law", FITS)
def test_laws_of_fits(law):
    with pytest.raises(AssertionError, match=law):
        check_calibrator(FaultyFit(law))


def test_a_map_without_a_stored_name_is_told_so(monkeypatch):
    monkeypatch.setitem(FITS, "unnamed", (Evidence.NOTHING, False, lambda given: Unnamed()))
    with pytest.raises(StoreError, match="lacks @storable"):
        check_calibrator(FaultyFit("unnamed"))


def same(scores):
    return scores


def none(scores, labels):
    return 0.0


def leaking(scores, labels):
    """Right in value, but each problem's gradient reaches the others."""
    own = scores.logits.square().mean(dim=(-2, -1))
    return own + (own.sum() - own.sum().detach())


LOSSES = {
    "reshape keeps the shape": (lambda s: Scores(s.logits[..., :2]), none),
    "reshape keeps the type": (lambda s: s.replace(s.logits.float()), none),
    "reshape leaves the zero-shot logits alone": (lambda s: Scores(s.logits, s.zero_shot + 1), none),
    "the penalty of one problem is a scalar": (same, lambda s, y: s.logits.mean(-1)),
    "the scores that came in are not changed": (lambda s: s.replace(s.logits.mul_(0.5)), none),
    "a leading axis gives one penalty each": (
        same,
        lambda s, y: s.logits.mean() if s.logits.ndim == 2 else s.logits.mean(-1),
    ),
    "a problem's map does not depend on its neighbours": (lambda s: s.replace(s.logits / s.logits.std()), none),
    "a problem's loss does not depend on its neighbours": (same, lambda s, y: s.logits.mean()),
    "a problem's gradient does not depend on its neighbours": (same, leaking),
    "the order of rows does not change the loss": (
        same,
        lambda s, y: (s.logits * by_position(s.logits)).mean(dim=(-2, -1)),
    ),
    "the loss of flat, tied and huge rows is finite": (
        lambda s: s.replace(s.logits * (span(s.zero_shot) / span(s.logits))),
        none,
    ),
    "the gradient of flat, tied and huge rows is finite": (same, lambda s, y: s.logits.var(-1).sqrt().mean(-1)),
}


@dataclass(frozen=True)
class FaultyLoss:
    law: str

    def reshape(self, scores):
        return LOSSES[self.law][0](scores)

    def penalty(self, scores, labels):
        return LOSSES[self.law][1](scores, labels)


@pytest.mark.parametrize("law", LOSSES)
def test_laws_of_losses(law):
    with pytest.raises(AssertionError, match=law):
        check_train_calibration(FaultyLoss(law))
