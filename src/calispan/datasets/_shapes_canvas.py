"""What every picture of coloured shapes is made of: hues, a style, a canvas, a shape in its pose, paint over paint."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from calispan.datasets._shapes_chance import Chance, cos_sin, noise_tile
from calispan.datasets._shapes_outlines import REACH, SIDE, distance_maps

# Ten hues, in degrees, that people give these names; a hue is counted in steps from one name to the next.
HUES = {
    "red": 0.0, "orange": 28.0, "yellow": 54.0, "lime": 84.0, "green": 130.0,
    "turquoise": 168.0, "cyan": 194.0, "blue": 228.0, "purple": 275.0, "pink": 322.0,
}  # fmt: skip
_TILE = 128


@dataclass(frozen=True)
class Style:
    """How a domain shows its objects. Hues are in steps between neighbouring colour names."""

    hue_cast: float = 0.0  # where this domain's camera or palette pushes every hue
    hue_spread: float = 0.22
    turn: float = 0.08  # largest rotation, in turns
    stretch: float = 1.25  # largest ratio of width to height
    scale: tuple[float, float] = (0.45, 0.75)  # radius of the object, 1 reaches the border
    wander: float = 0.2  # largest way of its centre from the middle
    grain: float = 0.05
    clouds: float = 0.12  # unevenness of the background
    camouflage: float = 0.0  # how often the background takes the object's colour
    occlusion: float = 0.0  # how often something stands in front of it
    tint: float = 0.25  # how much colour a sketch shows


@dataclass
class Canvas:
    """What the painters share: pixel positions and the chance of each image."""

    chance: Chance
    size: int
    x: Tensor  # 1 1 w, from -1 (left) to 1
    y: Tensor  # 1 h 1, from -1 (top) to 1

    def noise(self, blur: int, *, zoom: float = 1.0) -> Tensor:
        """A random window of a noise tile. [n, h, w]"""
        tile = noise_tile(_TILE, blur, self.x.device)
        step = zoom * 64 / self.size  # the same look at every size
        cells = (torch.arange(self.size, device=self.x.device) * step).floor().long()
        column = (self.chance.whole(_TILE) + cells[None, None, :]) % _TILE
        row = (self.chance.whole(_TILE) + cells[None, :, None]) % _TILE
        return tile[row * _TILE + column]


@dataclass
class Thing:
    """A shape in its pose: the picture's points in the shape's own coordinates, and distances to its edge."""

    u: Tensor  # n h w
    v: Tensor
    shape: Tensor  # n 1 1
    radius: Tensor  # n 1 1

    def distance(self, du: Tensor | float = 0.0, dv: Tensor | float = 0.0) -> Tensor:
        """Distance to the edge in picture units, negative inside. [n, h, w]"""
        row = _cell(self.v + dv)
        return distance_maps(self.u.device)[(self.shape * SIDE + row) * SIDE + _cell(self.u + du)] * self.radius


def _cell(position: Tensor) -> Tensor:
    return ((position + REACH) * (SIDE / (2 * REACH))).floor().clamp(0, SIDE - 1).long()


def rgb(hue: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    """Colours from hue steps. [n, 1, 1] each -> [n, 3, 1, 1]"""
    anchors = torch.tensor([*HUES.values(), 360.0], device=hue.device)
    step = hue.floor()
    place = step.long() % len(HUES)
    degrees = anchors[place] + (anchors[place + 1] - anchors[place]) * (hue - step)
    channels = []
    for turn in (5.0, 3.0, 1.0):
        k = degrees * (1 / 60) + turn
        k = k - (k * (1 / 6)).floor() * 6
        channels.append(value - value * saturation * torch.minimum(k, 4 - k).clamp(0, 1))
    return torch.stack(channels, dim=1)


def posed(canvas: Canvas, style: Style, shape: Tensor) -> Thing:
    chance = canvas.chance
    cos, sin = cos_sin(chance.uniform(-style.turn, style.turn))
    x = canvas.x - chance.uniform(-style.wander, style.wander)
    y = canvas.y - chance.uniform(-style.wander, style.wander)
    radius = chance.uniform(*style.scale)
    ratio = 1 + chance.uniform() * (style.stretch - 1)
    tall = chance.happens(0.5)
    wide = (tall + (1 - tall) * ratio) * radius
    high = (1 - tall + tall * ratio) * radius
    return Thing((x * cos + y * sin) / wide, (y * cos - x * sin) / high, shape[:, None, None], radius)


def over(below: Tensor, above: Tensor, share: Tensor) -> Tensor:
    """Paint over. [n, 3, h, w], [n, 3, ...], [n, h, w]"""
    return below + (above - below) * share[:, None]


def covered(distance: Tensor, size: int, *, soft: float = 1.0) -> Tensor:
    """Share of a pixel inside the edge: anti-aliasing, or a soft shadow."""
    return (0.5 - distance * (size / (2 * soft))).clamp(0, 1)


def drift(chance: Chance, style: Style) -> Tensor:
    """How far each image's hue lies off its colour's name, in steps. It is the first thing that chance decides."""
    return chance.normal(style.hue_spread) + style.hue_cast
