"""A world of features without images: class directions, a modality gap, and a shift that few shots cannot foresee.

Each class has a meaning that text and images share, and an accent that images add in one domain only. Few shots
teach a head the accent of `photo`; under shift the accent is another one, so what was learned speaks up wrongly.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from calispan.core.sampling import generator
from calispan.core.types import Embeddings, Problem


@dataclass(frozen=True, eq=False)
class FeatureWorld:
    """A few-shot problem, and test rows of its own domain and of three shifted ones."""

    problem: Problem
    domains: dict[str, Embeddings]


def feature_world(
    *,
    classes: int = 50,
    width: int = 96,
    shots: int = 16,
    views: int = 4,
    rows: int = 3000,
    noise: float = 1.0,
    logit_scale: float = 60.0,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> FeatureWorld:
    """Draw a world. The same arguments give the same world on every machine."""
    draws = generator(seed, "feature world")

    def unit(*shape: int) -> Tensor:
        return F.normalize(torch.randn(*shape, generator=draws, dtype=torch.float64), dim=-1)

    meaning = unit(classes, width)
    text_gap, image_gap = unit(1, width), unit(1, width)
    text = F.normalize(2.0 * text_gap + meaning + 0.35 * unit(classes, width), dim=-1)
    accents = {"photo": unit(classes, width), "near": unit(classes, width), "far": unit(classes, width)}
    for accent, kept in (("near", 0.7), ("far", 0.35)):  # how much of photo's accent a shift still carries
        accents[accent] = F.normalize(kept * accents["photo"] + (1 - kept) * accents[accent], dim=-1)
    # domain: its accent, then the strengths of meaning, accent and noise
    styles = {
        "photo": ("photo", 1.0, 0.8, 3.0),
        "near shift": ("near", 1.0, 0.8, 3.0),
        "far shift": ("far", 1.0, 0.8, 3.1),
        "noisy shift": ("far", 0.95, 0.7, 3.3),
    }

    def images(labels: Tensor, style: str, count: int) -> Tensor:
        accent, own, foreign, spread = styles[style]
        centre = 2.0 * image_gap + own * meaning[labels] + foreign * accents[accent][labels]
        subject = noise * spread * unit(len(labels), width)  # what stays when the picture is cropped again
        seen = centre[:, None] + subject[:, None] + 0.25 * noise * spread * unit(len(labels), count, width)
        return F.normalize(seen, dim=-1).to(dtype)  # n v d

    shot_labels = torch.arange(classes).repeat_interleave(shots)
    support = Embeddings(images(shot_labels, "photo", 1 + views), shot_labels)
    domains = {}
    for style in styles:
        labels = torch.arange(rows) % classes
        domains[style] = Embeddings(images(labels, style, 1), labels)
    names = tuple(f"class {number}" for number in range(classes))
    return FeatureWorld(Problem(names, support, text.to(dtype), logit_scale=logit_scale), domains)
