"""One plain minimise loop over a bank of cached features, and the warm-up + cosine schedule of the field."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from calispan.core.errors import InputError, RecipeError
from calispan.core.sampling import generator
from calispan.core.steps import make_step, set_rate
from calispan.core.types import Embeddings

Optimizer = Literal["sgd", "adam", "adamw"]
Schedule = Literal["warm-up-cosine", "cosine", "constant"]

WARM_UP_LR = 1e-5


def learning_rate(schedule: Schedule, base: float, epoch: int, epochs: int) -> float:
    """The rate of an epoch, counted from 1.

    `warm-up-cosine`: epoch 1 runs at 1e-5; epoch e >= 2 at base * (1 + cos(pi (e - 2) / epochs)) / 2. The warm-up
    epoch is not taken off the period, so the last epoch does not reach zero: that is the published protocol.
    """
    match schedule:
        case "constant":
            return base
        case "cosine":
            return base * (1 + math.cos(math.pi * (epoch - 1) / epochs)) / 2
        case "warm-up-cosine":
            if epoch == 1:
                return WARM_UP_LR
            return base * (1 + math.cos(math.pi * (epoch - 2) / epochs)) / 2


@dataclass(frozen=True, kw_only=True)
class Training:
    """The hyper-parameters every trained recipe shares; defaults are the adapter benchmark's protocol."""

    epochs: int = 300
    batch_size: int = 256
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 0.0
    optimizer: Optimizer = "sgd"
    schedule: Schedule = "warm-up-cosine"

    def __post_init__(self) -> None:
        if self.epochs < 0 or self.batch_size < 1 or self.lr < 0 or self.weight_decay < 0 or not 0 <= self.momentum < 1:
            raise RecipeError(
                "A training recipe wants epochs >= 0, batch_size >= 1, lr >= 0, weight_decay >= 0 and momentum in "
                f"[0, 1); came {self!r}."
            )


def make_optimizer(recipe: Training, parameters: Sequence[Tensor]) -> torch.optim.Optimizer:
    """torch's own optimiser, fused where it pays."""
    if recipe.optimizer == "sgd":
        device = parameters[0].device
        rate = torch.tensor(recipe.lr, device=device) if device.type == "cuda" else recipe.lr
        return torch.optim.SGD(
            parameters, lr=rate, momentum=recipe.momentum, weight_decay=recipe.weight_decay, fused=True
        )
    maker = torch.optim.Adam if recipe.optimizer == "adam" else torch.optim.AdamW
    # The small eps matters for half-precision parameters only; 1e-4 there is the published value.
    eps = 1e-4 if any(p.dtype == torch.float16 for p in parameters) else 1e-8
    return maker(parameters, lr=recipe.lr, weight_decay=recipe.weight_decay, eps=eps)


@dataclass(frozen=True, eq=False)
class Bank:
    """The rows a training step draws from: every augmented view of every support image.

    View 0 is the image itself; where there are augmented views, training draws those alone. Nothing is copied: a
    bank of 320,000 rows is the support's own memory.
    """

    features: Tensor  # m d, unit length; the views of an image follow one another
    labels: Tensor  # m
    lengths: Tensor | None  # m, of the features before they were normalised, where known
    images: int
    views: int  # of each image

    @staticmethod
    def of(support: Embeddings) -> Bank:
        assert support.labels is not None
        images, views, width = support.views.shape
        return Bank(
            support.views.reshape(-1, width),
            support.labels.repeat_interleave(views),
            None if support.lengths is None else support.lengths.reshape(-1),
            images,
            views,
        )

    @property
    def augmented(self) -> int:
        """How many views of an image training may draw."""
        return max(1, self.views - 1)

    def positions(self, draws: Tensor) -> Tensor:
        """Rows of the bank behind numbers 0 .. images * augmented - 1, image after image."""
        if self.views == 1:
            return draws
        return draws + torch.div(draws, self.augmented, rounding_mode="floor") + 1

    def every_row(self) -> Tensor:
        """All rows that training may draw, image after image."""
        return self.positions(torch.arange(self.images * self.augmented, device=self.features.device))

    def first_views(self) -> Bank:
        """One row an image: its first augmented view."""
        rows = self.every_row()[:: self.augmented]
        lengths = None if self.lengths is None else self.lengths[rows]
        return Bank(self.features[rows], self.labels[rows], lengths, self.images, 1)

    def batches(self, batch_size: int, *, draws: torch.Generator) -> Iterator[Tensor]:
        """One epoch: rows without replacement, as many batches as the *images* would fill, each of full size.

        16,000 images of 20 views make 62 batches of 256 out of 320,000 rows. Fewer images than a batch make one
        batch of all of them.
        """
        size = min(batch_size, self.images)
        count = self.images // size
        order = torch.randperm(self.images * self.augmented, generator=draws)[: count * size]
        yield from torch.split(self.positions(order.to(self.features.device)), size)


StepLoss = Callable[[Tensor, Tensor, Tensor], Tensor]


def minimise(
    recipe: Training,
    parameters: Sequence[Tensor],
    bank: Bank,
    loss_of: StepLoss,
    *,
    seed: int,
    after_epoch: Callable[[], None] | None = None,
) -> None:
    """Train the parameters in place. `loss_of(features, labels, rows)` gives the loss of one batch.

    Draws come from a CPU generator, so the same seed gives the same batches on every device.
    """
    if not recipe.epochs:
        return
    if not len(bank.features):
        raise InputError("The support is empty; training needs at least one labelled row.")
    draws = generator(seed, "batches")
    optimizer = make_optimizer(recipe, parameters)

    def loss_of_rows(rows: Tensor) -> Tensor:
        return loss_of(bank.features.index_select(0, rows), bank.labels.index_select(0, rows), rows)

    with fast_matmul(bank.features.device):
        step = make_step(optimizer, parameters, loss_of_rows, min(recipe.batch_size, bank.images))
        for epoch in progress(range(1, recipe.epochs + 1), "training"):
            set_rate(optimizer, learning_rate(recipe.schedule, recipe.lr, epoch, recipe.epochs))
            for rows in bank.batches(recipe.batch_size, draws=draws):
                step(rows)
            if after_epoch is not None:
                after_epoch()


@contextlib.contextmanager
def fast_matmul(device: torch.device) -> Iterator[None]:
    """Float32 on a CPU; on a GPU matrix products run in tf32, whose 11-bit mantissa keeps logits to about 0.01."""
    if device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def progress(steps: range, what: str) -> Iterator[int]:
    """A bar on stderr for what takes over two seconds; nothing where stderr is no terminal."""
    if not sys.stderr.isatty():
        return iter(steps)
    from tqdm.auto import tqdm

    return iter(tqdm(steps, desc=what, delay=2, leave=False))


def pick_device(device: str | torch.device) -> torch.device:
    """`"auto"`: the first CUDA card where there is one, else the CPU."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise InputError(f"'{device}' is no device; pass 'auto', 'cpu', 'cuda' or 'cuda:1'.") from error
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"Device '{device}' was asked for, but torch sees no CUDA card. Pass 'auto' or 'cpu'.")
    return chosen
