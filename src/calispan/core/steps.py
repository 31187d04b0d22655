"""One training step, called directly, or on a CUDA card recorded once and replayed.

An adapter's step is some forty small kernels that take a microsecond or two each, so a GPU spends its time waiting for
Python to launch them. A CUDA graph launches all of them at once. The recorded step does the same arithmetic in the
same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Loss = Callable[[Tensor], Tensor]
Step = Callable[[Tensor], None]

_WARM_UP = 3  # rounds before recording, as torch asks for: libraries choose their kernels in them


def plain_step(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor], loss_of: Loss) -> Step:
    """Forward, backward, update."""

    def step(rows: Tensor) -> None:
        for parameter in parameters:
            parameter.grad = None
        loss_of(rows).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def keep_freed_memory() -> None:
    """Teach the C library to keep what a step frees for the next step.

    glibc hands large freed blocks back to the kernel, and every step then faults the same megabytes in again: up to
    650 page faults a step at the size of ImageNet. It stops for blocks up to the largest it has seen freed; 32 MiB is
    the most that it learns from. Elsewhere this is one allocation.
    """
    torch.empty((32 << 20) - (64 << 10), dtype=torch.uint8)


def recorded_step(optimizer: torch.optim.SGD, parameters: Sequence[Tensor], loss_of: Loss, size: int) -> Step:
    """The same as a CUDA graph, for batches of one size. Parameters and momenta are as before when it returns.

    Raises RuntimeError where the loss does something that cannot be recorded, such as reading a number back.
    """
    device = parameters[0].device
    plain = plain_step(optimizer, parameters, loss_of)
    slot = torch.zeros(size, dtype=torch.long, device=device)
    before = [parameter.detach().clone() for parameter in parameters]

    def restore() -> None:
        with torch.no_grad():
            for parameter, value in zip(parameters, before, strict=True):
                parameter.copy_(value)
                momentum = optimizer.state[parameter].get("momentum_buffer")
                if momentum is not None:
                    momentum.zero_()  # a first step on zeros equals a first step without a buffer

    try:
        aside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(aside):
            for _ in range(_WARM_UP):
                plain(slot)
        torch.cuda.current_stream(device).wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            plain(slot)
    finally:
        restore()

    def replay(rows: Tensor) -> None:
        slot.copy_(rows)
        graph.replay()

    return replay


def make_step(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor], loss_of: Loss, size: int) -> Step:
    """The recorded step on a CUDA card where it can be had, else the plain one."""
    if parameters[0].device.type == "cuda" and isinstance(optimizer, torch.optim.SGD):
        try:
            return recorded_step(optimizer, parameters, loss_of, size)
        except RuntimeError:
            torch.cuda.synchronize()
    keep_freed_memory()
    return plain_step(optimizer, parameters, loss_of)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """In place where the rate is a tensor: a recorded step reads it from there."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
