"""Tiling: rows cut into tiles, and all wanted passes run over a tile while it is in the cache, one tile to a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from calispan.core.contracts import RowTemperature, ScoreMap
from calispan.core.tile import Scratch, Tile
from calispan.core.types import Scores

_TILE = {"cpu": 1 << 19, "cuda": 1 << 25}  # logits in a tile; a GPU wants few large launches
_MOST_THREADS = 8  # beyond these Python itself is the bottleneck

# The passes over a tile, each of one number a row; those that read the same memory follow each other.
PASSES = (
    "zero_shot_low", "zero_shot_high", "given_sum", "low", "predicted", "high", "factor", "label_logit", "exp_sum",
    "exp_norm", "norm",
)  # fmt: skip


def stretches(maps: Sequence[ScoreMap]) -> tuple[RowTemperature, ...] | None:
    """The maps as temperatures of the row, where all are and none need be carried out."""
    found = tuple(score_map for score_map in maps if isinstance(score_map, RowTemperature))
    return found if len(found) == len(maps) else None


class Tiling:
    """Rows cut into tiles, at least one. A tile keeps what it has made: make it in its turn, and let it go."""

    def __init__(self, scores: Scores, labels: Tensor | None, maps: Sequence[ScoreMap]) -> None:
        self.scores = scores
        self.maps = maps
        self.stretches = stretches(maps)
        self.rows = max(1, _TILE.get(scores.logits.device.type, _TILE["cuda"]) // int(scores.logits.shape[1]))
        self._lock = threading.Lock()
        self._logits = torch.split(scores.logits.detach(), self.rows)
        self._zero_shot: Sequence[Tensor] = ()
        self._labels = [None] * len(self) if labels is None else torch.split(labels[:, None], self.rows)

    def __len__(self) -> int:
        return len(self._logits)

    def __iter__(self) -> Iterator[Tile]:
        return (self.tile(number) for number in range(len(self)))

    def tile(
        self,
        number: int,
        out: Mapping[str, Tensor] | None = None,
        scratch: Scratch | None = None,
    ) -> Tile:
        start = number * self.rows
        given = partial(slice_rows, self.scores, start, start + self.rows, self._lock)
        zero_shot = partial(self._zero_shot_of, number)
        logits, labels = self._logits[number], self._labels[number]
        return Tile(logits, labels, zero_shot, given, self.maps, self.stretches, out, scratch)

    def _zero_shot_of(self, number: int) -> Tensor:
        if not self._zero_shot:
            with self._lock:
                self._zero_shot = torch.split(self.scores.zero_shot.detach(), self.rows)
        return self._zero_shot[number]

    def walk(self, names: Iterable[str], threads: int | None = None) -> dict[str, Tensor]:
        """The named passes over every tile, as columns of one number a row.

        Each tile has one thread. Torch's own threads would meet at a barrier after every pass over a tile, which is
        slow on small tiles and very slow on a busy machine; and one thread keeps a row's sums in one order.
        """
        columns = {name: self._column(name) for name in PASSES if name in set(names)}
        parts = {name: torch.split(column, self.rows) for name, column in columns.items()}
        scratch = Scratch()

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
