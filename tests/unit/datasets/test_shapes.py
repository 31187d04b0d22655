"""The embedded world: the same picture everywhere, splits apart, and every class told by what is drawn."""

from __future__ import annotations

import colorsys
import hashlib
import math
from typing import get_args

import pytest
import torch
from torch import Tensor

from calispan.core.errors import InputError, RecipeError
from calispan.core.registry import datasets
from calispan.datasets import _shapes_outlines as outlines
from calispan.datasets._shapes_canvas import HUES, Style
from calispan.datasets._shapes_chance import Chance, _mixed, cos_sin, keys_of
from calispan.datasets._shapes_drawing import FORMS, PATTERNS, paint
from calispan.datasets.shapes import STYLES, WILD, Domain, Shapes

DOMAINS = get_args(Domain)
# Drawn on two kinds of processor and on a GPU, by two versions of torch: the same bytes.
PINNED = {
    "photo": "f2f86e9a5797a012",
    "photo-v2": "962071c1c7b03401",
    "sketch": "50afbdbb73c3b9b2",
    "adversarial": "022b63e1b19e6f02",
    "rendition": "40895fe05a9e0bd2",
    "textures": "af0971f34c526653",
    "wild": "ee2feeb4d1c77bcf",
    "wild-textures": "26dddc3fef3a5c95",
}


@pytest.mark.parametrize("domain", DOMAINS)
def test_the_same_picture_on_every_machine(domain: Domain) -> None:
    images, labels = Shapes(domain).draw("test", [0, 7, 41, 55, 1999])
    assert images.dtype == torch.uint8
    assert images.shape == (5, 3, 64, 64)
    digest = hashlib.sha256(images.numpy().tobytes() + bytes(labels.tolist())).hexdigest()[:16]
    assert digest == PINNED[domain]


@pytest.mark.parametrize("domain", DOMAINS)
def test_an_image_does_not_depend_on_its_batch(domain: Domain) -> None:
    world = Shapes(domain, size=32)
    order = torch.randperm(70, generator=torch.Generator().manual_seed(0))
    together, labels = world.draw("train", range(70))
    shuffled, shuffled_labels = world.draw("train", order)
    assert torch.equal(shuffled, together[order])
    assert torch.equal(shuffled_labels, labels[order])
    assert torch.equal(world.draw("train", [33])[0][0], together[33])


@pytest.mark.parametrize("domain", DOMAINS)
def test_rows_name_every_image_and_cover_the_classes_evenly(domain: Domain) -> None:
    world = Shapes(domain, size=16)
    for split, images_of_a_class in (("train", 64), ("val", 10), ("test", 30)):
        names, labels = zip(*world.rows("", split), strict=True)
        assert len(set(names)) == len(names)
        assert torch.bincount(torch.tensor(labels)).tolist() == [images_of_a_class] * len(world.classes)
    drawn, label = world.draw("test", [123])
    assert torch.equal(world.open(names[123]), drawn[0])
    assert int(label) == labels[123]


@pytest.mark.parametrize("domain", DOMAINS)
def test_splits_seeds_and_domains_share_no_image(domain: Domain) -> None:
    first = [Shapes(domain, size=16).draw(split, range(60))[0] for split in ("train", "val", "test")]
    first.append(Shapes(domain, size=16, seed=1).draw("train", range(60))[0])
    seen = {image.numpy().tobytes() for images in first for image in images}
    assert len(seen) == 4 * 60


def test_no_key_comes_twice() -> None:
    streams = [f"{domain}/{split}/0" for domain in DOMAINS for split in ("train", "val", "test")]
    keys = torch.cat([keys_of(stream, torch.arange(20_000)) for stream in streams])
    assert len(torch.unique(keys)) == len(keys)


def test_subsets_stand_within_the_hundred_classes() -> None:
    whole = Shapes("photo").classes
    assert len(whole) == len(set(whole)) == 100
    assert Shapes("photo").within is Shapes("sketch").within is Shapes("photo-v2").within is None
    for domain in ("adversarial", "rendition"):
        world = Shapes(domain)
        assert world.within is not None
        assert world.classes == tuple(whole[i] for i in world.within)
        assert 0 < len(world.classes) < 100
    adversarial, rendition = Shapes("adversarial", size=16), Shapes("rendition", size=16)
    assert set(adversarial.classes) != set(rendition.classes)
    assert not set(Shapes("textures").classes) & set(whole)


@pytest.mark.parametrize("domain", ["rendition", "adversarial"])
def test_a_class_of_a_subset_is_drawn_as_itself(domain: Domain) -> None:
    # Not as what stands at the same place among the hundred.
    world = Shapes(domain, size=32)
    for name in ("green star", "pink triangle"):
        indices = torch.tensor([world.classes.index(name) + len(world.classes) * turn for turn in range(3)])
        colour, form = name.split()
        painter, style = STYLES[domain]
        keys = keys_of(f"{domain}/test/0", indices)
        parts = torch.full((3,), FORMS.index(form)), torch.full((3,), list(HUES).index(colour))
        assert torch.equal(world.draw("test", indices)[0], paint(painter, style, keys, *parts, 32))


def test_a_shape_is_as_large_as_its_style_says() -> None:
    # A square of half-side 0.8 at scale 0.75 covers 36 % of a picture that reaches from -1 to 1.
    calm = Style(hue_spread=0.0, turn=0.0, stretch=1.0, scale=(0.75, 0.75), wander=0.0, grain=0.0)
    square = torch.full((50,), FORMS.index("square"))
    images = paint("photo", calm, keys_of("squares", torch.arange(50)), square, torch.zeros(50).long(), 64).float()
    red = images[:, 0] - images[:, 1:].amax(dim=1) > 70
    assert float(red.float().mean(dim=(1, 2)).median()) == pytest.approx(0.36, abs=0.02)


def _hue_of(image: Tensor) -> float:
    """Median hue, in degrees, of the most colourful twentieth of the pixels, about their strongest one."""
    pixels = [tuple(c / 255 for c in pixel) for pixel in image.flatten(1).T.tolist()]
    colourful = sorted(pixels, key=lambda p: max(p) - min(p))[-len(pixels) // 20 :]
    hues = [colorsys.rgb_to_hsv(*pixel)[0] * 360 for pixel in colourful]
    centre = hues[-1]
    offsets = sorted((hue - centre + 180) % 360 - 180 for hue in hues)
    return (centre + offsets[len(offsets) // 2]) % 360


def _hue_error(image: Tensor, colour: str, drift: float) -> float:
    """Steps between the hue that is seen and the one that the name and its drift promise."""
    anchors = [*HUES.values(), 360.0]
    promised = (list(HUES).index(colour) + drift) % len(HUES)
    low = int(promised)
    degrees = anchors[low] + (anchors[low + 1] - anchors[low]) * (promised - low)
    return ((_hue_of(image) - degrees + 180) % 360 - 180) / (anchors[low + 1] - anchors[low])


def test_drift_says_where_the_hue_went() -> None:
    world = Shapes("photo")
    images, labels = world.draw("test", range(100))
    drifts = world.drift_of("test", range(100))
    errors = [
        abs(_hue_error(image, world.classes[label].split()[0], float(drift)))
        for image, label, drift in zip(images, labels.tolist(), drifts, strict=True)
    ]
    assert sorted(errors)[80] < 0.12  # a background may be the most colourful thing, grain moves a hue a little


@pytest.mark.parametrize("domain", [name for name in DOMAINS if name != "wild"])
def test_every_domain_has_its_own_cast(domain: Domain) -> None:
    style = STYLES[domain][1]
    drifts = Shapes(domain).drift_of("test", range(20_000))
    assert float(drifts.mean()) == pytest.approx(style.hue_cast, abs=4 * style.hue_spread / math.sqrt(20_000))
    assert float(drifts.std()) == pytest.approx(style.hue_spread, rel=0.03)


def test_the_wild_domain_mixes_styles_by_their_shares() -> None:
    world = Shapes("wild")
    shares = torch.bincount(world.style_of("train", range(20_000)), minlength=len(WILD)) / 20_000
    assert shares.tolist() == pytest.approx([share for share, _, _ in WILD], abs=0.01)
    assert sum(share for share, _, _ in WILD) == pytest.approx(1)
    with pytest.raises(InputError, match="wild"):
        Shapes("photo").style_of("train", [0])


@pytest.mark.parametrize(("painter", "forms"), [("photo", FORMS), ("sketch", FORMS), ("rendition", FORMS)])
def test_every_class_is_told_by_its_nearest_template(painter: str, forms: tuple[str, ...]) -> None:
    # In a calm pose: how far a picture's colours stand from grey, against the mean picture of every class.
    calm = Style(hue_spread=0.0, turn=0.0, stretch=1.0, scale=(0.7, 0.7), wander=0.0, grain=0.0, tint=1.0)
    form, colour = (axis.flatten() for axis in torch.meshgrid(torch.arange(10), torch.arange(10), indexing="ij"))

    def chroma(stream: str) -> Tensor:
        keys = keys_of(stream, torch.arange(100))
        images = paint(painter, calm, keys, form, colour, 32).float()
        flat = (images - images.mean(dim=1, keepdim=True)).flatten(1)
        return flat / flat.norm(dim=1, keepdim=True)

    templates = torch.stack([chroma(f"template {k}") for k in range(8)]).mean(dim=0)
    nearest = torch.cat([(chroma(f"query {k}") @ templates.T).argmax(dim=1) == torch.arange(100) for k in range(4)])
    assert float(nearest.float().mean()) > 0.93
    assert int(nearest.view(4, 100).any(dim=0).sum()) == 100


def test_every_pattern_is_another_pattern() -> None:
    x, y = torch.rand(2, 20_000, generator=torch.Generator().manual_seed(0)) * 6 - 3
    marks = torch.stack([wave(x, y) > 0 for wave in PATTERNS.values()]).float()
    for share in marks.mean(dim=1).tolist():
        assert 0.15 < share < 0.85
    agreement = torch.corrcoef(marks) - torch.eye(len(marks))
    assert float(agreement.abs().max()) < 0.6  # dots lie within the stripes


def test_no_two_outlines_cover_the_same_ground() -> None:
    inside = outlines.distance_maps(torch.device("cpu")).view(len(FORMS), -1) < 0
    for a in range(len(FORMS)):
        for b in range(a):
            overlap = float((inside[a] & inside[b]).sum() / (inside[a] | inside[b]).sum())
            assert overlap < 0.9, (FORMS[a], FORMS[b], overlap)


@pytest.mark.parametrize("form", ["star", "moon", "ring", "arrow", "heart"])
def test_distance_maps_against_a_slow_oracle(form: str) -> None:
    outer, hole = outlines.OUTLINES[form]

    def oracle(points: list[tuple[float, float]], x: float, y: float) -> float:
        nearest, crossings = math.inf, 0
        for (ax, ay), (bx, by) in zip(points, points[1:] + points[:1], strict=True):
            for step in range(201):
                t = step / 200
                nearest = min(nearest, math.hypot(x - ax - t * (bx - ax), y - ay - t * (by - ay)))
            if (ay > y) != (by > y) and x < ax + (y - ay) / (by - ay) * (bx - ax):
                crossings += 1
        return -nearest if crossings % 2 else nearest

    side, reach = outlines.SIDE, outlines.REACH
    maps = outlines.distance_maps(torch.device("cpu")).view(len(FORMS), side, side)
    draws = torch.randint(0, side, (12, 2), generator=torch.Generator().manual_seed(1)).tolist()
    for row, column in draws:
        x, y = (((cell + 0.5) / side * 2 - 1) * reach for cell in (column, row))
        expected = oracle(outer, x, y)
        if hole:
            expected = max(expected, -oracle(hole, x, y))
        assert float(maps[FORMS.index(form), row, column]) == pytest.approx(expected, abs=2e-3)


def _word(value: int) -> int:
    return value & (1 << 64) - 1


def _mixed_by_hand(z: int) -> int:
    z = _word((z ^ z >> 30) * 0xBF58476D1CE4E5B9)
    z = _word((z ^ z >> 27) * 0x94D049BB133111EB)
    return z ^ z >> 31


def test_chance_is_splitmix64() -> None:
    # The generator's published outputs for seed 1234567.
    states = [_word(1234567 + k * 0x9E3779B97F4A7C15) for k in (1, 2)]
    signed = torch.tensor([state - (1 << 64) if state >> 63 else state for state in states])
    assert [_word(word) for word in _mixed(signed).tolist()] == [6457827717110365317, 3203168211198807973]
    key = keys_of("a stream", torch.tensor([5]))
    start = int.from_bytes(hashlib.sha256(b"a stream").digest()[:8], "big")
    by_hand = _mixed_by_hand(_word(start + 5 * 0x9E3779B97F4A7C15))
    assert _word(int(key)) == by_hand
    chance = Chance(key)
    for draw in (1, 2, 3):
        bits = _mixed_by_hand(_word(by_hand + draw * 0xD1B54A32D192ED03)) >> 40
        assert float(chance.uniform()) == bits / (1 << 24)


def test_draws_of_chance_are_spread_as_they_say() -> None:
    chance = Chance(keys_of("spread", torch.arange(40_000)))
    normal, uniform, whole = chance.normal(2.0), chance.uniform(-1, 3), chance.whole(5)
    assert float(normal.mean()) == pytest.approx(0, abs=0.04)
    assert float(normal.std()) == pytest.approx(2, rel=0.02)
    assert float(uniform.min()) >= -1
    assert float(uniform.max()) < 3
    assert float(uniform.mean()) == pytest.approx(1, abs=0.03)
    assert torch.bincount(whole.flatten()).tolist() == pytest.approx([8000] * 5, rel=0.05)
    assert abs(float(torch.corrcoef(torch.stack([normal.flatten(), uniform.flatten()]))[0, 1])) < 0.02


def test_angles() -> None:
    turns = torch.tensor([0.0, 0.25, -0.125, 1.5])
    cos, sin = cos_sin(turns)
    assert cos.tolist() == pytest.approx([math.cos(2 * math.pi * t) for t in turns.tolist()], abs=2e-3)
    assert sin.tolist() == pytest.approx([math.sin(2 * math.pi * t) for t in turns.tolist()], abs=2e-3)


@pytest.mark.parametrize("domain", ["photo", "sketch", "textures"])
def test_a_picture_is_the_same_at_every_size(domain: Domain) -> None:
    large = Shapes(domain, size=64).draw("test", range(40))[0].float()
    small = Shapes(domain, size=32).draw("test", range(40))[0].float()
    other = small.roll(1, 0)
    halved = torch.nn.functional.avg_pool2d(large, 2)
    assert float((halved - small).abs().mean()) < 0.14 * float((halved - other).abs().mean())


def test_registered_by_name() -> None:
    assert {"shapes", "shapes-sketch", "shapes-textures"} <= set(datasets.names())
    assert datasets.build("shapes") == Shapes("photo")
    assert datasets.build("shapes-sketch") == Shapes("sketch")
    assert datasets.build("shapes:domain=rendition,size=32") == Shapes("rendition", 32)


def test_errors_say_what_to_do() -> None:
    with pytest.raises(RecipeError, match="Did you mean 'sketch'"):
        Shapes("sketsch")  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match="16 pixels"):
        Shapes(size=8)
    with pytest.raises(InputError, match="train, val, test"):
        Shapes().draw("dev", [0])
    with pytest.raises(InputError, match="0 or more"):
        Shapes().draw("test", [-1])
    with pytest.raises(InputError, match="train/000012"):
        Shapes().open("test/one")
    assert Shapes().draw("test", [])[0].shape == (0, 3, 64, 64)
