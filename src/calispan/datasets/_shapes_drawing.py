"""The painters of the embedded world: photo, sketch, rendition and texture; `paint` draws a batch by one of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from calispan.datasets._shapes_canvas import HUES, Canvas, Style, covered, drift, over, posed, rgb
from calispan.datasets._shapes_chance import Chance, cos_sin
from calispan.datasets._shapes_outlines import OUTLINES


def _background(canvas: Canvas, style: Style, hue: Tensor) -> Tensor:
    """Two surfaces that meet at a line, hard (a table's edge) or soft (light that falls off), with clouds."""
    chance = canvas.chance
    hides = chance.happens(style.camouflage)
    colours = []
    for _ in range(2):
        own = chance.uniform(0, len(HUES))
        near = hue + chance.normal(0.8)
        chosen = hides * near + (1 - hides) * own
        saturation = chance.uniform(0.0, 0.35) + hides * 0.4
        colours.append(rgb(chosen, saturation, chance.uniform(0.25, 0.95)))
    cos, sin = cos_sin(chance.uniform())
    hardness = chance.uniform(0.6, 1.0) + chance.happens(0.4) * 12
    line = ((canvas.x * cos + canvas.y * sin - chance.uniform(-0.4, 0.4)) * hardness * 0.5 + 0.5).clamp(0, 1)
    ground = over(colours[0], colours[1], line)
    clouds = canvas.noise(4, zoom=0.5) * style.clouds + canvas.noise(1) * (style.clouds * 0.5 * hides)
    return ground + clouds[:, None]


def _photo(canvas: Canvas, style: Style, shape: Tensor, hue: Tensor) -> Tensor:
    """A lit object with a shadow before a background, seen by a camera with exposure and grain."""
    chance = canvas.chance
    thing = posed(canvas, style, shape)
    picture = _background(canvas, style, hue)
    light_x, light_y = cos_sin(chance.uniform())
    shadow = covered(thing.distance(light_x * 0.16, light_y * 0.16), canvas.size, soft=5)
    picture = picture * (1 - shadow * chance.uniform(0.15, 0.5))[:, None]
    distance = thing.distance()
    paint = rgb(hue, chance.uniform(0.7, 1.0), chance.uniform(0.75, 1.0))
    edge = (1 + distance * 12).clamp(0, 1)  # a rounded rim: bright towards the light, dark away from it
    towards = thing.u * light_x + thing.v * light_y
    shade = 1 - towards * (0.12 + 0.22 * edge)
    gleam = (1 - ((thing.u + light_x * 0.35) * (thing.u + light_x * 0.35)
                  + (thing.v + light_y * 0.35) * (thing.v + light_y * 0.35)) * 6).clamp(0, 1)  # fmt: skip
    body = paint * shade[:, None] + (gleam * gleam * chance.uniform(0.0, 0.5))[:, None]
    picture = over(picture, body, covered(distance, canvas.size))
    if style.occlusion:
        picture = _occluded(canvas, style, picture)
    exposure = chance.uniform(0.8, 1.15)
    return picture * exposure[:, None] + (canvas.noise(0) * style.grain)[:, None]


def _occluded(canvas: Canvas, style: Style, picture: Tensor) -> Tensor:
    """A bar of some other colour across the picture, off the middle."""
    chance = canvas.chance
    cos, sin = cos_sin(chance.uniform())
    middle = chance.uniform(0.15, 0.5)
    half = chance.uniform(0.08, 0.2) * chance.happens(style.occlusion)
    distance = (canvas.x * cos + canvas.y * sin - middle).abs() - half
    colour = rgb(chance.uniform(0, len(HUES)), chance.uniform(0.0, 0.6), chance.uniform(0.2, 0.9))
    return over(picture, colour, covered(distance, canvas.size) * (half > 0))


def _sketch(canvas: Canvas, style: Style, shape: Tensor, hue: Tensor) -> Tensor:
    """An outline by an unsteady pencil on paper, with a little colour hatched in."""
    chance = canvas.chance
    thing = posed(canvas, style, shape)
    distance = thing.distance() + canvas.noise(4) * 0.05
    paper = chance.uniform(0.86, 0.98)
    picture = rgb(chance.uniform(0, 2), chance.uniform(0.0, 0.1), paper) + (canvas.noise(1) * 0.04)[:, None]
    cos, sin = cos_sin(chance.uniform())
    lines = (canvas.x * cos + canvas.y * sin) * chance.uniform(5, 9) + canvas.noise(4) * 0.3
    hatch = ((lines - lines.floor() - 0.5).abs() * 4 - 0.6).clamp(0, 1) * 0.7 + 0.3
    crayon = rgb(hue, chance.uniform(0.8, 1.0), chance.uniform(0.7, 0.95))
    strength = chance.uniform(0.6, 1.4) * style.tint
    picture = over(picture, crayon, covered(distance, canvas.size) * hatch * strength)
    pencil = rgb(hue, chance.uniform(0.0, 0.25), chance.uniform(0.12, 0.4))
    stroke = (distance.abs() - chance.uniform(0.02, 0.045)) * (1 + canvas.noise(1) * 0.3)
    pressure = chance.uniform(0.7, 1.0) + canvas.noise(1) * 0.25
    return over(picture, pencil, covered(stroke, canvas.size) * pressure)


def _rendition(canvas: Canvas, style: Style, shape: Tensor, hue: Tensor) -> Tensor:
    """One of three: a mosaic of flat tiles, a negative (light and dark change places), a poster in few tones."""
    chance = canvas.chance
    kind = chance.whole(3)
    mosaic, negative, poster = ((kind == k).float() for k in range(3))
    tiles = canvas.size / 16  # sixteen tiles across
    flat_x, flat_y = (
        ((((axis + 1) * (canvas.size / 2) / tiles).floor() + 0.5) * tiles * (2 / canvas.size) - 1)
        for axis in (canvas.x, canvas.y)
    )
    seen = Canvas(chance, canvas.size, canvas.x + (flat_x - canvas.x) * mosaic, canvas.y + (flat_y - canvas.y) * mosaic)
    thing = posed(seen, style, shape)
    distance = thing.distance()
    ground = rgb(chance.uniform(0, len(HUES)), chance.uniform(0.0, 0.3), chance.uniform(0.5, 1.0) * (1 - 0.4 * mosaic))
    rays = seen.x * chance.uniform(-3, 3) + seen.y * chance.uniform(-3, 3)
    picture = ground * (1 - 0.25 * ((rays - rays.floor()) > 0.5).float() * (poster + negative))[:, None]
    paint = rgb(hue, chance.uniform(0.75, 1.0), chance.uniform(0.75, 1.0))
    halves = 1 - 0.3 * (thing.u * chance.uniform(-1, 1) + thing.v > 0).float() * poster
    picture = over(picture, paint * halves[:, None], covered(distance, canvas.size))
    rim = covered(distance.abs() - 0.045, canvas.size) * (poster + negative)
    picture = over(picture, torch.zeros_like(paint) + 0.08, rim)
    grout_x, grout_y = (((a + 1) * 8 - ((a + 1) * 8).floor() - 0.5).abs() for a in (canvas.x, canvas.y))
    grout = (torch.maximum(grout_x, grout_y) > 0.36).float() * mosaic * 0.35
    picture = picture * (1 - grout)[:, None]
    # Turning light into dark while a hue stays itself: red, green and blue move by the same amount.
    most, least = picture.amax(dim=1, keepdim=True), picture.amin(dim=1, keepdim=True)
    return picture + (1 - most - least) * negative[:, None] + (canvas.noise(0) * style.grain)[:, None]


def _stripes(u: Tensor, v: Tensor) -> Tensor:
    return (u - u.floor() - 0.5).abs() * 4 - 1


def _checks(u: Tensor, v: Tensor) -> Tensor:
    return _stripes(u * 0.7, v) * _stripes(v * 0.7, u) * 3


def _dots(u: Tensor, v: Tensor) -> Tensor:
    across, down = u - u.floor() - 0.5, v - v.floor() - 0.5
    return 1 - (across * across + down * down) * 11


def _grid(u: Tensor, v: Tensor) -> Tensor:
    return torch.maximum(_stripes(u, v), _stripes(v, u)) * 2.5 - 1.6


def _zigzags(u: Tensor, v: Tensor) -> Tensor:
    return _stripes(u + (v * 0.6 - (v * 0.6).floor() - 0.5).abs() * 1.6, v)


def _rings(u: Tensor, v: Tensor) -> Tensor:
    # In double precision, whose last bit does not reach the result: some libraries round a float32 root otherwise.
    return _stripes((u * u + v * v).double().sqrt().float(), v)


PATTERNS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "stripes": _stripes, "checks": _checks, "dots": _dots, "grid": _grid, "zigzags": _zigzags, "rings": _rings,
}  # fmt: skip


def _texture(canvas: Canvas, style: Style, pattern: Tensor, hue: Tensor) -> Tensor:
    """Cloth that fills the picture: a pattern in the class's colour on something pale or dark."""
    chance = canvas.chance
    cos, sin = cos_sin(chance.uniform(-style.turn, style.turn))
    pitch = chance.uniform(1.6, 3.2)
    fold = canvas.noise(4) * 0.06
    x, y = canvas.x + fold - chance.uniform(-0.4, 0.4), canvas.y + fold - chance.uniform(-0.4, 0.4)
    u, v = (x * cos + y * sin) * pitch, (y * cos - x * sin) * pitch
    level = torch.zeros_like(u)
    for place, wave in enumerate(PATTERNS.values()):
        chosen = pattern == place
        if bool(chosen.any()):
            level[chosen] = wave(u[chosen], v[chosen])
    dark = chance.happens(0.3)
    cloth = rgb(chance.uniform(0, len(HUES)), chance.uniform(0.0, 0.1), chance.uniform(0.8, 1.0) - dark * 0.7)
    dye = rgb(hue, chance.uniform(0.7, 1.0), chance.uniform(0.75, 1.0))
    picture = over(cloth, dye, (level * (canvas.size / 20) + 0.5).clamp(0, 1))
    light = 1 + canvas.noise(4, zoom=0.5) * 0.3 + canvas.noise(1) * 0.06
    return picture * (light * chance.uniform(0.8, 1.1))[:, None] + (canvas.noise(0) * style.grain)[:, None]


Painter = Callable[[Canvas, Style, Tensor, Tensor], Tensor]
PAINTERS: dict[str, Painter] = {
    "photo": _photo, "sketch": _sketch, "rendition": _rendition, "texture": _texture,
}  # fmt: skip
FORMS = tuple(OUTLINES)


def paint(painter: str, style: Style, keys: Tensor, form: Tensor, colour: Tensor, size: int) -> Tensor:
    """Draw a batch: image i shows form i (a shape or pattern) in colour i. [n] each -> uint8 [n, 3, size, size]"""
    chance = Chance(keys)
    axis = (torch.arange(size, device=keys.device).float() + 0.5) * (2 / size) - 1
    canvas = Canvas(chance, size, axis[None, None, :], axis[None, :, None])
    hue = colour[:, None, None].float() + drift(chance, style)
    picture = PAINTERS[painter](canvas, style, form, hue)
    return (picture.clamp(0, 1) * 255 + 0.5).floor().to(torch.uint8)
