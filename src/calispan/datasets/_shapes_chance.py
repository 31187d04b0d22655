"""Chance by counter (splitmix64, Steele et al. 2014): the k-th number of image i is a function of its key and k.

So an image is the same in every batch, order and process. Everything here and in the drawing is additions,
products, comparisons and table look-ups, one kernel each: IEEE 754 fixes every bit of them, where sines and
matrix products may differ in the last bit from one machine to the next.
"""

from __future__ import annotations

import functools
import hashlib
import math

import torch
from torch import Tensor

_STEPS = 4096  # angles come in 1/4096 turns


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)


def _shifted(z: Tensor, bits: int) -> Tensor:
    """Logical shift right; torch shifts the sign in."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _mixed(z: Tensor) -> Tensor:
    """A bijection of 64-bit words whose every output bit depends on every input bit."""
    z = (z ^ _shifted(z, 30)) * _FIRST
    z = (z ^ _shifted(z, 27)) * _SECOND
    return z ^ _shifted(z, 31)


def keys_of(stream: str, indices: Tensor) -> Tensor:
    """One key an image; different images of a stream never share one. [n] -> [n]"""
    start = int.from_bytes(hashlib.sha256(stream.encode()).digest()[:8], "big", signed=True)
    return _mixed(indices.long() * _GOLDEN + start)


@functools.cache
def _circle(device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every step, rounded far above the last bit of a libm."""
    steps = [2 * math.pi * k / _STEPS for k in range(_STEPS)]
    unit = 1 << 20
    cos, sin = ([round(f(a) * unit) / unit for a in steps] for f in (math.cos, math.sin))
    return torch.tensor(cos, device=device), torch.tensor(sin, device=device)


def cos_sin(turns: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of an angle in turns."""
    step = (turns * _STEPS).floor().long() % _STEPS
    cos, sin = _circle(turns.device)
    return cos[step], sin[step]


class Chance:
    """The numbers of a batch of images, taken one after the other. Each draw is [n, 1, 1], ready to meet pixels."""

    def __init__(self, keys: Tensor) -> None:
        self._keys = keys
        self._taken = 0

    def uniform(self, low: float = 0.0, high: float = 1.0) -> Tensor:
        self._taken += 1
        bits = _shifted(_mixed(self._keys + _signed(self._taken * 0xD1B54A32D192ED03 % (1 << 64))), 40)
        return (bits.float() / (1 << 24) * (high - low) + low)[:, None, None]

    def normal(self, spread: float) -> Tensor:
        """Nearly Gaussian: the sum of four uniforms, within 3.5 deviations of zero."""
        total = self.uniform() + self.uniform() + self.uniform() + self.uniform()
        return (total - 2) * (spread * math.sqrt(3))

    def whole(self, count: int) -> Tensor:
        """A whole number below count."""
        return (self.uniform() * count).floor().long()

    def happens(self, probability: float) -> Tensor:
        """One with this probability, else zero."""
        return (self.uniform() < probability).float()


@functools.cache
def noise_tile(side: int, blur: int, device: torch.device) -> Tensor:
    """A wrap-around tile of noise between -1 and 1: grain without blur, clouds with it. [side * side]"""
    chance = Chance(keys_of(f"noise {blur}", torch.arange(side * side)))
    tile = (chance.uniform(-1, 1)).view(side, side)
    for _ in range(3 if blur else 0):  # three box blurs are nearly a Gaussian one
        for axis in (0, 1):
            total = tile
            for step in range(1, blur + 1):
                total = total + tile.roll(step, axis) + tile.roll(-step, axis)
            tile = total / (2 * blur + 1)
    return (tile / tile.abs().max()).flatten().to(device)
