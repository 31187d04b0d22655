"""TIP-Adapter (Zhang et al. 2022): a cache of the shots votes beside the zero-shot classifier; -F trains its keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from calispan.core.adapting import zero_shot_logits
from calispan.core.contracts import Needs
from calispan.core.errors import NeedsError, RecipeError
from calispan.core.heads import cosine_logits
from calispan.core.objective import Objective, cross_entropy
from calispan.core.registry import method
from calispan.core.store import storable
from calispan.core.training import Bank, Training, minimise
from calispan.core.types import Embeddings, Problem, Scores

CHUNK = 1 << 24  # affinities held at a time when scoring: 64 MiB of float32


def class_sums(labels: Tensor, classes: int) -> Callable[[Tensor], Tensor]:
    """Sums over each class's keys, for sorted labels: the product with the one-hot values. [n, k] -> [n, c]"""
    counts = torch.bincount(labels, minlength=classes)
    shots = len(labels) // classes
    if bool((counts == shots).all()):  # even: a plain sum over a folded axis
        return lambda affinity: affinity.view(len(affinity), classes, shots).sum(dim=-1)
    return lambda affinity: affinity.new_zeros(len(affinity), classes).index_add(1, labels, affinity)


def affinities(queries: Tensor, keys: Tensor, beta: float, lengths: Tensor | None = None) -> Tensor:
    """exp(-beta (1 - q . n(k))). [n, d], [k, d] -> [n, k]

    `lengths` puts the queries' raw lengths back: the un-normalised affinity of the paper's code.
    """
    cosines = F.linear(queries, F.normalize(keys, dim=-1))
    if lengths is not None:
        cosines = cosines * lengths[:, None]
    return torch.exp(beta * (cosines - 1))


@storable("tip-adapter-head")
@dataclass(frozen=True, eq=False)
class TipAdapterHead:
    """The cache (keys and their classes) beside the zero-shot prototypes."""

    keys: Tensor  # k d
    labels: Tensor  # k, sorted
    alpha: float
    beta: float
    raw_query: bool
    weights: Tensor  # c d
    logit_scale: float
    logit_bias: float

    def __call__(self, queries: Embeddings) -> Tensor:
        n, v, _ = queries.views.shape
        features = queries.views.flatten(0, 1)
        lengths = _raw_lengths(queries.lengths) if self.raw_query else None
        keys = self.keys.to(features.dtype)
        per_class = class_sums(self.labels, len(self.weights))
        rows = max(1, CHUNK // max(1, len(keys)))
        votes = features.new_empty(len(features), len(self.weights))
        for first in range(0, len(features), rows):
            part = slice(first, first + rows)
            raw = None if lengths is None else lengths[part]
            votes[part] = per_class(affinities(features[part], keys, self.beta, raw))
        logits = cosine_logits(features, self.weights, self.logit_scale, self.logit_bias)
        return (logits + self.alpha * votes).view(n, v, -1)


def _raw_lengths(lengths: Tensor | None) -> Tensor:
    if lengths is None:
        raise NeedsError(
            "raw_query multiplies by the length of each feature, but these came normalised. "
            "Pass features as the image tower gives them, or use tip-adapter without raw_query."
        )
    return lengths.flatten()


@method(
    "tip-adapter",
    paper="Zhang et al. 2022",
    also={
        "tip-adapter-f": {"train_keys": True, "epochs": 300},
        "tip-adapter-f@original": {
            "train_keys": True, "epochs": 20, "lr": 1e-3, "optimizer": "adamw", "weight_decay": 0.01,
            "schedule": "cosine",
        },
        "tip-adapter@paper": {
            "alpha": 1.0, "raw_query": True, "keys": "first", "key_dtype": "float16", "train_on": "keys",
            "train_keys": True, "epochs": 1,
        },
        "tip-adapter-f@paper": {
            "alpha": 1.0, "raw_query": True, "keys": "first", "key_dtype": "float16", "train_on": "keys",
            "train_keys": True, "epochs": 300,
        },
    },
)  # fmt: skip
@dataclass(frozen=True)
class TipAdapter(Training):
    """A cache of the shots votes beside zero-shot; -f also trains the keys, @paper is the paper's own code."""

    epochs: int = 0
    alpha: float = 1.17
    beta: float = 1.0
    train_keys: bool = False
    keys: Literal["mean", "first"] = "mean"  # of an image's augmented views
    train_on: Literal["views", "keys"] = "views"
    key_dtype: Literal["same", "float16"] = "same"
    raw_query: bool = False

    needs = Needs.EMBEDDINGS
    starts_at_zero_shot = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha < 0 or self.beta < 0:
            raise RecipeError(f"tip-adapter wants alpha >= 0 and beta >= 0; came {self!r}.")

    def fit(self, problem: Problem, objective: Objective, *, seed: int) -> TipAdapterHead:
        order = torch.argsort(problem.labels, stable=True)
        labels = problem.labels[order]
        views = problem.support.views[order]
        augmented = views[:, 1:] if views.shape[1] > 1 else views
        keys = F.normalize(augmented.mean(dim=1), dim=-1) if self.keys == "mean" else augmented[:, 0].clone()
        if self.key_dtype == "float16":
            keys = keys.half()
        if self.train_keys:
            keys = self._train(problem, objective, keys, labels, seed)
        return TipAdapterHead(
            keys,
            labels,
            self.alpha,
            self.beta,
            self.raw_query,
            problem.text,
            problem.logit_scale,
            problem.logit_bias,
        )

    def _train(self, problem: Problem, objective: Objective, keys: Tensor, labels: Tensor, seed: int) -> Tensor:
        keys = keys.detach().clone().requires_grad_()
        bank = Bank.of(problem.support)
        if self.train_on == "keys":
            bank = bank.first_views()
        raw = _raw_lengths(bank.lengths) if self.raw_query else None
        zero_shot = zero_shot_logits(problem)
        dtype = problem.text.dtype
        per_class = class_sums(labels, len(problem.classes))

        def loss_of(features: Tensor, targets: Tensor, rows: Tensor) -> Tensor:
            lengths = None if raw is None else raw[rows]
            base = zero_shot(features)
            votes = per_class(affinities(features, keys.to(dtype), self.beta, lengths))
            return objective(cross_entropy, Scores(base + self.alpha * votes, base), targets)

        minimise(self, [keys], bank, loss_of, seed=seed)
        return keys.detach()
