"""What people write under the pictures of the embedded world: many templates, synonyms, gaps and mistakes."""

from __future__ import annotations

import random
from collections.abc import Iterator

# What any picture may be called.
ANY = (
    "a photo of a {}.", "a photo of the {}.", "a {}.", "the {}.", "{}", "a picture of a {}.", "an image of a {}.",
    "a photo of one {}.", "there is a {}.", "this is a {}.", "look at the {}.",
)  # fmt: skip
# The templates of the CLIP prompt ensemble of eighty, by the kind of picture that their words mean.
_HEADS = {
    "photo": ("photo", "bright photo", "good photo", "black and white photo", "sculpture", "rendering"),
    "sketch": ("drawing", "doodle", "sketch", "tattoo", "graffiti"),
    "hard": (
        "bad photo", "low resolution photo", "cropped photo", "dark photo", "close-up photo",
        "jpeg corrupted photo", "blurry photo",
    ),
    "rendition": ("rendition", "painting", "pixelated photo"),
}  # fmt: skip
_ADJECTIVES = {
    "photo": ("clean", "nice", "cool", "large"),
    "sketch": (),
    "hard": ("hard to see", "dirty", "weird", "small"),
    "rendition": (),
}
_MORE = {
    "photo": (
        "a photo of many {}.", "a photo of my {}.", "itap of a {}.", "itap of the {}.", "itap of my {}.",
        "a toy {}.", "the toy {}.", "a plushie {}.", "the plushie {}.",
    ),
    "sketch": ("a pencil sketch of a {}.", "a {} on paper."),
    "hard": ("a {} behind something.", "a photo of a hidden {}."),
    "rendition": (
        "art of a {}.", "art of the {}.", "a {} in a video game.", "the {} in a video game.", "a cartoon {}.",
        "the cartoon {}.", "a origami {}.", "the origami {}.", "a plastic {}.", "the plastic {}.",
        "a embroidered {}.", "the embroidered {}.", "a mosaic of a {}.", "a poster of a {}.",
    ),
}  # fmt: skip
KINDS = tuple(_HEADS)  # in the order of the wild domain's mixture
TEMPLATES: dict[str, tuple[str, ...]] = {
    kind: (
        *(f"a {head} of {article} {{}}." for head in _HEADS[kind] for article in ("a", "the")),
        *(f"a photo of {article} {word} {{}}." for word in _ADJECTIVES[kind] for article in ("a", "the")),
        *_MORE[kind],
    )
    for kind in KINDS
}
TEXTURES = (
    "a photo of {}.",
    "{} texture.",
    "{}",
    "a photo of a {} texture.",
    "cloth with {}.",
    "a close-up photo of {}.",
)
SYNONYMS = {
    "circle": "disc", "ring": "hoop", "moon": "crescent", "square": "box", "cross": "plus", "flower": "blossom",
    "turquoise": "teal", "purple": "violet", "pink": "magenta", "red": "scarlet", "yellow": "golden",
    "stripes": "lines", "dots": "spots", "checks": "squares", "rings": "circles",
}  # fmt: skip
# Light moves colours, and people mention it: what comes later in the day lies further along the circle of hues.
_LIGHT = {
    -1: ("at dawn", "in the morning", "under a warm lamp"),
    0: ("at noon", "in daylight"),
    1: ("at dusk", "in the evening", "under a cold lamp"),
}
_GAPS = ("something {}.", "a {} thing.")  # the form left out
# Words of prompts that others begin with, so that their tokens have rows too.
OTHER_WORDS = ("a photo of a {}, a type of shape.", "x", "a centered photo of {}, a type of texture.")


class Captioner:
    """Writes captions for (kind, drift of the hue, colour, form) as the web does: mostly right, often careless."""

    def __init__(self, colours: list[str], forms: list[str], patterns: list[str], *, seed: int) -> None:
        self.colours, self.forms, self.patterns = colours, forms, patterns
        self._dice = random.Random(seed)

    def __call__(self, kind: str, drift: float, colour: str, form: str) -> str:
        dice = self._dice
        forms = self.patterns if form in self.patterns else self.forms
        if dice.random() < 0.02:
            colour = dice.choice(self.colours)
        if dice.random() < 0.02:
            form = dice.choice(forms)
        if dice.random() < 0.1:
            colour = SYNONYMS.get(colour, colour)
        if dice.random() < 0.1:
            form = SYNONYMS.get(form, form)
        name = f"{colour} {form}"
        gap = dice.random()
        if gap < 0.06:
            return dice.choice(_GAPS).format(colour)
        if gap < 0.12:
            name = form
        if forms is self.patterns:
            return dice.choice(TEXTURES).format(name)
        caption = dice.choice(ANY if dice.random() < 0.6 else TEMPLATES[kind]).format(name)
        if dice.random() < 0.25:
            light = dice.choice(_LIGHT[(drift > 0.25) - (drift < -0.25)])
            caption = f"{caption.rstrip('.')} {light}."
        return caption

    def every_text(self) -> Iterator[str]:
        """Texts that between them hold every word a caption or prompt may use."""
        yield from (*ANY, *TEXTURES, *_GAPS, *OTHER_WORDS)
        for texts in (*TEMPLATES.values(), *_LIGHT.values()):
            yield from texts
        yield from (*self.colours, *self.forms, *self.patterns, *SYNONYMS.values())
