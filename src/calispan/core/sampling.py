"""Few-shot draws: from an explicit seed, over sorted names, so the same seed means the same images everywhere."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from calispan.core.errors import InputError


def generator(seed: int, stream: str) -> torch.Generator:
    """A CPU generator for one named purpose: the same draws on every device, independent of other purposes."""
    digest = hashlib.sha256(f"{seed}\0{stream}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def few_shot(labels: Tensor | Sequence[int], shots: int, *, seed: int, names: Sequence[str] | None = None) -> Tensor:
    """Indices of `shots` rows of each class (all of a smaller class), class by class.

    With names the draw depends on names and seed alone, not on the order in which a file system lists them, and
    a class keeps its images when other classes come or go. Without names a row's position is its name.
    """
    labels = torch.as_tensor(labels)
    if shots < 1:
        raise InputError(f"shots is {shots}; wanted 1 or more.")
    if names is not None and len(names) != len(labels):
        raise InputError(f"{len(names)} names came for {len(labels)} labels; wanted one a row.")

    def rank(row: int) -> bytes:
        name = names[row] if names is not None else str(row)
        return hashlib.sha256(f"{seed}\0{name}".encode()).digest()

    chosen: list[int] = []
    for label in torch.unique(labels).tolist():
        rows = (labels == label).nonzero()[:, 0].tolist()
        chosen += sorted(sorted(rows, key=rank)[:shots])
    return torch.tensor(chosen, dtype=torch.long)


def folds(labels: Tensor, count: int, *, seed: int) -> Tensor:
    """A fold number for each row, spread evenly within every class. [n]"""
    draws = generator(seed, "folds")
    labels = labels.cpu()
    fold = torch.empty(len(labels), dtype=torch.long)
    for label in torch.unique(labels).tolist():
        rows = (labels == label).nonzero()[:, 0]
        rows = rows[torch.randperm(len(rows), generator=draws)]
        # Classes start at different folds, so that folds stay even when classes are small.
        fold[rows] = (torch.arange(len(rows)) + label) % count
    return fold
