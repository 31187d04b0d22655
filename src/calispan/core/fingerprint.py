"""Content hashes: equal content, equal hash, on every machine. Cache keys and seals are made of these."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...


def fingerprint(*things: Any) -> str:
    """Hash of tensors, files (by content), recipes and plain values, nested in any way. 32 hex digits."""
    digest = hashlib.blake2b(digest_size=16)
    for thing in things:
        _feed(digest, thing)
    return digest.hexdigest()


def _feed(digest: _Hash, thing: Any) -> None:
    # Every value is preceded by its type and size, so that no two nestings read as the same bytes.
    match thing:
        case Tensor():
            plain = thing.detach().cpu().contiguous()
            digest.update(f"tensor {plain.dtype} {tuple(plain.shape)} ".encode())
            digest.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b"")
        case Path():
            digest.update(b"file ")
            with thing.open("rb") as file:
                digest.update(hashlib.file_digest(file, "blake2b").digest())
        case str():
            raw = thing.encode()
            digest.update(f"str {len(raw)} ".encode() + raw)
        case bytes():
            digest.update(f"bytes {len(thing)} ".encode() + thing)
        case None | bool() | int() | float():
            digest.update(f"{type(thing).__name__} {thing!r} ".encode())
        case Mapping():
            digest.update(f"map {len(thing)} ".encode())
            for key in sorted(thing, key=repr):
                _feed(digest, key)
                _feed(digest, thing[key])
        case Sequence():
            digest.update(f"list {len(thing)} ".encode())
            for item in thing:
                _feed(digest, item)
        case _ if is_dataclass(thing) and not isinstance(thing, type):
            digest.update(f"recipe {type(thing).__name__} {len(fields(thing))} ".encode())
            for field in fields(thing):
                _feed(digest, field.name)
                _feed(digest, getattr(thing, field.name))
        case _:
            raise TypeError(f"No fingerprint for a {type(thing).__name__}; give a tensor, path, recipe or plain value.")
