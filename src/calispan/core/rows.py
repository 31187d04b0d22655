"""Rows: one chunk of scored rows, and the per-row numbers that metrics share.

A number such as the confidence is wanted by many metrics, and each needs a pass or two over the logits. So the rows
are walked once, in tiles (see `calispan.core.tiling`), and the numbers are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from calispan.core.contracts import ScoreMap
from calispan.core.errors import InputError, NeedsError
from calispan.core.tile import Tile
from calispan.core.tiling import Tiling, slice_rows, stretches
from calispan.core.types import Scores


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
        self._stretches = stretches(self.maps)
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
        return frozenset(self._passes) - {"given_sum"}

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
        return self._label_gap + self._pass("exp_sum").double().log()

    @property
    def brier(self) -> Tensor:
        """Sum over the classes of (probability - [class is the label])^2."""
        at_label = torch.exp(-self._label_gap)
        total = self._pass("exp_sum").double()
        return ((self._pass("exp_norm").double() / total) ** 2 - 2 * at_label / total + 1).clamp_min_(0)

    @property
    def norm(self) -> Tensor:
        """Euclidean length of the logits."""
        return self._pass("norm").double()

    @property
    def span(self) -> Tensor:
        """Largest minus smallest logit."""
        return (self._pass("high").double() - self._pass("low").double()) * self._factor

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
        return iter(Tiling(self.scores, self._labels, self.maps))

    def take(self, index: Tensor) -> Rows:
        """The chosen rows, in that order and as often; their numbers are looked up, not made again."""
        return _Taken(self, index)

    @property
    def _label_gap(self) -> Tensor:
        """Largest logit minus the label's."""
        _ = self.labels  # says what is missing
        return (self._pass("high").double() - self._pass("label_logit").double()) * self._factor

    @property
    def _factor(self) -> Tensor | float:
        return self._pass("factor").double() if self._stretches else 1.0

    def _pass(self, name: str) -> Tensor:
        if name not in self._passes:
            wanted = {name} | self._expect
            if "low" not in wanted or self._stretches is None:
                wanted.add("given_sum")  # otherwise the ends of the rows as they came show whatever is not finite
            if self._labels is None:
                wanted.discard("label_logit")  # expected from rows that had labels
            if not self._stretches:
                wanted.discard("factor")
            self._walk(wanted - self._passes.keys())
        return self._passes[name]

    def _walk(self, names: set[str]) -> None:
        made = Tiling(self.scores, self._labels, self.maps).walk(names, self._threads)
        for name, column in made.items():
            self._check(name, column)
        self._passes |= made

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

    def tiles(self) -> Iterator[Tile]:
        return Rows(self._whole.scores.rows(self._index), self._labels, self.maps).tiles()

    def _pass(self, name: str) -> Tensor:
        return self._whole._pass(name)[self._index]
