"""Where scores lie, as the user typed it, and what a reader of one format finds there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from calispan.core.errors import InputError, did_you_mean

SUFFIXES = (".npy", ".npz", ".safetensors", ".parquet", ".csv")
_WITH_KEY = re.compile(r"(?P<path>.+\.(?:npy|npz|safetensors|parquet|csv)):(?P<key>.+)", re.IGNORECASE)


@dataclass(frozen=True)
class Place:
    """What the user typed after an option, taken apart."""

    typed: str
    path: Path
    key: str | None
    role: str  # "logits", "zero-shot logits" or "labels"

    @classmethod
    def of(cls, typed: str, role: str) -> Place:
        parts = None if Path(typed).exists() else _WITH_KEY.fullmatch(typed)
        place = cls(typed, Path(parts["path"]), parts["key"], role) if parts else cls(typed, Path(typed), None, role)
        if place.path.is_dir():
            raise InputError(f"{typed} is a folder; pass the file of {role} in it.")
        if place.suffix not in SUFFIXES:
            raise InputError(
                f"{typed} ends in '{place.path.suffix}'; {role} are read from {', '.join(SUFFIXES)}. "
                "Save them as one of these, such as numpy.save('logits.npy', logits)."
            )
        if not place.path.exists():
            raise InputError(f"{place.path} does not exist. Pass the path of your {role} file.")
        if not place.path.stat().st_size:
            raise InputError(f"{place.path} is empty (0 bytes). Write the {role} again.")
        return place

    @property
    def suffix(self) -> str:
        return self.path.suffix.lower()

    @property
    def labels(self) -> bool:
        return self.role == "labels"

    def choose(self, names: Iterable[str], what: str) -> str:
        """The name after the colon; else the only one, or the one called after what is looked for."""
        known = list(names)
        if self.key is not None:
            if self.key not in known:
                raise InputError(
                    f"{self.path} has no {what} '{self.key}'.{did_you_mean(self.key, known)} It has: {listing(known)}."
                )
            return self.key
        plain = {name.lower().replace("_", "-").rstrip("s"): name for name in known}
        called = plain.get(self.role.removesuffix(" logits").rstrip("s"))
        if len(known) != 1 and called is None:
            raise InputError(
                f"{self.path} has {len(known)} {what}s ({listing(known)}), and none is plainly the {self.role}. "
                f"Write {self.path}:NAME."
            )
        return known[0] if called is None else called


@dataclass(frozen=True)
class Found:
    """An array as a format holds it, before it is known to be what was wanted."""

    shape: tuple[int | None, ...]
    kind: str  # name of its number type
    whole: bool  # of whole numbers
    real: bool
    read: Callable[[int], Iterator[Tensor]]


def listing(names: Iterable[str], most: int = 12) -> str:
    """Names for a sentence; a thousand class columns are not all told."""
    known = list(names)
    return ", ".join(known[:most]) + (f", ... {len(known) - most} more" if len(known) > most else "") or "nothing"
