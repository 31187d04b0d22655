"""Rows: one chunk of scored rows, and the per-row numbers that metrics share.

A number such as the confidence is wanted by many metrics, and each needs a pass or two over the logits. So the rows
are walked once, in tiles small enough for a core's cache, and every pass that is wanted runs on a tile while it is
there. Score maps are applied to the tile as well: a second matrix of logits never exists. Tiles go to as many threads
as torch has, one tile to a thread, and a row's numbers do not depend on its tile.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property, partial
from typing import TypeVar

import torch
from torch import Tensor

from calispan.core.contracts import ScoreMap
from calispan.core.errors import InputError, NeedsError
from calispan.core.types import Scores

_TILE = {"cpu": 1 << 19, "cuda": 1 << 25}  # logits in a tile; a GPU wants few large launches
_MOST_THREADS = 8  # beyond these Python itself is the bottleneck
_VECTOR = 64  # more numbers than any processor's loop takes at a time
_LOG2_E = math.log2(math.e)

T = TypeVar("T")


class Tile:
    """Rows few enough to stay in the cache while every pass over them runs."""

    def __init__(self, scores: Scores, labels: Tensor | None, maps: Sequence[ScoreMap], start: int = 0) -> None:
        self.given = scores
        self.place = slice(start, start + len(scores))  # among the rows of the chunk
        self.labels = labels
        self.maps = maps
        self.scratch: Callable[[Tensor, int], Tensor] = Tensor.new_empty

    @cached_property
    def logits(self) -> Tensor:
        """After the score maps. [t, c]"""
        scores = self.given
        for score_map in self.maps:
            scores = score_map(scores)
        return scores.logits.detach()

    @cached_property
    def predicted(self) -> Tensor:
        """The first of the largest logits. [t, 1]"""
        if self.logits.device.type != "cpu":
            return self.logits.argmax(dim=1, keepdim=True)
        # NumPy's argmax is vectorised and costs a tenth of torch's; both take the first.
        return torch.from_numpy(self.logits.numpy().argmax(axis=1))[:, None]

    @cached_property
    def high(self) -> Tensor:
        """The largest logit. [t, 1]"""
        return self.logits.gather(1, self.predicted)

    @cached_property
    def exponentials(self) -> Tensor:
        """exp(logits - high), the winner's exactly one. [t, c]"""
        # exp2 is a fraction of exp's time: torch hands exp to a library routine that is slow in small calls.
        # Its last few numbers, those that do not fill a vector, are rounded otherwise; so the end is no row's.
        size = self.logits.numel()
        flat = self.scratch(self.logits, size + _VECTOR)
        flat[size:] = 0
        out = flat[:size].view_as(self.logits)
        torch.sub(self.logits, self.high, out=out)
        flat.mul_(_LOG2_E).exp2_()
        return out

    @property
    def probabilities(self) -> Tensor:
        """[t, c]"""
        return self.exponentials / self.exponentials.sum(dim=1, keepdim=True)

    @property
    def label_logit(self) -> Tensor:
        assert self.labels is not None  # Rows asks for it where there are labels
        return self.logits.gather(1, self.labels[:, None])


# The passes over a tile; each gives one number a row.
_PASSES: dict[str, Callable[[Tile], Tensor]] = {
    "given_sum": lambda tile: tile.given.logits.detach().sum(dim=1),
    "predicted": lambda tile: tile.predicted[:, 0],
    "high": lambda tile: tile.high[:, 0],
    "low": lambda tile: tile.logits.amin(dim=1),
    "label_logit": lambda tile: tile.label_logit[:, 0],
    "norm": lambda tile: torch.linalg.vector_norm(tile.logits, dim=1),
    "exp_sum": lambda tile: tile.exponentials.sum(dim=1),
    "exp_norm": lambda tile: torch.linalg.vector_norm(tile.exponentials, dim=1),
    "zero_shot_low": lambda tile: tile.given.zero_shot.detach().amin(dim=1),
    "zero_shot_high": lambda tile: tile.given.zero_shot.detach().amax(dim=1),
}


class Rows:
    """A chunk of rows: scores [n, c], labels [n] where known, and the score maps to see them through.

    The numbers below are made when first read and then kept; `expect` names passes to make along with the first.
    They are float64 (from float32 logits: passes in float32, error below 1e-6), int64 or bool, one a row. A row that
    gives NaN or infinity is refused by its number, counted from `start`. Maps are called from several threads at once
    (as many as torch has, unless `threads` says).
    """

    def __init__(
        self,
        scores: Scores,
        labels: Tensor | None = None,
        maps: Sequence[ScoreMap] = (),
        *,
        expect: Iterable[str] = (),
        start: int = 0,
        threads: int | None = None,
    ) -> None:
        self.scores = scores
        self.maps = tuple(maps)
        self._labels = labels
        self._start = start
        self._threads = threads
        self._passes: dict[str, Tensor] = {}
        self._expect = set(expect)

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def asked(self) -> frozenset[str]:
        """The passes made so far; what other chunks may `expect`."""
        return frozenset(self._passes)

    @property
    def labels(self) -> Tensor:
        if self._labels is None:
            raise NeedsError("A metric reads labels, and these rows have none. Pass labels, one class index a row.")
        return self._labels

    @property
    def classes(self) -> int:
        return int(self.scores.logits.shape[-1])

    @property
    def precision(self) -> torch.dtype:
        """The type of the logits; float64 numbers that are kept for long may be stored in it."""
        return self.scores.logits.dtype

    @property
    def predicted(self) -> Tensor:
        """The class of the first of the largest logits."""
        return self._pass("predicted")

    @property
    def correct(self) -> Tensor:
        """Whether the predicted class is the label."""
        return self.labels == self._pass("predicted")

    @property
    def confidence(self) -> Tensor:
        """Probability of the predicted class."""
        return 1 / self._pass("exp_sum").double()

    @property
    def nll(self) -> Tensor:
        """Negative log-probability of the label."""
        below = self._pass("high").double() - self._label_logit.double()
        return below + self._pass("exp_sum").double().log()

    @property
    def brier(self) -> Tensor:
        """Sum over the classes of (probability - [class is the label])^2."""
        at_label = torch.exp(self._label_logit.double() - self._pass("high").double())
        total = self._pass("exp_sum").double()
        return ((self._pass("exp_norm").double() / total) ** 2 - 2 * at_label / total + 1).clamp_min_(0)

    @property
    def norm(self) -> Tensor:
        """Euclidean length of the logits."""
        return self._pass("norm").double()

    @property
    def span(self) -> Tensor:
        """Largest minus smallest logit."""
        return self._pass("high").double() - self._pass("low").double()

    @property
    def zero_shot_span(self) -> Tensor:
        """Largest minus smallest zero-shot logit."""
        return self._pass("zero_shot_high").double() - self._pass("zero_shot_low").double()

    @property
    def given_sum(self) -> Tensor:
        """Sum of the logits as they came, before the maps."""
        return self._pass("given_sum").double()

    @property
    def probabilities(self) -> Tensor:
        """All of them, [n, c]; prefer `tiles` where a part at a time will do."""
        return torch.cat([tile.probabilities for tile in self.tiles()])

    def tiles(self) -> Iterator[Tile]:
        """The rows a few at a time, mapped anew; at least one tile."""
        return (make() for make in self._tile_makers())

    def _tile_makers(self) -> list[Callable[[], Tile]]:
        """A tile keeps what it has made, so it is made when its turn comes and let go after."""
        rows = max(1, _TILE.get(self.scores.logits.device.type, _TILE["cuda"]) // self.classes)
        lock = threading.Lock()

        def make(start: int) -> Tile:
            labels = None if self._labels is None else self._labels[start : start + rows]
            return Tile(slice_rows(self.scores, start, start + rows, lock), labels, self.maps, start)

        return [partial(make, start) for start in range(0, max(1, len(self)), rows)]

    def take(self, index: Tensor) -> Rows:
        """The chosen rows, in that order and as often; their numbers are looked up, not made again."""
        return _Taken(self, index)

    @property
    def _label_logit(self) -> Tensor:
        _ = self.labels  # says what is missing
        return self._pass("label_logit")

    def _pass(self, name: str) -> Tensor:
        if name not in self._passes:
            wanted = {name, "given_sum"} | self._expect
            self._walk(wanted - self._passes.keys() - (set() if self._labels is not None else {"label_logit"}))
        return self._passes[name]

    def _walk(self, names: set[str]) -> None:
        columns = _Columns(len(self), [name for name in _PASSES if name in names])
        with serial_torch() as threads:
            _each(columns.fill, self._tile_makers(), self._threads or threads)
        for name, column in columns.made.items():
            self._check(name, column)
        self._passes |= columns.made

    def _check(self, name: str, column: Tensor) -> None:
        """NaN and infinity reach the numbers of their row, so a look at the numbers finds them."""
        if not column.is_floating_point() or bool(torch.isfinite(column.sum())):
            return
        for row in (~torch.isfinite(column)).nonzero()[:, 0].tolist():
            one = slice_rows(self.scores, row, row + 1)
            where = f"row {self._start + row}"
            if not bool(torch.isfinite(one.logits).all()):
                raise InputError(
                    f"Logits of {where} hold NaN or infinity. Drop the row or score it again; log-probabilities are "
                    "taken of probabilities kept above zero."
                )
            if one.has_zero_shot and not bool(torch.isfinite(one.zero_shot).all()):
                raise InputError(f"Zero-shot logits of {where} hold NaN or infinity. Drop the row or score it again.")
            if self.maps and name != "given_sum":
                raise InputError(
                    f"A calibration turned {where} into NaN or infinity, though its logits are finite. "
                    "Evaluate without it, or mend its score map."
                )


class _Taken(Rows):
    """Rows of other rows."""

    def __init__(self, whole: Rows, index: Tensor) -> None:
        super().__init__(whole.scores, None if whole._labels is None else whole._labels[index], whole.maps)
        self._whole = whole
        self._index = index

    def __len__(self) -> int:
        return len(self._index)

    def _tile_makers(self) -> list[Callable[[], Tile]]:
        return Rows(self._whole.scores.rows(self._index), self._labels, self.maps)._tile_makers()

    def _pass(self, name: str) -> Tensor:
        return self._whole._pass(name)[self._index]


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
            numbers = _PASSES[name](tile)
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

    Its idle threads spin for milliseconds after each operation that used them, in the way of the threads that walk
    tiles.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


def _each(work: Callable[[T], object], items: Sequence[T], threads: int) -> None:
    """`work` of every item, each in one thread.

    Torch's own threads would meet at a barrier after every pass over a tile, which is slow on small tiles and very
    slow on a busy machine. One thread also keeps a row's sums in one order, however many rows its tile has.
    """
    workers = min(threads, len(items), _MOST_THREADS)  # a GPU's tiles are large: most often there is one
    if workers == 1:
        for item in items:
            work(item)
        return
    with ThreadPoolExecutor(workers) as pool:
        for _ in pool.map(work, items):
            pass
