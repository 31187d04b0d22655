"""Fitted values on disk: `card.json` says what it is, a safetensors file holds the numbers. Never a pickle.

The card names its tensor file and carries its hash, and is itself published by rename: a reader sees the old
value or the new one, never a mixture, and a changed byte is noticed.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from calispan.core.errors import StoreError
from calispan.core.fingerprint import fingerprint

VERSION = 1
CARD = "card.json"

T = TypeVar("T")
_kinds: dict[str, type[Any]] = {}


def storable(kind: str) -> Callable[[type[T]], type[T]]:
    """Give a frozen dataclass a name on disk. Its fields: tensors, plain values, other storables, lists, dicts."""

    def register(cls: type[T]) -> type[T]:
        known = _kinds.get(kind)
        if known is not None and f"{known.__module__}.{known.__qualname__}" != f"{cls.__module__}.{cls.__qualname__}":
            raise ValueError(f"Two classes want the stored name '{kind}': {known} and {cls}.")
        assert is_dataclass(cls), f"@storable('{kind}') goes above @dataclass"
        _kinds[kind] = cls
        cls.__stored_as__ = kind  # type: ignore[attr-defined]
        return cls

    return register


def save(value: Any, folder: str | os.PathLike[str], *, about: Mapping[str, Any] | None = None) -> Path:
    """Write a fitted value into a folder (made if missing). `about` is kept in the card for people to read."""
    from safetensors.torch import save as to_bytes

    target = Path(folder)
    if target.is_file():
        raise StoreError(f"{target} is a file; a fitted value is saved into a folder. Choose another path.")
    target.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = {}
    tree = _flatten(value, "value", tensors)
    packed = to_bytes(
        {name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
    )
    seal = fingerprint(packed)
    name = f"tensors-{seal[:12]}.safetensors"
    _publish(target / name, packed)
    card = {
        "calispan": "fitted value",
        "version": VERSION,
        "tensors": {"file": name, "fingerprint": seal},
        "about": dict(about or {}),
        "value": tree,
    }
    _publish(target / CARD, (json.dumps(card, indent=2) + "\n").encode())
    for old in target.glob("tensors-*.safetensors"):
        if old.name != name:
            old.unlink(missing_ok=True)
    return target


def load(folder: str | os.PathLike[str]) -> Any:
    """Read back what `save` wrote, bit for bit; anything else is refused with a sentence."""
    from safetensors import SafetensorError
    from safetensors.torch import load as from_bytes

    target = Path(folder)
    card = read_card(target)
    if card.get("version") != VERSION:
        raise StoreError(
            f"{target / CARD} is of version {card.get('version')!r}; this program reads version {VERSION}. "
            "Install the calispan that wrote it, or fit and save again."
        )
    try:
        held = card["tensors"]
        packed = (target / Path(held["file"]).name).read_bytes()
        sealed = held["fingerprint"]
        tree = card["value"]
    except FileNotFoundError as error:
        raise StoreError(f"{error.filename} is missing; the folder is incomplete. Copy or save it again.") from error
    except (KeyError, TypeError) as error:
        raise StoreError(f"{target / CARD} lacks {error}; it was edited or cut short. Save the value again.") from error
    if fingerprint(packed) != sealed:
        raise StoreError(f"{target / held['file']} is not what was saved (its fingerprint differs). Save it again.")
    try:
        return _build(tree, from_bytes(packed))
    except (KeyError, TypeError, ValueError, SafetensorError) as error:
        raise StoreError(f"{target / CARD} does not describe a value this program knows: {error}.") from error


def read_card(folder: Path) -> dict[str, Any]:
    """The card of a saved value, checked to be one."""
    path = folder / CARD
    try:
        card = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise StoreError(f"{path} does not exist. Pass a folder written by save().") from error
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} cannot be read: {error}.") from error
    if not isinstance(card, dict) or card.get("calispan") != "fitted value":
        raise StoreError(f"{path} was not written by calispan.")
    return cast(dict[str, Any], card)


def _publish(path: Path, content: bytes) -> None:
    """The file gets its name when it is whole."""
    handle, staged = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(staged, 0o644)
        os.replace(staged, path)
    except BaseException:
        Path(staged).unlink(missing_ok=True)
        raise


def _flatten(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    match value:
        case Tensor():
            for name, known in tensors.items():  # one tensor in two places is written once
                if known is value:
                    return {"tensor": name}
            tensors[path] = value
            return {"tensor": path}
        case None | bool() | int() | float() | str():
            return value
        case tuple() | list():
            return {type(value).__name__: [_flatten(item, f"{path}.{i}", tensors) for i, item in enumerate(value)]}
        case Mapping():
            return {"map": {str(k): _flatten(v, f"{path}.{k}", tensors) for k, v in value.items()}}
        case _:
            kind = getattr(type(value), "__stored_as__", None)
            if kind is None or _kinds.get(kind) is not type(value):
                raise StoreError(
                    f"A {type(value).__name__} cannot be saved: its class lacks @storable('name') above @dataclass."
                )
            parts = {f.name: _flatten(getattr(value, f.name), f"{path}.{f.name}", tensors) for f in fields(value)}
            return {"kind": kind, "fields": parts}


def _build(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    match tree:
        case {"tensor": str(path)}:
            return tensors[path]
        case {"tuple": list(items)}:
            return tuple(_build(item, tensors) for item in items)
        case {"list": list(items)}:
            return [_build(item, tensors) for item in items]
        case {"map": dict(items)}:
            return {key: _build(item, tensors) for key, item in items.items()}
        case {"kind": str(kind), "fields": dict(parts)}:
            return _class_of(kind)(**{name: _build(part, tensors) for name, part in parts.items()})
        case None | bool() | int() | float() | str():
            return tree
        case _:
            raise ValueError(f"unreadable entry {str(tree)[:60]!r}")


def _class_of(kind: str) -> type[Any]:
    if kind not in _kinds:
        from calispan.core.registry import load_everything

        load_everything()  # the class may live in a plug-in nobody has asked for yet
    if kind not in _kinds:
        raise ValueError(f"no class is stored as '{kind}' (is the plug-in that made it installed?)")
    return _kinds[kind]
