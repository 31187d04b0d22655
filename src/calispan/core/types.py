"""The values that travel: Embeddings (what a backbone saw), Problem (what a method may learn from), Scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from calispan.core.errors import InputError

if TYPE_CHECKING:
    from calispan.core.contracts import TextTower

Arrayish = Tensor | np.ndarray[Any, Any] | Sequence[Any]

# A float16 row of unit length has a norm within about 1e-3 of one; anything farther was never normalised.
_UNIT_TOLERANCE = 2e-3


def _floats(values: Arrayish, what: str) -> Tensor:
    """As a floating tensor: half precision becomes float32 (halves stay inside towers), float64 is kept."""
    tensor = torch.as_tensor(values)
    if tensor.is_complex() or tensor.dtype == torch.bool:
        raise InputError(f"{what} must be real numbers, but came as {tensor.dtype}.")
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def _labels(values: Arrayish, rows: int, what: str) -> Tensor:
    tensor = torch.as_tensor(values)
    if tensor.is_floating_point() or tensor.dtype == torch.bool or tensor.ndim != 1:
        raise InputError(
            f"Labels of {what} must be one whole number a row, but came as {tensor.dtype} of shape "
            f"{tuple(tensor.shape)}. Pass class indices 0..classes-1, not one-hot rows or names."
        )
    if len(tensor) != rows:
        raise InputError(f"{what} has {rows} rows but {len(tensor)} labels. Pass one label a row.")
    return tensor.long()


def _first_bad_row(finite: Tensor) -> int:
    return int((~finite).nonzero()[0, 0])


@dataclass(frozen=True, eq=False)
class Embeddings:
    """Rows of one backbone: `views` [n, v, d] of unit length (view 0 is the image itself), labels where known.

    Give rows as [n, d] (one view) or [n, v, d]. Rows that are not of unit length are normalised, and their
    lengths are kept for the few methods that read them (`lengths` is None when they came normalised).
    """

    views: Tensor  # n v d
    labels: Tensor | None = None  # n
    images: Sequence[Any] | None = None  # the same rows as pixels, for the heads that must look again
    lengths: Tensor | None = None  # n v

    def __post_init__(self) -> None:
        views = _floats(self.views, "Embeddings")
        if views.ndim == 2:
            views = views[:, None]
        if views.ndim != 3 or 0 in views.shape[1:]:
            raise InputError(
                f"Embeddings came with shape {tuple(torch.as_tensor(self.views).shape)}; "
                "wanted [rows, width] or [rows, views, width]."
            )
        lengths = torch.linalg.vector_norm(views, dim=-1)  # n v
        usable = torch.isfinite(lengths) & (lengths > 0)
        if not bool(usable.all()):
            row = _first_bad_row(usable.all(dim=1))
            raise InputError(
                f"Embeddings row {row} is zero, NaN or infinite, so it has no direction. "
                "Drop that row or embed its image again."
            )
        if len(views) and float((lengths - 1).abs().max()) > _UNIT_TOLERANCE and self.lengths is None:
            object.__setattr__(self, "lengths", lengths)
        object.__setattr__(self, "views", views / lengths[..., None])
        if self.labels is not None:
            object.__setattr__(self, "labels", _labels(self.labels, len(views), "Embeddings"))
        if self.images is not None and len(self.images) != len(views):
            raise InputError(f"Embeddings have {len(views)} rows but {len(self.images)} images.")

    def __len__(self) -> int:
        return len(self.views)

    @property
    def width(self) -> int:
        return int(self.views.shape[-1])

    @property
    def features(self) -> Tensor:
        """View 0 of every row: the image itself. [n, d]"""
        return self.views[:, 0]

    def rows(self, index: Tensor | slice) -> Embeddings:
        """The chosen rows, bit for bit (nothing is normalised again)."""
        picked = self.images
        if picked is not None:
            positions = torch.arange(len(self))[index.cpu() if isinstance(index, Tensor) else index]
            picked = [picked[int(i)] for i in positions]
        return self._with(
            views=self.views[index],
            labels=None if self.labels is None else self.labels[index],
            images=picked,
            lengths=None if self.lengths is None else self.lengths[index],
        )

    def to(self, device: torch.device) -> Embeddings:
        return self._with(
            views=self.views.to(device),
            labels=None if self.labels is None else self.labels.to(device),
            images=self.images,
            lengths=None if self.lengths is None else self.lengths.to(device),
        )

    def _with(self, **fields: Any) -> Embeddings:
        new = object.__new__(Embeddings)
        for name, value in fields.items():
            object.__setattr__(new, name, value)
        return new


@dataclass(frozen=True, eq=False)
class Problem:
    """What a method may learn from: classes, few labelled rows, zero-shot prototypes. There is no test split in it."""

    classes: tuple[str, ...]
    support: Embeddings
    text: Tensor  # c d, as the prompt set made them; their lengths matter to ZS-LP and TaskRes
    logit_scale: float = 100.0
    logit_bias: float = 0.0
    text_tower: TextTower | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", tuple(str(name) for name in self.classes))
        text = _floats(self.text, "Text prototypes")
        object.__setattr__(self, "text", text)
        count = len(self.classes)
        if text.ndim != 2 or len(text) != count:
            raise InputError(
                f"Text prototypes came with shape {tuple(text.shape)} for {count} classes; wanted [{count}, width]."
            )
        if count == 0:
            raise InputError("A problem needs at least one class.")
        if text.shape[1] != self.support.width:
            raise InputError(
                f"Text prototypes are {text.shape[1]} wide but the support is {self.support.width} wide. "
                "Both must come from the same backbone."
            )
        usable = torch.isfinite(text).all(dim=1) & (text != 0).any(dim=1)
        if not bool(usable.all()):
            row = _first_bad_row(usable)
            raise InputError(f"The text prototype of class {row} ('{self.classes[row]}') is zero, NaN or infinite.")
        labels = self.support.labels
        if labels is None:
            raise InputError("The support has no labels. Build it as Embeddings(features, labels).")
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < count:
            raise InputError(
                f"Support labels run from {int(labels.min())} to {int(labels.max())}, but there are {count} classes "
                f"(0..{count - 1})."
            )
        if not float(self.logit_scale) > 0:
            raise InputError(f"logit_scale is {self.logit_scale}; wanted the exponentiated value, such as 100.0.")

    @property
    def labels(self) -> Tensor:
        """Labels of the support. [n]"""
        assert self.support.labels is not None  # checked at construction
        return self.support.labels

    def zero_shot(self, features: Tensor) -> Tensor:
        """Zero-shot logits of unit features: scale times cosine to each class's text. [..., d] -> [..., c]"""
        prototypes = torch.nn.functional.normalize(self.text, dim=-1)
        return torch.nn.functional.linear(features, prototypes) * self.logit_scale + self.logit_bias

    def to(self, device: torch.device) -> Problem:
        return replace(self, support=self.support.to(device), text=self.text.to(device))


class Scores:
    """Logits and the zero-shot logits of the same rows and classes: the one currency from a head onwards.

    `zero_shot` may be handed over as a function; it runs when something first reads it, so a loss that never
    looks at the zero-shot logits never pays for them. Leading axes [..., n, c] hold independent problems.
    """

    __slots__ = ("_zero_shot", "logits", "views")

    logits: Tensor  # ... n c
    views: Scores | None  # the same rows, every view of them: n v c

    def __init__(
        self,
        logits: Arrayish,
        zero_shot: Arrayish | Callable[[], Tensor] | None = None,
        views: Scores | None = None,
    ) -> None:
        self.logits = _floats(logits, "Logits")
        if self.logits.ndim < 2 or self.logits.shape[-1] == 0:
            raise InputError(f"Logits came with shape {tuple(self.logits.shape)}; wanted [rows, classes].")
        self._zero_shot: Tensor | Callable[[], Tensor] | None = None
        if callable(zero_shot):
            self._zero_shot = zero_shot
        elif zero_shot is not None:
            self._zero_shot = self._checked(_floats(zero_shot, "Zero-shot logits"))
        self.views = views

    def _checked(self, zero_shot: Tensor) -> Tensor:
        if zero_shot.shape != self.logits.shape:
            raise InputError(
                f"Zero-shot logits came with shape {tuple(zero_shot.shape)} but the logits are "
                f"{tuple(self.logits.shape)}; both must hold the same rows and classes."
            )
        return zero_shot

    @property
    def zero_shot(self) -> Tensor:
        """Zero-shot logits of the same rows. [..., n, c]"""
        if self._zero_shot is None:
            raise InputError(
                "These scores carry no zero-shot logits, and this step reads them. "
                "Build them as Scores(logits, zero_shot), or pass --zero-shot FILE on the command line."
            )
        if not isinstance(self._zero_shot, Tensor):
            self._zero_shot = self._checked(self._zero_shot())
        return self._zero_shot

    @property
    def has_zero_shot(self) -> bool:
        return self._zero_shot is not None

    def __len__(self) -> int:
        return int(self.logits.shape[-2])

    def __repr__(self) -> str:
        extra = "" if self.views is None else f", views={self.views.logits.shape[-2]}"
        known = "with" if self.has_zero_shot else "without"
        return f"Scores({list(self.logits.shape)} {known} zero-shot logits{extra})"

    def probabilities(self) -> Tensor:
        return self.logits.softmax(dim=-1)

    def replace(self, logits: Tensor, views: Scores | None = None) -> Scores:
        """The same rows under other logits; views stay as they are unless new ones are given."""
        return Scores(logits, self._zero_shot, self.views if views is None else views)

    def rows(self, index: slice | Tensor) -> Scores:
        """The chosen rows of [n, c] scores."""
        zero_shot = self.zero_shot[index] if self.has_zero_shot else None
        return Scores(self.logits[index], zero_shot, None if self.views is None else self.views._first(index))

    def _first(self, index: slice | Tensor) -> Scores:
        return Scores(self.logits[index], self.zero_shot[index] if self.has_zero_shot else None)

    def select(self, classes: Sequence[int] | Tensor) -> Scores:
        """The same rows over some of the classes, in the order given."""
        index = torch.as_tensor(classes, device=self.logits.device).long()
        count = self.logits.shape[-1]
        if index.ndim != 1 or not len(index) or not 0 <= int(index.min()) <= int(index.max()) < count:
            raise InputError(f"select wants class indices within 0..{count - 1}, one or more of them.")
        return Scores(
            self.logits.index_select(-1, index),
            self.zero_shot.index_select(-1, index) if self.has_zero_shot else None,
            None if self.views is None else self.views.select(index),
        )

    def to(self, device: torch.device) -> Scores:
        return Scores(
            self.logits.to(device),
            self.zero_shot.to(device) if self.has_zero_shot else None,
            None if self.views is None else self.views.to(device),
        )
