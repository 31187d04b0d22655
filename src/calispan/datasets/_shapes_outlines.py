"""Outlines of the world's shapes, and their distance maps: how far a point is from the edge, negative inside."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

SIDE = 192  # cells of a distance map, per axis
REACH = 1.4  # a map covers [-REACH, REACH] squared; shapes stay within a radius of about 1

Point = tuple[float, float]


def _turned(radius: Callable[[float], float], count: int = 72) -> list[Point]:
    """A closed curve from its radius by angle; angle 0 points up, y grows downwards as in an image."""
    angles = [2 * math.pi * k / count for k in range(count)]
    return [(radius(a) * math.sin(a), -radius(a) * math.cos(a)) for a in angles]


def _star() -> list[Point]:
    corners = [(1.05 if k % 2 == 0 else 0.44, math.pi * k / 5) for k in range(10)]
    return [(r * math.sin(a), 0.05 - r * math.cos(a)) for r, a in corners]


def _heart() -> list[Point]:
    points = []
    for k in range(72):
        t = 2 * math.pi * k / 72
        x = 16 * math.sin(t) ** 3
        y = 13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)
        points.append((x / 17, -(y + 2.5) / 17))
    return points


def _moon() -> list[Point]:
    """A crescent: the outer arc, and back along an inner arc whose circle is moved to the right."""
    tip = math.radians(52)  # the outer circle meets the inner one here
    outer = [tip + (2 * math.pi - 2 * tip) * k / 48 for k in range(49)]
    tip_x, tip_y = math.cos(tip), math.sin(tip)
    centre = 0.62
    inner_radius = math.hypot(tip_x - centre, tip_y)
    start = math.atan2(tip_y, tip_x - centre)
    inner = [-start - (2 * math.pi - 2 * start) * k / 36 for k in range(1, 36)]
    arc = [(math.cos(a), math.sin(a)) for a in outer]
    back = [(centre + inner_radius * math.cos(a), inner_radius * math.sin(a)) for a in inner]
    return [(x + 0.25, y) for x, y in arc + back]


def _flower() -> list[Point]:
    """Five round petals: the farther of the petal circle's edge along each ray."""

    def radius(angle: float) -> float:
        petal = (angle + math.pi / 5) % (2 * math.pi / 5) - math.pi / 5
        centre, size = 0.6, 0.42
        inside = size**2 - (centre * math.sin(petal)) ** 2
        return centre * math.cos(petal) + math.sqrt(max(inside, 0.0))

    return _turned(radius, 120)


_CROSS: list[Point] = [
    (-0.32, -1.0), (0.32, -1.0), (0.32, -0.32), (1.0, -0.32), (1.0, 0.32), (0.32, 0.32),
    (0.32, 1.0), (-0.32, 1.0), (-0.32, 0.32), (-1.0, 0.32), (-1.0, -0.32), (-0.32, -0.32),
]  # fmt: skip
_ARROW: list[Point] = [(1.08, 0.0), (0.2, -0.8), (0.2, -0.3), (-1.0, -0.3), (-1.0, 0.3), (0.2, 0.3), (0.2, 0.8)]
_SQUARE: list[Point] = [(-0.8, -0.8), (0.8, -0.8), (0.8, 0.8), (-0.8, 0.8)]
_TRIANGLE: list[Point] = [(0.0, -1.0), (1.0, 0.75), (-1.0, 0.75)]

# Name, outline, and an outline cut out of it (none for most).
OUTLINES: dict[str, tuple[list[Point], list[Point]]] = {
    "circle": (_turned(lambda _: 0.9), []),
    "ring": (_turned(lambda _: 0.98), _turned(lambda _: 0.55)),
    "moon": (_moon(), []),
    "heart": (_heart(), []),
    "flower": (_flower(), []),
    "star": (_star(), []),
    "triangle": (_TRIANGLE, []),
    "square": (_SQUARE, []),
    "cross": (_CROSS, []),
    "arrow": (_ARROW, []),
}


def _distance(outline: list[Point], x: Tensor, y: Tensor) -> Tensor:
    """Signed distance of points to a closed polygon."""
    nearest = torch.full_like(x, math.inf)
    inside = torch.zeros_like(x, dtype=torch.bool)
    for (ax, ay), (bx, by) in zip(outline, outline[1:] + outline[:1], strict=True):
        ex, ey = bx - ax, by - ay
        along = (((x - ax) * ex + (y - ay) * ey) / (ex * ex + ey * ey)).clamp(0, 1)
        dx, dy = x - ax - along * ex, y - ay - along * ey
        nearest = torch.minimum(nearest, dx * dx + dy * dy)
        if ay != by:  # a ray to the right crosses this edge
            inside ^= ((y < ay) != (y < by)) & (x < ax + (y - ay) * (ex / ey))
    return torch.where(inside, -nearest.sqrt(), nearest.sqrt())


@functools.cache
def distance_maps(device: torch.device) -> Tensor:
    """The distance map of every shape, flattened. [shapes * SIDE * SIDE]"""
    cells = ((torch.arange(SIDE, dtype=torch.float64) + 0.5) / SIDE * 2 - 1) * REACH
    y, x = torch.meshgrid(cells, cells, indexing="ij")
    maps = []
    for outer, hole in OUTLINES.values():
        distance = _distance(outer, x, y)
        if hole:
            distance = torch.maximum(distance, -_distance(hole, x, y))
        maps.append(distance)
    # Rounded far above the last bit, so that sines of another libm give the same maps.
    return ((torch.stack(maps) * 4096).round() / 4096).float().flatten().to(device)
