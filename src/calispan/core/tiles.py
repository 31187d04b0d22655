"""Tiles: rows few enough for a core's cache, every wanted pass run over them while they are there, one to a thread.

Score maps are applied to the tile as well, so a second matrix of logits never exists. Maps that are a temperature of
each row (SaLS is one) are not even carried out: their factor goes into the exponent. A row's numbers do not depend on
the tile it came in.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from calispan.core.contracts import RowTemperature, ScoreMap
from calispan.core.types import Scores

_TILE = {"cpu": 1 << 19, "cuda": 1 << 25}  # logits in a tile; a GPU wants few large launches
_MOST_THREADS = 8  # beyond these Python itself is the bottleneck
_VECTOR = 64  # more numbers than any processor's loop takes at a time
_LOG2_E = math.log2(math.e)


class Tile:
    """Some rows, with what passes over them share; made when first read.

    `out` holds memory for numbers that are kept, one a row: what is written there need not be copied. The less
    Python there is between the passes, the less the threads wait for each other.
    """

    def __init__(
        self,
        logits: Tensor,
        labels: Tensor | None,
        given: Callable[[], Scores],
        maps: Sequence[ScoreMap],
        out: Mapping[str, Tensor] | None = None,
        scratch: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.given_logits = logits
        self.labels = labels
        self.maps = maps
        self._given = given
        self._out = out or {}
        self._scratch = scratch or _Scratch()

    @cached_property
    def given(self) -> Scores:
        """The rows as they came."""
        return self._given()

    @cached_property
    def logits(self) -> Tensor:
        """After the score maps. [t, c]"""
        scores = self.given
        for score_map in self.maps:
            scores = score_map(scores)
        return scores.logits.detach().to(self.given_logits.dtype)

    @cached_property
    def basis(self) -> Tensor:
        """Logits that differ from those after the maps by `factor` and an offset to each row. [t, c]"""
        return self.given_logits if only_stretch(self.maps) else self.logits

    @cached_property
    def factor(self) -> Tensor | None:
        """What the maps stretch each row of `basis` by; None where they do not. [t, 1]"""
        if not self.maps or not only_stretch(self.maps):
            return None
        spans = _Spans(self)
        for score_map in self.maps:
            assert isinstance(score_map, RowTemperature)
            factor = score_map.row_factor(spans).detach()
            spans.factor = factor if spans.factor is None else spans.factor * factor
        assert spans.factor is not None
        # A map may take what is not finite for flat; times zero and added, it shows again.
        return spans.factor if spans.seen is None else torch.add(spans.factor, spans.seen, alpha=0)

    @cached_property
    def predicted(self) -> Tensor:
        """The first of the largest logits. [t, 1]"""
        if self.basis.device.type != "cpu":
            return self.basis.argmax(dim=1, keepdim=True)
        # NumPy's argmax is vectorised and costs a tenth of torch's; both take the first.
        return torch.from_numpy(np.argmax(self.basis.numpy(), axis=1, keepdims=True))

    @cached_property
    def high(self) -> Tensor:
        """The largest of `basis`. [t, 1]"""
        return torch.gather(self.basis, 1, self.predicted, out=self._out.get("high"))

    @cached_property
    def low(self) -> Tensor:
        """The smallest of `basis`. [t, 1]"""
        return torch.amin(self.basis, 1, keepdim=True, out=self._out.get("low"))

    @cached_property
    def zero_shot_high(self) -> Tensor:
        return torch.amax(self.given.zero_shot.detach(), 1, keepdim=True, out=self._out.get("zero_shot_high"))

    @cached_property
    def zero_shot_low(self) -> Tensor:
        return torch.amin(self.given.zero_shot.detach(), 1, keepdim=True, out=self._out.get("zero_shot_low"))

    @cached_property
    def label_logit(self) -> Tensor:
        """The label's number in `basis`. [t, 1]"""
        assert self.labels is not None
        return torch.gather(self.basis, 1, self.labels[:, None], out=self._out.get("label_logit"))

    @cached_property
    def exponentials(self) -> Tensor:
        """exp(logits - largest logit), the winner's exactly one. [t, c]"""
        # exp2 is a fraction of exp's time: torch hands exp to a library routine that is slow in small calls.
        flat = self._scratch(self.basis)
        out = flat[: self.basis.numel()].view_as(self.basis)
        torch.sub(self.basis, self.high, out=out)
        out.mul_(_LOG2_E if self.factor is None else self.factor * _LOG2_E)
        flat.exp2_()
        return out

    @cached_property
    def exp_sum(self) -> Tensor:
        return torch.sum(self.exponentials, 1, keepdim=True, out=self._out.get("exp_sum"))

    @cached_property
    def exp_norm(self) -> Tensor:
        return _length(self.exponentials, self._out.get("exp_norm"))

    @cached_property
    def norm(self) -> Tensor:
        return _length(self.logits, self._out.get("norm"))

    @cached_property
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


class _Scratch(threading.local):
    """Memory that one thread uses for tile after tile: fresh memory costs more than the passes over it.

    A little longer than the tile: the last numbers of a loop, those that do not fill a vector, are rounded otherwise
    than the rest, and so the end must not be a row's.
    """

    held: Tensor | None = None

    def __call__(self, like: Tensor) -> Tensor:
        size = like.numel() + _VECTOR
        if self.held is None or len(self.held) < size:
            self.held = like.new_zeros(size)
        return self.held[:size]


def _length(rows: Tensor, out: Tensor | None) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True, out=out)
    return length


# The passes over a tile, each of one number a row, in the order in which a tile is best walked.
PASSES = (
    "given_sum", "predicted", "high", "low", "zero_shot_low", "zero_shot_high", "factor", "label_logit", "exp_sum",
    "exp_norm", "norm",
)  # fmt: skip


def only_stretch(maps: Sequence[ScoreMap]) -> bool:
    """Whether every map is a temperature of the row, so that none need be carried out."""
    return all(isinstance(score_map, RowTemperature) for score_map in maps)


class Tiling:
    """Rows cut into tiles, at least one. A tile keeps what it has made: make it in its turn, and let it go."""

    def __init__(self, scores: Scores, labels: Tensor | None, maps: Sequence[ScoreMap]) -> None:
        self.scores = scores
        self.maps = maps
        self.rows = max(1, _TILE.get(scores.logits.device.type, _TILE["cuda"]) // int(scores.logits.shape[1]))
        self._lock = threading.Lock()
        self._logits = torch.split(scores.logits.detach(), self.rows)
        self._labels = [None] * len(self) if labels is None else torch.split(labels, self.rows)

    def __len__(self) -> int:
        return len(self._logits)

    def __iter__(self) -> Iterator[Tile]:
        return (self.tile(number) for number in range(len(self)))

    def tile(
        self,
        number: int,
        out: Mapping[str, Tensor] | None = None,
        scratch: Callable[[Tensor], Tensor] | None = None,
    ) -> Tile:
        start = number * self.rows
        given = partial(slice_rows, self.scores, start, start + self.rows, self._lock)
        return Tile(self._logits[number], self._labels[number], given, self.maps, out, scratch)

    def walk(self, names: Iterable[str], threads: int | None = None) -> dict[str, Tensor]:
        """The named passes over every tile, as columns of one number a row.

        Each tile has one thread. Torch's own threads would meet at a barrier after every pass over a tile, which is
        slow on small tiles and very slow on a busy machine; and one thread keeps a row's sums in one order.
        """
        columns = {name: self._column(name) for name in PASSES if name in set(names)}
        parts = {name: torch.split(column, self.rows) for name, column in columns.items()}
        scratch = _Scratch()

        @torch.no_grad()
        def fill(number: int) -> None:
            out = {name: part[number] for name, part in parts.items()}
            tile = self.tile(number, out, scratch)
            for name, place in out.items():
                made = getattr(tile, name)
                if made is not place:
                    place.copy_(made)

        with serial_torch() as before:
            workers = min(threads or before, len(self), _MOST_THREADS)
            if workers == 1:
                for number in range(len(self)):
                    fill(number)
            else:
                with ThreadPoolExecutor(workers) as pool:
                    for _ in pool.map(fill, range(len(self))):
                        pass
        return {name: column[:, 0] for name, column in columns.items()}

    def _column(self, name: str) -> Tensor:
        like = self.scores.zero_shot if name.startswith("zero_shot") else self.scores.logits
        dtype = torch.int64 if name == "predicted" else like.dtype
        return torch.empty(len(self.scores), 1, dtype=dtype, device=like.device)


def slice_rows(scores: Scores, start: int, stop: int, lock: threading.Lock | None = None) -> Scores:
    """Rows start..stop-1 as views of the same memory. Zero-shot logits that nobody reads are still not made.

    Slices that are used from several threads share a lock, so that what is made on demand is made once.
    """
    guard = lock or threading.Lock()

    def zero_shot() -> Tensor:
        with guard:
            whole = scores.zero_shot
        return whole[start:stop]

    return Scores(
        scores.logits[start:stop],
        zero_shot if scores.has_zero_shot else None,
        None if scores.views is None else slice_rows(scores.views, start, stop, lock),
    )


@contextmanager
def serial_torch() -> Iterator[int]:
    """Torch works in the calling thread alone meanwhile; says how many threads it had.

    Its idle threads spin for milliseconds after each operation that used them, in the way of those that walk tiles.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)
