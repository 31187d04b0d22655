"""Does the embedded world show the effect? Few-shot heads on a tower's cached features, raw and under SaLS.

python tools/check_world.py src/calispan/backbones/weights/toy-rn --shots 16
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from open_clip.model import CLIP
from torch import Tensor
from torch.nn import functional as F
from train_toy import EIGHT, SIZE, Words, accuracy_and_ece, image_features, load, prototypes, zero_shot_logits

from calispan.core.objective import Objective
from calispan.core.registry import methods
from calispan.core.sampling import few_shot, generator
from calispan.core.types import Embeddings, Problem
from calispan.datasets.shapes import Shapes

SHIFTS = ("photo-v2", "sketch", "adversarial", "rendition")
HEADS = ("zs-lp", "task-res", "clip-adapter", "tip-adapter-f")


def augmented(images: Tensor, draws: torch.Generator, least_area: float) -> Tensor:
    """A random resized crop and flip of each image, by bilinear sampling."""
    count = len(images)
    area = torch.rand(count, generator=draws) * (1 - least_area) + least_area
    ratio = torch.exp((torch.rand(count, generator=draws) * 2 - 1) * torch.log(torch.tensor(4 / 3)))
    wide, high = ((area * r).sqrt().clamp(max=1) for r in (ratio, 1 / ratio))
    theta = torch.zeros(count, 2, 3)
    theta[:, 0, 0] = wide * (torch.rand(count, generator=draws) < 0.5).float().mul(2).sub(1)
    theta[:, 1, 1] = high
    theta[:, 0, 2] = (torch.rand(count, generator=draws) * 2 - 1) * (1 - wide)
    theta[:, 1, 2] = (torch.rand(count, generator=draws) * 2 - 1) * (1 - high)
    grid = F.affine_grid(theta.to(images.device), [count, 3, SIZE, SIZE], align_corners=False)
    seen = F.grid_sample(images.float(), grid, padding_mode="reflection", align_corners=False)
    return seen.round().to(torch.uint8)


def support(model: CLIP, shots: int, seed: int, least_area: float, views: int = 20) -> Embeddings:
    """Few shots of photo with their augmented views; view 0 is the image itself."""
    world = Shapes("photo", SIZE)
    names, labels = zip(*world.rows("", "train"), strict=True)
    chosen = few_shot(labels, shots, seed=seed, names=names)
    images, labels = world.draw("train", chosen.to(model.logit_scale.device))
    draws = generator(seed, "crops")
    features = [image_features(model, images)]
    features += [image_features(model, augmented(images, draws, least_area)) for _ in range(views)]
    return Embeddings(torch.stack(features, dim=1), labels)


def saled(logits: Tensor, zero_shot: Tensor) -> Tensor:
    """SaLS: every row squeezed to the range of its zero-shot logits."""
    low, zero_low = logits.amin(dim=1, keepdim=True), zero_shot.amin(dim=1, keepdim=True)
    span, zero_span = logits.amax(dim=1, keepdim=True) - low, zero_shot.amax(dim=1, keepdim=True) - zero_low
    return (logits - low) / span * zero_span + zero_low


Score = Callable[[Tensor], Tensor]


def row(name: str, score: Score, plain: Score, data: dict[str, tuple[Tensor, Tensor, Tensor | None]]) -> str:
    """Accuracy and ECE on photo and on the mean of the shifts, raw and under SaLS, and the range's growth."""
    cells: dict[str, list[tuple[float, ...]]] = {"photo": [], "shift": []}
    for domain, (features, labels, within) in data.items():
        logits, zero_shot = score(features), plain(features)
        if within is not None:
            logits, zero_shot = logits[:, within], zero_shot[:, within]
        span = (logits.amax(1) - logits.amin(1)).mean() / (zero_shot.amax(1) - zero_shot.amin(1)).mean()
        cell = (*accuracy_and_ece(logits, labels), accuracy_and_ece(saled(logits, zero_shot), labels)[1], float(span))
        cells["photo" if domain == "photo" else "shift"].append(cell)
    photo, shift = (torch.tensor(cells[part]).mean(dim=0).tolist() for part in ("photo", "shift"))
    each = " ".join(f"{c[0] * 100:4.1f}/{c[1] * 100:4.1f}>{c[2] * 100:4.1f}" for c in cells["shift"])
    return (
        f"{name:14} photo {photo[0] * 100:5.1f} | {photo[1] * 100:4.1f} > {photo[2] * 100:4.1f}   "
        f"shift {shift[0] * 100:5.1f} | {shift[1] * 100:4.1f} > {shift[2] * 100:4.1f}   "
        f"range x {photo[3]:.2f}, {shift[3]:.2f}   [{each}]"
    )


def check(
    model: CLIP, words: Words, *, shots: int, seed: int, least_area: float, heads: tuple[str, ...], epochs: int
) -> None:
    device = model.logit_scale.device
    source = Shapes("photo", SIZE)
    data = {}
    for domain in ("photo", *SHIFTS):
        world = Shapes(domain, SIZE)
        images, labels = world.draw("test", torch.arange(len(list(world.rows("", "test"))), device=device))
        within = None if world.within is None else torch.tensor(world.within, device=device)
        data[domain] = (image_features(model, images), labels, within)
    text = prototypes(model, words, source.classes, EIGHT)
    scale = float(model.logit_scale.detach().exp())
    problem = Problem(source.classes, support(model, shots, seed, least_area), text, scale)

    def plain(features: Tensor) -> Tensor:
        return zero_shot_logits(model, features, prototypes(model, words, source.classes, source.templates))

    print(f"{shots} shots, seed {seed}, crops from {least_area} of the area, logit scale {scale:.1f}")
    print(row("zero-shot", plain, plain, data), flush=True)
    for name in heads:
        recipe = methods.build(name)
        head = replace(recipe, epochs=epochs or recipe.epochs).fit(problem, Objective(), seed=seed)  # type: ignore[type-var]
        print(row(name, lambda features, head=head: head(Embeddings(features))[:, 0].detach(), plain, data), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tower", type=Path, help="path of the weights, without suffix")
    parser.add_argument("--shots", type=int, nargs="+", default=[16])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--least-area", type=float, default=0.6)
    parser.add_argument("--heads", nargs="+", default=list(HEADS))
    parser.add_argument("--epochs", type=int, default=0, help="default: each recipe's own")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model, words, _ = load(arguments.tower, arguments.device)
    for shots in arguments.shots:
        check(model, words, shots=shots, seed=arguments.seed, least_area=arguments.least_area,
              heads=tuple(arguments.heads), epochs=arguments.epochs)  # fmt: skip


if __name__ == "__main__":
    main()
