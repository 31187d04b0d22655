"""Score files: matrices and labels in npy, npz, safetensors, parquet and csv, read a chunk of rows at a time.

`scores.npz:logits` is the array `logits` of `scores.npz`; for parquet and csv the part after the colon is a column.
Opening a file reads its head alone: shape and type are known, and refused, before the first row is.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from calispan.core.errors import CalispanError, InputError, did_you_mean

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
class Table:
    """Rows that lie in a file. `read(size)` yields them in chunks of that many; only the last may be shorter."""

    source: str  # as the user typed it
    rows: int | None  # None where only reading to the end can tell (csv)
    columns: int
    read: Callable[[int], Iterator[Tensor]]  # chunks [rows, columns]; of labels [rows]


def open_table(typed: str, role: str, *, not_classes: Mapping[Path, set[str]] | None = None) -> Table:
    """The matrix or the labels in a file, checked to be one.

    `not_classes` names columns of parquet and csv files that hold something else, such as the labels.
    """
    place = Place.of(typed, role)
    with readable(place):
        if place.suffix in (".parquet", ".csv"):
            from calispan.cli import score_tables

            left_out = (not_classes or {}).get(place.path.resolve(), set())
            opener = score_tables.open_parquet if place.suffix == ".parquet" else score_tables.open_csv
            return _checked(place, opener(place, left_out))
        return _checked(place, _open_safetensors(place) if place.suffix == ".safetensors" else _open_numpy(place))


@contextmanager
def readable(place: Place) -> Iterator[None]:
    """Whatever a parser says about a damaged file becomes one sentence that names the file."""
    from safetensors import SafetensorError

    damage = (OSError, EOFError, ValueError, LookupError, NotImplementedError, zipfile.BadZipFile, zlib.error)
    try:
        yield
    except CalispanError:
        raise
    except (*damage, SafetensorError) as error:
        said = " ".join(str(error).split()).rstrip(".")[:200] or type(error).__name__
        raise InputError(
            f"{place.path} cannot be read as {place.suffix} ({said}). "
            f"Check that it holds {place.role} and was copied whole, or write it again."
        ) from error


@dataclass(frozen=True)
class Found:
    """An array as a format holds it, before it is known to be what was wanted."""

    shape: tuple[int | None, ...]
    kind: str  # name of its number type
    whole: bool  # of whole numbers
    real: bool
    read: Callable[[int], Iterator[Tensor]]


def _checked(place: Place, found: Found) -> Table:
    shape = "[" + ", ".join("rows" if size is None else str(size) for size in found.shape) + "]"
    came = f"{place.typed} holds {found.kind} of shape {shape}"
    if place.labels:
        if len(found.shape) not in (1, 2) or found.shape[1:] not in ((), (1,)):
            raise InputError(
                f"{came}; labels are one class index a row. One-hot rows become indices with argmax(axis=1), "
                "and a column of a parquet or csv file is chosen as FILE:COLUMN."
            )
        if not found.whole:
            raise InputError(f"{came}; labels are whole numbers 0..classes-1. Save them with labels.astype(int).")
    else:
        if len(found.shape) != 2 or found.shape[1] == 0:
            raise InputError(f"{came}; {place.role} are [rows, classes]. Save the array with two axes.")
        if not found.real:
            raise InputError(f"{came}; {place.role} are real numbers. Save them as float32.")
    if found.shape[0] == 0:
        raise InputError(f"{place.typed} holds no rows. Write the {place.role} again.")

    def read(size: int) -> Iterator[Tensor]:
        with readable(place):
            for chunk in found.read(size):
                yield chunk.reshape(-1).long() if place.labels else chunk

    columns = 1 if place.labels else found.shape[1]
    assert columns is not None
    return Table(place.typed, found.shape[0], columns, read)


def _open_numpy(place: Place) -> Found:
    member: str | None = None
    if place.suffix == ".npz":
        with zipfile.ZipFile(place.path) as archive:
            member = place.choose((name.removesuffix(".npy") for name in archive.namelist()), "array") + ".npy"
    elif place.key is not None:
        raise InputError(f"{place.path} holds one array, so '{place.key}' chooses nothing. Write {place.path} alone.")
    with _stream(place, member) as (stream, size):
        shape, column_order, dtype = _npy_head(stream)
        if dtype.hasobject:
            raise InputError(f"{place.typed} holds Python objects, which are never unpickled. Save plain numbers.")
        if dtype.names is None and size - stream.tell() != int(np.prod(shape)) * dtype.itemsize:
            raise InputError(
                f"{place.typed} is cut short: its head promises shape {shape} of {dtype}, but {size - stream.tell()} "
                "bytes follow. Copy or write it again."
            )

    def read(size: int) -> Iterator[Tensor]:
        if column_order:  # rows do not lie together: map the file where that can be done, else hold it
            with _stream(place, member) as (stream, _):
                whole = np.load(place.path, mmap_mode="r") if member is None else np.lib.format.read_array(stream)
                yield from (_tensor(whole[start : start + size]) for start in range(0, len(whole), size))
            return
        with _stream(place, member) as (stream, _):
            _npy_head(stream)
            row_bytes = int(np.prod(shape[1:])) * dtype.itemsize
            for start in range(0, shape[0], size):
                # Plain reads, not a memory map: pages of a map stay in the process, so 10^7 rows would fill it.
                count = min(size, shape[0] - start)
                raw = np.empty(count * row_bytes, np.uint8)
                if stream.readinto(raw.data) != len(raw):  # type: ignore[attr-defined]
                    raise EOFError("the file ends early")
                yield _tensor(raw.view(dtype).reshape(count, *shape[1:]))

    number = dtype.kind in "iuf" and dtype.itemsize <= 8
    return Found(shape, str(dtype), dtype.kind in "iu", number, read)


@contextmanager
def _stream(place: Place, member: str | None) -> Iterator[tuple[IO[bytes], int]]:
    """The bytes of an npy file, or of one that lies in an npz archive, and how many they are."""
    if member is None:
        with place.path.open("rb") as stream:
            yield stream, place.path.stat().st_size
    else:
        with zipfile.ZipFile(place.path) as archive, archive.open(member) as stream:
            yield stream, archive.getinfo(member).file_size


def _npy_head(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(stream)
    return np.lib.format.read_array_header_2_0(stream)


def _tensor(chunk: np.ndarray[Any, Any]) -> Tensor:
    if chunk.dtype.kind in "iu":
        return torch.from_numpy(chunk.astype(np.int64))
    return torch.from_numpy(np.array(chunk, dtype=chunk.dtype.newbyteorder("="), order="C"))


def _open_safetensors(place: Place) -> Found:
    from safetensors import safe_open

    with safe_open(place.path, framework="pt") as file:
        name = place.choose(list(file.keys()), "tensor")
        shape = tuple(file.get_slice(name).get_shape())
        dtype = file.get_slice(name)[:0].dtype if shape else file.get_tensor(name).dtype

    def read(size: int) -> Iterator[Tensor]:
        for start in range(0, shape[0], size):
            with safe_open(place.path, framework="pt") as file:  # opened anew: a lasting map would keep its pages
                yield file.get_slice(name)[start : start + size].clone()

    number = dtype != torch.bool and not dtype.is_complex
    whole = number and not dtype.is_floating_point
    return Found(shape, str(dtype).removeprefix("torch."), whole, number, read)


def listing(names: Iterable[str], most: int = 12) -> str:
    """Names for a sentence; a thousand class columns are not all told."""
    known = list(names)
    return ", ".join(known[:most]) + (f", ... {len(known) - most} more" if len(known) > most else "") or "nothing"
