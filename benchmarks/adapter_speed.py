"""Training an adapter: against the bare matrix products of its step, and against the reference protocol's own loop.

    python benchmarks/adapter_speed.py [--quick] [--device cpu|cuda] [--json FILE] [--whole]

The size is ImageNet's: 1000 classes, 16 shots, batches of 256, widths 512 and 1024. `--whole` also trains 18,600
steps over a bank of 320,000 rows and prints the wall time.

Opponents. *Bare products*: the products of features and matrices that forward and backward cannot do without, in
the same layouts. *Reference loop*: features live in NumPy, every batch is copied over, the plain textbook loss is
built from separate operations, and the whole test set (here 5,000 rows; the published loop has 50,000) is scored
after every step to print an accuracy.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import calispan as cs
from _common import Result, against, main, timed_once
from calispan.core.objective import Objective
from calispan.core.registry import methods
from calispan.core.training import Bank, fast_matmul

CLASSES, SHOTS, BATCH, TEST_ROWS = 1000, 16, 256, 5000
STEPS = CLASSES * SHOTS // BATCH  # 62, one epoch


def problem_of(width: int, views: int, device: str) -> cs.Problem:
    draws = torch.Generator().manual_seed(0)
    labels = torch.arange(CLASSES).repeat_interleave(SHOTS)
    text = F.normalize(torch.randn(CLASSES, width, generator=draws), dim=-1)
    noise = torch.randn(len(labels), views, width, generator=draws)
    rows = text[labels][:, None] + noise.mul_(2 / width**0.5)
    names = tuple(f"class {number}" for number in range(CLASSES))
    return cs.Problem(names, cs.Embeddings(rows, labels), text).to(torch.device(device))


def epochs_on(device: torch.device) -> int:
    """Enough that a step is what it is in a real training of 300 epochs, on both sides: past the first page faults on a
    CPU, and on a GPU past the recording of the step.
    """
    return 50 if device.type == "cuda" else 6


def training_of(name: str, problem: cs.Problem) -> Callable[[], object]:
    recipe = methods.build(name, epochs=epochs_on(problem.text.device), schedule="constant")
    return lambda: recipe.fit(problem, Objective(), seed=0)


def products_of(name: str, problem: cs.Problem) -> Callable[[], object]:
    """The matrix products of as many steps and nothing else."""
    width = problem.text.shape[1]
    device = problem.text.device
    batches = torch.split(Bank.of(problem.support).features, BATCH)[:STEPS]  # whole batches, in the bank's order
    weights, up = torch.randn(CLASSES, width, device=device), torch.randn(width, width // 4, device=device)
    down = torch.randn(width // 4, width, device=device)
    grad, hidden = torch.randn(BATCH, CLASSES, device=device), torch.randn(BATCH, width // 4, device=device)

    def linear_step(x: Tensor) -> None:
        torch.mm(x, weights.T)
        torch.mm(grad.T, x)

    def adapter_step(x: Tensor) -> None:
        torch.mm(x, down.T)
        torch.mm(hidden, up.T)
        torch.mm(x, weights.T)
        torch.mm(grad, weights)
        torch.mm(x.T, hidden)
        torch.mm(x, up)
        torch.mm(hidden.T, x)

    step = adapter_step if name == "clip-adapter" else linear_step

    def epoch() -> None:
        with fast_matmul(device):
            for _ in range(epochs_on(device)):
                for x in batches:
                    step(x)

    return epoch


def reference_epoch(problem: cs.Problem, steps: int) -> Callable[[], object]:
    """ZS-LP as the reference protocol runs it."""
    device = problem.text.device
    bank = Bank.of(problem.support)
    features, labels = bank.features.cpu().numpy(), bank.labels.cpu().numpy()
    test = torch.randn(TEST_ROWS, features.shape[1], device=device)
    truth = torch.randint(CLASSES, (TEST_ROWS,), device=device)

    def epoch() -> None:
        weights = problem.text.clone().requires_grad_()
        optimizer = torch.optim.SGD([weights], lr=0.1, momentum=0.9)
        order = np.argsort(np.random.rand(len(features)))
        for step in range(steps):
            rows = order[step * BATCH : (step + 1) * BATCH]
            x = torch.tensor(features[rows]).to(device)
            y = torch.tensor(labels[rows]).to(device)
            logits = (
                problem.logit_scale
                * (x / x.norm(dim=-1, keepdim=True))
                @ (weights / weights.norm(dim=-1, keepdim=True)).t()
            )
            loss = F.cross_entropy(logits, y)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            with torch.no_grad():
                directions = weights / weights.norm(dim=-1, keepdim=True)
                scores = problem.logit_scale * (test / test.norm(dim=-1, keepdim=True)) @ directions.t()
                float((scores.argmax(dim=1) == truth).float().mean())
            if device.type == "cuda":
                torch.cuda.empty_cache()

    return epoch


def bench(device: str, *, quick: bool) -> Sequence[Result]:
    results = []
    for width in (512,) if quick else (512, 1024):
        problem = problem_of(width, 1, device)
        for name in ("zs-lp", "task-res", "clip-adapter"):
            results.append(
                against(
                    f"{name} step, width {width}",
                    "bare matrix products",
                    training_of(name, problem),
                    products_of(name, problem),
                    goal="<=1.3",
                    repeats=3 if quick else 7,
                    device=device,
                    per=STEPS * epochs_on(problem.text.device),
                )
            )
        results.append(
            against(
                f"zs-lp step, width {width}",
                "reference loop",
                training_of("zs-lp", problem),
                reference_epoch(problem, STEPS if device == "cuda" else 8),
                goal=">=5",
                repeats=3,
                device=device,
                per=STEPS * epochs_on(problem.text.device),
                opponent_per=STEPS if device == "cuda" else 8,
            )
        )
    return results


def whole(device: str) -> None:
    """18,600 steps over 320,000 rows, as the ImageNet protocol has them."""
    for width in (512, 1024):
        problem = problem_of(width, 21, device)
        for name, during in (("zs-lp", ()), ("zs-lp", ("zs-norm",)), ("clip-adapter", ()), ("task-res", ())):
            seconds = timed_once(partial(cs.fit, problem, name, during=during, device=device))
            shown = "+".join((name, *during))
            print(f"whole training, {shown}, width {width}: {seconds:.1f} s for 18,600 steps", flush=True)
        del problem


if __name__ == "__main__":
    if "--whole" in sys.argv:
        sys.argv.remove("--whole")
        started = time.perf_counter()
        whole("cuda" if "cuda" in sys.argv else "cpu")
        print(f"all of it: {time.perf_counter() - started:.0f} s")
    sys.exit(main(bench))
