"""Tiles: rows few enough for a core's cache, every wanted pass run over them while they are there, one to a thread.

Score maps are applied to the tile as well, so a second matrix of logits never exists. Maps that are a temperature of
each row (SaLS is one) are not even carried out: their factor goes into the exponent. A row's numbers do not depend on
the tile it came in.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
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
    """Some rows, with what passes over them share; made when first read."""

    def __init__(self, scores: Scores, labels: Tensor | None, maps: Sequence[ScoreMap], start: int = 0) -> None:
        self.given = scores
        self.labels = labels
        self.maps = maps
        self.place = slice(start, start + len(scores))  # among the rows of the chunk
        self.scratch: Callable[[Tensor, int], Tensor] = Tensor.new_empty

    @cached_property
    def logits(self) -> Tensor:
        """After the score maps. [t, c]"""
        scores = self.given
        for score_map in self.maps:
            scores = score_map(scores)
        return scores.logits.detach()

    @cached_property
    def basis(self) -> Tensor:
        """Logits that differ from those after the maps by `factor` and an offset to each row. [t, c]"""
        return self.given.logits.detach() if only_stretch(self.maps) else self.logits

    @cached_property
    def factor(self) -> Tensor | None:
        """What the maps stretch each row of `basis` by; None where they do not. [t, 1]"""
        if not self.maps or not only_stretch(self.maps):
            return None
        spans = _Spans(self)
        for score_map in self.maps:
            assert isinstance(score_map, RowTemperature)
            factor = score_map.row_factor(spans).detach()
            spans = _Spans(self, factor if spans.factor is None else spans.factor * factor, spans.seen)
        assert spans.factor is not None
        return spans.factor + 0 * spans.seen[-1] if spans.seen else spans.factor  # NaN of what was looked at stays

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
        return self.basis.gather(1, self.predicted)

    @cached_property
    def low(self) -> Tensor:
        """The smallest of `basis`. [t, 1]"""
        return self.basis.amin(dim=1, keepdim=True)

    @cached_property
    def zero_shot_high(self) -> Tensor:
        return self.given.zero_shot.detach().amax(dim=1, keepdim=True)

    @cached_property
    def zero_shot_low(self) -> Tensor:
        return self.given.zero_shot.detach().amin(dim=1, keepdim=True)

    @cached_property
    def exponentials(self) -> Tensor:
        """exp(logits - largest logit), the winner's exactly one. [t, c]"""
        # exp2 is a fraction of exp's time: torch hands exp to a library routine that is slow in small calls.
        # Its last few numbers, those that do not fill a vector, are rounded otherwise; so the end is no row's.
        size = self.basis.numel()
        flat = self.scratch(self.basis, size + _VECTOR)
        flat[size:] = 0
        out = flat[:size].view_as(self.basis)
        torch.sub(self.basis, self.high, out=out)
        out.mul_(_LOG2_E if self.factor is None else self.factor * _LOG2_E)
        flat.exp2_()
        return out

    @property
    def probabilities(self) -> Tensor:
        """[t, c]"""
        return self.exponentials / self.exponentials.sum(dim=1, keepdim=True)

    def label_logit(self) -> Tensor:
        """The label's number in `basis`. [t, 1]"""
        assert self.labels is not None
        return self.basis.gather(1, self.labels[:, None])


class _Spans:
    """What a row temperature may look at: spans as the maps before it left them."""

    def __init__(self, tile: Tile, factor: Tensor | None = None, seen: list[Tensor] | None = None) -> None:
        self.tile = tile
        self.factor = factor
        self.seen = [] if seen is None else seen

    @property
    def span(self) -> Tensor:
        span = self.tile.high - self.tile.low
        return span if self.factor is None else span * self.factor

    @property
    def zero_shot_span(self) -> Tensor:
        span = self.tile.zero_shot_high - self.tile.zero_shot_low
        self.seen.append(span)
        return span


# The passes over a tile; each gives one number a row.
PASSES: dict[str, Callable[[Tile], Tensor]] = {
    "given_sum": lambda tile: tile.given.logits.detach().sum(dim=1),
    "factor": lambda tile: torch.ones_like(tile.high[:, 0]) if tile.factor is None else tile.factor[:, 0],
    "predicted": lambda tile: tile.predicted[:, 0],
    "high": lambda tile: tile.high[:, 0],
    "low": lambda tile: tile.low[:, 0],
    "label_logit": lambda tile: tile.label_logit()[:, 0],
    "norm": lambda tile: torch.linalg.vector_norm(tile.logits, dim=1),
    "exp_sum": lambda tile: tile.exponentials.sum(dim=1),
    "exp_norm": lambda tile: torch.linalg.vector_norm(tile.exponentials, dim=1),
    "zero_shot_low": lambda tile: tile.zero_shot_low[:, 0],
    "zero_shot_high": lambda tile: tile.zero_shot_high[:, 0],
}


def only_stretch(maps: Sequence[ScoreMap]) -> bool:
    """Whether every map is a temperature of the row, so that none need be carried out."""
    return all(isinstance(score_map, RowTemperature) for score_map in maps)


def tile_makers(scores: Scores, labels: Tensor | None, maps: Sequence[ScoreMap]) -> list[Callable[[], Tile]]:
    """The rows cut into tiles, at least one. A tile keeps what it has made: make it in its turn, and let it go."""
    rows = max(1, _TILE.get(scores.logits.device.type, _TILE["cuda"]) // int(scores.logits.shape[1]))
    lock = threading.Lock()

    def make(start: int) -> Tile:
        stop = start + rows
        return Tile(slice_rows(scores, start, stop, lock), None if labels is None else labels[start:stop], maps, start)

    return [partial(make, start) for start in range(0, max(1, len(scores)), rows)]


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


def walk(names: set[str], makers: Sequence[Callable[[], Tile]], rows: int, threads: int | None) -> dict[str, Tensor]:
    """The named passes over every tile, side by side: columns of one number a row.

    Each tile has one thread. Torch's own threads would meet at a barrier after every pass over a tile, which is slow
    on small tiles and very slow on a busy machine; and one thread keeps a row's sums in one order.
    """
    columns = _Columns(rows, [name for name in PASSES if name in names])
    with serial_torch() as before:
        workers = min(threads or before, len(makers), _MOST_THREADS)
        if workers == 1:
            for make in makers:
                columns.fill(make)
        else:
            with ThreadPoolExecutor(workers) as pool:
                for _ in pool.map(columns.fill, makers):
                    pass
    return columns.made


class _Columns:
    """The numbers of all rows, filled tile by tile."""

    def __init__(self, rows: int, names: Sequence[str]) -> None:
        self.rows = rows
        self.names = names
        self.made: dict[str, Tensor] = {}
        self._lock = threading.Lock()
        self._scratch = _Scratch()

    @torch.no_grad()
    def fill(self, make: Callable[[], Tile]) -> None:
        tile = make()
        tile.scratch = self._scratch
        for name in self.names:
            numbers = PASSES[name](tile)
            with self._lock:  # the first tile to come says of which type a column is
                if name not in self.made:
                    self.made[name] = numbers.new_empty(self.rows)
            self.made[name][tile.place] = numbers


class _Scratch(threading.local):
    """Memory that one thread uses for tile after tile: fresh memory costs more than the passes over it."""

    held: Tensor | None = None

    def __call__(self, like: Tensor, size: int) -> Tensor:
        if self.held is None or self.held.dtype != like.dtype or len(self.held) < size:
            self.held = like.new_empty(size)
        return self.held[:size]


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
