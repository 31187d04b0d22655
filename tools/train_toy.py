"""Train a toy tower pair (`toy:vit` or `toy:rn`) on the embedded world and write its weights and card.

    python tools/train_toy.py --tower rn
    python tools/train_toy.py --tower vit

One thread, a fixed number of steps: the same seed gives the same towers up to rounding of the machine's kernels.
The model is open_clip's CLIP class with CLIP's tokenizer; only the token rows that the world's texts use are kept.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import open_clip
import torch
from captions import KINDS, Captioner
from open_clip.model import CLIP
from open_clip.tokenizer import SimpleTokenizer
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from calispan.datasets.shapes import Shapes

WEIGHTS = Path(__file__).parents[1] / "src/calispan/backbones/weights"
SIZE = 64
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
TEXT = {"context_length": 32, "width": 128, "heads": 4, "layers": 2}
TOWERS: dict[str, dict[str, Any]] = {
    "rn": {
        "vision_cfg": {"layers": [1, 1, 1, 1], "width": 16, "head_width": 64, "image_size": SIZE},
        "steps": 1000,
        "lr": 2e-3,
    },
    "vit": {
        "vision_cfg": {"layers": 4, "width": 128, "head_width": 32, "patch_size": 16, "image_size": SIZE},
        "steps": 3000,
        "lr": 1e-3,
    },
}
EMBED_DIM = 128
# Only directions count in a contrastive loss, so the raw length of a text feature is free; but a step of ZS-LP or
# TaskRes turns a prototype by an angle that goes with 1 / length^2. The published schedule has 18,600 steps on
# ImageNet and 1,800 on a hundred classes; this length (19 after training) lets 1,800 go as far as 18,600 would.
TEXT_LENGTH = 6.0
BATCH, TEXTURES_IN_BATCH = 256, 24
# The prompt ensemble that adapters start from: CLIP's seven selected ones, and the plain one.
EIGHT = (
    "itap of a {}.", "a bad photo of the {}.", "a origami {}.", "a photo of the large {}.", "a {} in a video game.",
    "art of the {}.", "a photo of the small {}.", "a photo of a {}.",
)  # fmt: skip
PROMPTS = {
    "eight": EIGHT,
    "bare": ("{}",),
    "dusk": ("a photo of a {} at dusk.",),
    "dawn": ("a photo of a {} at dawn.",),
}
DOMAINS = ("wild", "photo", "photo-v2", "sketch", "adversarial", "rendition", "textures", "wild-textures")


class Words:
    """CLIP's tokenizer over the kept rows of its token table."""

    def __init__(self, token_ids: list[int]) -> None:
        self.token_ids = token_ids  # ascending, so that the end-of-text token stays the largest
        self._row = {token: row for row, token in enumerate(token_ids)}
        self._tokenizer = SimpleTokenizer(context_length=TEXT["context_length"])
        self._known: dict[str, list[int]] = {}

    @staticmethod
    def of(texts: list[str]) -> Words:
        found = SimpleTokenizer(context_length=TEXT["context_length"])(texts)
        return Words(torch.unique(found).tolist())

    def __call__(self, texts: list[str], device: torch.device | str = "cpu") -> Tensor:
        for text in texts:
            if text not in self._known:
                self._known[text] = [self._row[int(token)] for token in self._tokenizer([text])[0]]
        return torch.tensor([self._known[text] for text in texts], device=device)


def pixels(images: Tensor) -> Tensor:
    """The towers' preprocessing of uint8 images of their own size."""
    mean, std = (torch.tensor(v, device=images.device).view(3, 1, 1) for v in (MEAN, STD))
    return ((images.float() / 255 - mean) / std).contiguous(memory_format=torch.channels_last)


def encode_captions(model: CLIP, tokens: Tensor) -> Tensor:
    """open_clip's encode_text, cut after the longest caption (causal: what follows a text does not change it)."""
    longest = int(tokens.argmax(dim=1).max()) + 1
    tokens = tokens[:, :longest]
    hidden = model.token_embedding(tokens) + model.positional_embedding[:longest]
    hidden = model.ln_final(model.transformer(hidden, attn_mask=model.attn_mask[:longest, :longest]))
    ends = hidden[torch.arange(len(tokens), device=tokens.device), tokens.argmax(dim=1)]
    return F.normalize(ends @ model.text_projection, dim=-1)


def train(tower: str, seed: int, steps: int, device: torch.device) -> tuple[CLIP, Words]:
    """Contrastive training on (picture, caption) pairs of the wild domains."""
    setting = TOWERS[tower]
    worlds = [Shapes("wild", SIZE), Shapes("wild-textures", SIZE)]
    colours = sorted({name.split()[0] for name in worlds[0].classes})
    forms, patterns = (sorted({name.split()[1] for name in world.classes}) for world in worlds)
    captioner = Captioner(colours, forms, patterns, seed=seed)
    words = Words.of(list(captioner.every_text()))
    torch.manual_seed(seed)
    text_cfg = {**TEXT, "vocab_size": len(words.token_ids)}
    model = CLIP(EMBED_DIM, setting["vision_cfg"], text_cfg, init_logit_scale=math.log(50))
    model = model.to(device, memory_format=torch.channels_last)
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    plain = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=setting["lr"], betas=(0.9, 0.98), fused=True)
    order = torch.Generator().manual_seed(seed)
    started = time.time()
    running = 0.0
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = setting["lr"] * min(1, (step + 1) / 100) * (1 + math.cos(math.pi * step / steps)) / 2
        images, texts = [], []
        for world, count in zip(worlds, (BATCH - TEXTURES_IN_BATCH, TEXTURES_IN_BATCH), strict=True):
            # Numbers past the rows of the split; 2**40 of them, so hardly any comes twice.
            chosen = torch.randint(1 << 20, 1 << 40, (count,), generator=order).to(device)
            drawn, labels = world.draw("train", chosen)
            kinds = world.style_of("train", chosen).tolist() if world.domain == "wild" else [0] * count
            images.append(drawn)
            drifts = world.drift_of("train", chosen).tolist()
            names = [world.classes[label].split() for label in labels.tolist()]
            texts += [captioner(KINDS[k], off, *name) for k, off, name in zip(kinds, drifts, names, strict=True)]
        tokens = words(texts, device)
        # Written-out attention: its backward is twice as fast as the fused kernel's on a CPU.
        with torch.autocast(device.type, torch.bfloat16), sdpa_kernel(SDPBackend.MATH):
            seen = model.encode_image(pixels(torch.cat(images)), normalize=True)
            read = encode_captions(model, tokens)
        logits = model.logit_scale.exp() * seen.float() @ read.float().T
        target = torch.arange(BATCH, device=device)
        loss = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            model.logit_scale.clamp_(max=math.log(100))
        running += float(loss.detach())
        if (step + 1) % 100 == 0:
            scale, spent = float(model.logit_scale.detach().exp()), time.time() - started
            print(f"step {step + 1}  loss {running / 100:.3f}  scale {scale:.1f}  {spent:.0f} s", flush=True)
            running = 0.0
    model.eval()
    return model, words


@torch.no_grad()
def image_features(model: CLIP, images: Tensor) -> Tensor:
    return torch.cat([model.encode_image(pixels(part), normalize=True) for part in images.split(500)])


@torch.no_grad()
def prototypes(model: CLIP, words: Words, classes: tuple[str, ...], templates: tuple[str, ...]) -> Tensor:
    """Mean of the raw text features over the templates. [c, d]"""
    device = model.logit_scale.device
    return torch.stack(
        [model.encode_text(words([template.format(name) for name in classes], device)) for template in templates]
    ).mean(dim=0)


def zero_shot_logits(model: CLIP, features: Tensor, text: Tensor) -> Tensor:
    return model.logit_scale.detach().exp() * features @ F.normalize(text, dim=-1).T


@torch.no_grad()
def set_text_length(model: CLIP, words: Words) -> float:
    """Give raw text features a mean length of TEXT_LENGTH; returns what training left."""
    world = Shapes("photo", SIZE)
    length = float(prototypes(model, words, world.classes, EIGHT).norm(dim=1).mean())
    model.text_projection *= TEXT_LENGTH / length
    return length


def fit_scale(model: CLIP, words: Words) -> float:
    """The one factor on the logit scale that fits fresh pictures of the wild domain best.

    Batches hold several captions of one class, which counts right answers as wrong: the learned scale is too low.
    """
    world = Shapes("wild", SIZE)
    images, labels = world.draw("val", torch.arange(3000, device=model.logit_scale.device))
    text = prototypes(model, words, world.classes, world.templates)
    logits = zero_shot_logits(model, image_features(model, images), text)
    factors = torch.arange(0.5, 3.0, 0.01)
    losses = torch.tensor([float(F.cross_entropy(logits * factor, labels)) for factor in factors])
    return float(factors[losses.argmin()])


def accuracy_and_ece(logits: Tensor, labels: Tensor, bins: int = 15) -> tuple[float, float]:
    confidence, predicted = logits.softmax(dim=1).max(dim=1)
    right = (predicted == labels).float()
    place = (confidence * bins).ceil().long().clamp(1, bins) - 1
    gaps = torch.zeros(bins, device=logits.device).index_add(0, place, confidence - right)
    return float(right.mean()), float(gaps.abs().sum() / len(labels))


def report(model: CLIP, words: Words) -> dict[str, dict[str, float]]:
    """Zero-shot accuracy and ECE-15 of every domain's test split, under a few prompts."""
    device = model.logit_scale.device
    results = {}
    for domain in DOMAINS:
        world = Shapes(domain, SIZE)
        images, labels = world.draw("test", torch.arange(len(list(world.rows("", "test"))), device=device))
        features = image_features(model, images)
        row = {}
        for name, templates in {"own": world.templates, **PROMPTS}.items():
            logits = zero_shot_logits(model, features, prototypes(model, words, world.classes, templates))
            row[f"{name} accuracy"], row[f"{name} ece-15"] = accuracy_and_ece(logits, labels)
        results[domain] = {key: round(value, 4) for key, value in row.items()}
        cells = (
            f"{name} {row[f'{name} accuracy'] * 100:4.1f} | {row[f'{name} ece-15'] * 100:4.1f}"
            for name in ("own", *PROMPTS)
        )
        print(f"{domain:14}", "   ".join(cells), flush=True)
    return results


def save(model: CLIP, words: Words, path: Path, card: dict[str, Any]) -> None:
    """Matrices in half precision (a relative change of 5e-4 at most), the rest as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {
        name: (value.half() if value.is_floating_point() and value.ndim >= 2 else value).contiguous().cpu()
        for name, value in model.state_dict().items()
    }
    save_file(state, path.with_suffix(".safetensors"))
    path.with_suffix(".safetensors").chmod(0o644)
    path.with_suffix(".json").write_text(json.dumps({**card, "token_ids": words.token_ids}, indent=1) + "\n")


def load(path: Path, device: torch.device | str = "cpu") -> tuple[CLIP, Words, dict[str, Any]]:
    """A tower pair as `save` wrote it: path without suffix."""
    card = json.loads(path.with_suffix(".json").read_text())
    model = CLIP(**card["model"])
    state = load_file(path.with_suffix(".safetensors"))
    model.load_state_dict({name: v.float() if v.is_floating_point() else v for name, v in state.items()})
    return model.eval().to(device), Words(card["token_ids"]), card


def make(tower: str, seed: int, steps: int, device: torch.device, path: Path) -> None:
    """Train, settle the free lengths and the scale, save."""
    started = time.time()
    model, words = train(tower, seed, steps, device)
    length = set_text_length(model, words)
    factor = fit_scale(model, words)
    with torch.no_grad():
        learned = float(model.logit_scale.exp())
        model.logit_scale += math.log(factor)
    seconds = round(time.time() - started)
    print(f"logit scale {learned:.1f} x {factor:.2f}, raw text length {length:.1f}, trained in {seconds} s")
    made = {
        "tower": tower,
        "seed": seed,
        "steps": steps,
        "device": device.type,
        "learned_logit_scale": learned,
        "scale_factor": factor,
        "learned_text_length": length,
        "torch": torch.__version__,
        "open_clip": open_clip.__version__,
    }
    text_cfg = {**TEXT, "vocab_size": len(words.token_ids)}
    config = {"embed_dim": EMBED_DIM, "vision_cfg": TOWERS[tower]["vision_cfg"], "text_cfg": text_cfg}
    save(model, words, path, {"model": config, "mean": MEAN, "std": STD, "trained": made})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tower", choices=tuple(TOWERS), required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, help="default: the committed towers' number")
    parser.add_argument("--out", type=Path, default=WEIGHTS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--measure", action="store_true", help="train nothing; measure the towers that are there")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    path = arguments.out / f"toy-{arguments.tower}"
    if not arguments.measure:
        steps = arguments.steps or TOWERS[arguments.tower]["steps"]
        make(arguments.tower, arguments.seed, steps, torch.device(arguments.device), path)
    model, words, card = load(path, arguments.device)
    save(model, words, path, {**card, "zero_shot": report(model, words)})


if __name__ == "__main__":
    main()
