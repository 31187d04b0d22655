"""The embedded world: coloured shapes and textures, drawn on demand, with the kinds of shift that CLIP meets.

No file is read. Image i of a domain, split and seed is the same picture on every machine, whatever else is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from calispan.core.errors import InputError, RecipeError, did_you_mean
from calispan.core.registry import datasets
from calispan.datasets._shapes_canvas import HUES, Style, drift
from calispan.datasets._shapes_chance import Chance, keys_of
from calispan.datasets._shapes_drawing import FORMS, PATTERNS, paint

Domain = Literal["photo", "photo-v2", "sketch", "adversarial", "rendition", "textures", "wild", "wild-textures"]

BATCH = 32  # images drawn at once on a CPU: their pixels stay within a core's cache
PER_CLASS = {"train": 64, "val": 10, "test": 30}

# A camera or palette of its own for each domain: hues lie off their names, each domain's by another amount. Few
# shots of `photo` can learn photo's; the shifts have theirs.
STYLES: dict[str, tuple[str, Style]] = {
    "photo": ("photo", Style(hue_cast=0.33, hue_spread=0.23)),
    "photo-v2": (
        "photo",
        Style(hue_cast=0.15, hue_spread=0.38, scale=(0.3, 0.65), wander=0.35, grain=0.09, clouds=0.2, occlusion=0.2),
    ),
    "sketch": ("sketch", Style(hue_cast=0.08, hue_spread=0.48, tint=0.22)),
    "adversarial": (
        "photo",
        Style(
            hue_cast=0.08,
            hue_spread=0.33,
            turn=0.2,
            stretch=1.6,
            scale=(0.32, 0.6),
            wander=0.4,
            camouflage=0.6,
            occlusion=0.4,
        ),
    ),
    "rendition": ("rendition", Style(hue_cast=0.08, hue_spread=0.42, turn=0.12)),
    "textures": ("texture", Style(hue_cast=0.15, hue_spread=0.4, turn=0.1)),
    "wild-textures": ("texture", Style(hue_spread=0.44, turn=0.1)),
}
# What the towers see when they learn names: every style, and every hue about its name.
WILD: tuple[tuple[float, str, Style], ...] = (
    (0.70, "photo", Style(hue_spread=0.44, turn=0.1)),
    (0.10, "sketch", Style(hue_spread=0.44, turn=0.1, tint=0.5)),
    (
        0.10,
        "photo",
        Style(hue_spread=0.44, turn=0.1, stretch=1.5, scale=(0.32, 0.7), wander=0.4, camouflage=0.4, occlusion=0.4),
    ),
    (0.10, "rendition", Style(hue_spread=0.44, turn=0.1)),
)
SUBSETS = {
    "adversarial": ("circle", "heart", "star", "triangle", "square", "arrow"),
    "rendition": ("ring", "moon", "flower", "star", "triangle", "cross"),
}


@datasets.register("shapes", also={f"shapes-{name}": {"domain": name} for name in get_args(Domain) if name != "photo"})
@dataclass(frozen=True)
class Shapes:
    """Coloured shapes ("red star") as photos, drawings and renditions, and as a second task coloured textures."""

    domain: Domain = "photo"
    size: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        known = get_args(Domain)
        if self.domain not in known:
            near = did_you_mean(self.domain, known)
            raise RecipeError(f"Shapes have no domain '{self.domain}'.{near} Known: {', '.join(known)}.")
        if self.size < 16:
            raise RecipeError(f"Shapes are drawn 16 pixels wide or more; came size {self.size}.")

    @property
    def _textures(self) -> bool:
        return self.domain.endswith("textures")

    @property
    def _forms(self) -> tuple[str, ...]:
        return tuple(PATTERNS) if self._textures else FORMS

    @property
    def _all_classes(self) -> tuple[str, ...]:
        return tuple(f"{colour} {form}" for form in self._forms for colour in HUES)

    @property
    def within(self) -> tuple[int, ...] | None:
        """Where this domain's classes stand among the hundred of `photo`; None when it has all of them."""
        if self.domain not in SUBSETS:
            return None
        chosen = SUBSETS[self.domain]
        return tuple(i for i, name in enumerate(self._all_classes) if name.split()[1] in chosen)

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self._all_classes[i] for i in self.within or range(len(self._all_classes)))

    @property
    def templates(self) -> tuple[str, ...]:
        return ("a photo of {}.",) if self._textures else ("a photo of a {}.",)

    def rows(self, root: str, split: str) -> Iterator[tuple[str, int]]:
        """A name and a label for every image of a split. `root` is not read; `open` draws an image by its name."""
        count = len(self.classes)
        return ((f"{split}/{index:06d}", index % count) for index in range(self._images(split)))

    def open(self, name: str) -> Tensor:
        """The image of one row. uint8 [3, size, size]"""
        split, _, index = name.partition("/")
        if not index.isdecimal():
            raise InputError(f"No image is called '{name}'. Names are as rows() gives them: train/000012.")
        return self.draw(split, [int(index)])[0][0]

    def draw(self, split: str, indices: Sequence[int] | Tensor) -> tuple[Tensor, Tensor]:
        """Images by number, and their labels: number modulo classes. uint8 [n, 3, size, size], [n]

        Numbers past the split's rows are images too (training draws as many as it likes).
        """
        self._images(split)
        wanted = torch.as_tensor(indices, dtype=torch.long)
        if wanted.ndim != 1 or (len(wanted) and int(wanted.min()) < 0):
            raise InputError("draw wants a list of image numbers, 0 or more each.")
        labels = wanted % len(self.classes)
        positions = labels if self.within is None else torch.tensor(self.within, device=wanted.device)[labels]
        keys = self._keys(split, wanted)
        form, colour = positions // len(HUES), positions % len(HUES)
        images = torch.empty(len(wanted), 3, self.size, self.size, dtype=torch.uint8, device=wanted.device)
        for painter, style, rows in self._drawn_by(split, wanted):
            for few in torch.split(rows, BATCH if rows.device.type == "cpu" else 8192):
                images[few] = paint(painter, style, keys[few], form[few], colour[few], self.size)
        return images, labels

    def style_of(self, split: str, indices: Sequence[int] | Tensor) -> Tensor:
        """Which entry of `WILD` each image of the wild domain is drawn by. [n]"""
        if self.domain != "wild":
            raise InputError(f"Only the domain 'wild' mixes styles; '{self.domain}' has one.")
        # From the complement of its key, so that the lot says nothing about the drawing.
        lot = Chance(~self._keys(split, torch.as_tensor(indices))).uniform().flatten()
        borders = torch.tensor([share for share, _, _ in WILD], device=lot.device).cumsum(0)
        return (lot[:, None] >= borders[:-1]).sum(dim=1)

    def drift_of(self, split: str, indices: Sequence[int] | Tensor) -> Tensor:
        """How far each image's hue lies off its colour's name, in steps from name to name. [n]"""
        wanted = torch.as_tensor(indices)
        keys = self._keys(split, wanted)
        drifts = torch.zeros(len(wanted), device=wanted.device)
        for _, style, rows in self._drawn_by(split, wanted):
            drifts[rows] = drift(Chance(keys[rows]), style).flatten()
        return drifts

    def _images(self, split: str) -> int:
        if split not in PER_CLASS:
            raise InputError(f"Shapes have no split '{split}'. Known: {', '.join(PER_CLASS)}.")
        return PER_CLASS[split] * len(self.classes)

    def _keys(self, split: str, indices: Tensor) -> Tensor:
        return keys_of(f"{self.domain}/{split}/{self.seed}", indices)

    def _drawn_by(self, split: str, indices: Tensor) -> Iterator[tuple[str, Style, Tensor]]:
        """Which rows are drawn how: all alike, but for the wild domain's mixture."""
        everyone = torch.arange(len(indices), device=indices.device)
        if self.domain == "wild":
            style = self.style_of(split, indices)
            for place, (_, painter, how) in enumerate(WILD):
                yield painter, how, everyone[style == place]
        else:
            yield *STYLES[self.domain], everyone
