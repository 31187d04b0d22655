"""A tile: rows few enough for a core's cache, and the passes over them that give each row its numbers.

Score maps are applied to the tile, so a second matrix of logits never exists. Maps that are a temperature of each row
(SaLS is one) are not even carried out: their factor goes into the exponent. A row's numbers do not depend on the tile
it came in.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from calispan.core.contracts import RowTemperature, ScoreMap
from calispan.core.types import Scores

_VECTOR = 64  # more numbers than any processor's loop takes at a time
_LOG2_E = math.log2(math.e)

T = TypeVar("T")


class _MadeOnce(Generic[T]):
    """`functools.cached_property` without its lock: in Python 3.11 all instances share it, and threads take turns."""

    def __init__(self, make: Callable[[Any], T]) -> None:
        self.make = make

    def __get__(self, instance: object, owner: type) -> T:
        made = instance.__dict__[self.make.__name__] = self.make(instance)
        return made


class Tile:
    """Some rows, with what passes over them share; made when first read.

    `given` makes the rows as scores, for maps that are carried out, `zero_shot` their zero-shot logits alone. `out`
    holds memory for numbers that are kept, one a row: what is written there need not be copied. The less Python there
    is between the passes, the less the threads wait for each other.
    """

    def __init__(
        self,
        logits: Tensor,
        labels: Tensor | None,  # t 1
        zero_shot: Callable[[], Tensor],
        given: Callable[[], Scores],
        maps: Sequence[ScoreMap],
        stretches: Sequence[RowTemperature] | None,
        out: Mapping[str, Tensor] | None = None,
        scratch: Scratch | None = None,
    ) -> None:
        self.given_logits = logits
        self.labels = labels
        self.maps = maps
        self.stretches = stretches
        self._zero_shot = zero_shot
        self._given = given
        self._out = out or {}
        self._scratch = scratch or Scratch()

    @_MadeOnce
    def given(self) -> Scores:
        """The rows as they came."""
        return self._given()

    @_MadeOnce
    @torch.no_grad()
    def logits(self) -> Tensor:
        """After the score maps. [t, c]"""
        scores = self.given
        for score_map in self.maps:
            scores = score_map(scores)
        return scores.logits.to(self.given_logits.dtype)

    @_MadeOnce
    def basis(self) -> Tensor:
        """Logits that differ from those after the maps by `factor` and an offset to each row. [t, c]"""
        return self.logits if self.stretches is None else self.given_logits

    @_MadeOnce
    @torch.no_grad()
    def factor(self) -> Tensor | None:
        """What the maps stretch each row of `basis` by; None where they do not. [t, 1]"""
        if not self.stretches:
            return None
        spans = _Spans(self)
        for stretch in self.stretches:
            factor = stretch.row_factor(spans)
            spans.factor = factor if spans.factor is None else spans.factor * factor
        assert spans.factor is not None
        # A map may take what is not finite for flat; times zero and added, it shows again.
        if spans.seen is None:
            return spans.factor
        return torch.add(spans.factor, spans.seen, alpha=0, out=self._out.get("factor"))

    @_MadeOnce
    def predicted(self) -> Tensor:
        """The first of the largest logits. [t, 1]"""
        if self.basis.device.type != "cpu":
            return self.basis.argmax(dim=1, keepdim=True)
        # NumPy's argmax is vectorised and costs a tenth of torch's; both take the first.
        place = self._out.get("predicted")
        if place is None:
            place = torch.empty(len(self.basis), 1, dtype=torch.int64)
        np.argmax(self.basis.numpy(), axis=1, keepdims=True, out=place.numpy())
        return place

    @_MadeOnce
    def high(self) -> Tensor:
        """The largest of `basis`. [t, 1]"""
        return torch.gather(self.basis, 1, self.predicted, out=self._out.get("high"))

    @_MadeOnce
    def low(self) -> Tensor:
        """The smallest of `basis`. [t, 1]"""
        return torch.amin(self.basis, 1, keepdim=True, out=self._out.get("low"))

    @_MadeOnce
    def zero_shot_high(self) -> Tensor:
        return torch.amax(self._zero_shot(), 1, keepdim=True, out=self._out.get("zero_shot_high"))

    @_MadeOnce
    def zero_shot_low(self) -> Tensor:
        return torch.amin(self._zero_shot(), 1, keepdim=True, out=self._out.get("zero_shot_low"))

    @_MadeOnce
    def label_logit(self) -> Tensor:
        """The label's number in `basis`. [t, 1]"""
        assert self.labels is not None
        return torch.gather(self.basis, 1, self.labels, out=self._out.get("label_logit"))

    @_MadeOnce
    def exponentials(self) -> Tensor:
        """exp(logits - largest logit), the winner's exactly one. [t, c]"""
        # exp2 is a fraction of exp's time: torch hands exp to a library routine that is slow in small calls.
        flat, out = self._scratch(self.basis)
        torch.sub(self.basis, self.high, out=out)
        out.mul_(_LOG2_E if self.factor is None else self.factor * _LOG2_E)
        flat.exp2_()
        return out

    @_MadeOnce
    def exp_sum(self) -> Tensor:
        return torch.sum(self.exponentials, 1, keepdim=True, out=self._out.get("exp_sum"))

    @_MadeOnce
    def exp_norm(self) -> Tensor:
        return _length(self.exponentials, self._out.get("exp_norm"))

    @_MadeOnce
    def norm(self) -> Tensor:
        return _length(self.logits, self._out.get("norm"))

    @_MadeOnce
    def given_sum(self) -> Tensor:
        return torch.sum(self.given_logits, 1, keepdim=True, out=self._out.get("given_sum"))

    @property
    def probabilities(self) -> Tensor:
        """[t, c]"""
        return self.exponentials / self.exp_sum


class _Spans:
    """What a row temperature may look at: spans as the maps before it left them."""

    def __init__(self, tile: Tile) -> None:
        self.tile = tile
        self.factor: Tensor | None = None
        self.seen: Tensor | None = None

    @property
    def span(self) -> Tensor:
        span = self.tile.high - self.tile.low
        return span if self.factor is None else span * self.factor

    @property
    def zero_shot_span(self) -> Tensor:
        self.seen = self.tile.zero_shot_high - self.tile.zero_shot_low
        return self.seen


class Scratch(threading.local):
    """Memory that one thread uses for tile after tile: fresh memory costs more than the passes over it.

    A little longer than the tile: the last numbers of a loop, those that do not fill a vector, are rounded otherwise
    than the rest, and so the end must not be a row's.
    """

    flat: Tensor | None = None
    rows: Tensor | None = None

    def __call__(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """The memory whole, and as rows."""
        size = like.numel() + _VECTOR
        if self.flat is None or self.rows is None or self.rows.shape != like.shape:
            whole = like.new_zeros(size) if self.flat is None else self.flat[:size]  # no later tile is larger
            self.flat, self.rows = whole, whole[: like.numel()].view(like.shape)
        return self.flat, self.rows


def _length(rows: Tensor, out: Tensor | None) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True, out=out)
    return length
