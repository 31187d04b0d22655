"""The whole extension contract: what a plug-in of each kind offers, on one screen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Flag, auto
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, runtime_checkable

from torch import Tensor

from calispan.core.types import Embeddings, Problem, Scores

if TYPE_CHECKING:
    from calispan.core.objective import Objective
    from calispan.core.rows import Rows


class Needs(Flag):
    """What a method asks of a backbone; it also decides what can be cached."""

    EMBEDDINGS = 0
    TEXT_TOWER = auto()
    VIEWS = auto()
    PIXELS = auto()


class Evidence(Flag):
    """What a calibrator asks to be fitted with. SaLS asks for nothing."""

    NOTHING = 0
    LABELS = auto()  # scores and labels of a held-out set
    SUPPORT = auto()  # out-of-fold scores of the method's own shots, and their labels
    TEXT = auto()  # the zero-shot prototypes
    VIEWS = auto()  # scores that carry every view of their rows


@dataclass(frozen=True, eq=False)
class Given:
    """The evidence a calibrator asked for; what it did not ask for is None."""

    held_out: tuple[Scores, Tensor] | None = None
    support: tuple[Scores, Tensor] | None = None
    text: Tensor | None = None


@runtime_checkable
class Head(Protocol):
    """A trained classifier: logits of every view it is shown. [n, v, d] -> [n, v, c]"""

    def __call__(self, queries: Embeddings, /) -> Tensor: ...


class Method(Protocol):
    """A recipe that learns a head from a problem. Same problem, objective and seed: same head."""

    @property
    def needs(self) -> Needs: ...

    @property
    def starts_at_zero_shot(self) -> bool:
        """Whether zero training steps leave the zero-shot classifier."""
        ...

    def fit(self, problem: Problem, objective: Objective, *, seed: int) -> Head: ...


class TrainCalibration(Protocol):
    """A calibration inside the training loss: a map of the scores, a penalty on them, or both."""

    def reshape(self, scores: Scores) -> Scores: ...

    def penalty(self, scores: Scores, labels: Tensor | None) -> Tensor | float:
        """One number for each leading axis of the scores; a scalar for one problem."""
        ...


class ScoreMap(Protocol):
    """A fitted calibration of scores. It works row by row, so rows may come in any order or chunk."""

    def __call__(self, scores: Scores, /) -> Scores: ...


class RowSpans(Protocol):
    """How far the logits of each row reach, largest minus smallest. [n, 1]"""

    @property
    def span(self) -> Tensor: ...

    @property
    def zero_shot_span(self) -> Tensor: ...


@runtime_checkable
class RowTemperature(ScoreMap, Protocol):
    """A score map that only stretches or shrinks each row: whoever wants probabilities need not carry it out."""

    def row_factor(self, rows: RowSpans, /) -> Tensor:
        """What the differences between the logits of a row are multiplied by, 0 or more. [n, 1]"""
        ...


class Calibrator(Protocol):
    """A recipe that fits a score map from the evidence it asks for."""

    @property
    def keeps_argmax(self) -> bool: ...

    @property
    def needs(self) -> Evidence: ...

    def fit(self, given: Given) -> ScoreMap: ...


class MetricState(Protocol):
    """What a metric remembers between chunks of rows."""

    def update(self, rows: Rows) -> None: ...

    def merge(self, other: Self) -> None:
        """Take in the rows that another state has seen; equals having seen them here."""
        ...

    def compute(self) -> float: ...


class Metric(Protocol):
    """A recipe for one number about scores."""

    needs_labels: ClassVar[bool]
    needs_zero_shot: ClassVar[bool]
    lower_is_better: ClassVar[bool | None]  # None: neither end is better

    def start(self) -> MetricState: ...


class TextTower(Protocol):
    """The text side of a backbone: names to tokens to unit-length features, differentiably."""

    def tokens(self, texts: Sequence[str]) -> Tensor: ...

    def encode(self, tokens: Tensor) -> Tensor: ...


class Backbone(Protocol):
    """A dual encoder. It alone owns logit scale and bias."""

    fingerprint: str
    logit_scale: float
    logit_bias: float
    gives: Needs
    text: TextTower

    def pixels(self, image: Any) -> Tensor: ...

    def encode(self, pixels: Tensor) -> Tensor: ...


class Dataset(Protocol):
    """A labelled image set: where its rows are and how its classes are worded."""

    classes: tuple[str, ...]
    templates: tuple[str, ...]
    within: tuple[int, ...] | None  # positions of these classes in a larger set

    def rows(self, root: str, split: str) -> Iterable[tuple[str, int]]: ...
