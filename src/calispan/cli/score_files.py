"""Score files: matrices and labels in npy, npz, safetensors, parquet and csv, read a chunk of rows at a time.

`scores.npz:logits` is the array `logits` of `scores.npz`; for parquet and csv the part after the colon is a column.
Opening a file reads its head alone: shape and type are known, and refused, before the first row is.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from calispan.cli.score_arrays import open_numpy, open_safetensors
from calispan.cli.score_place import Found, Place
from calispan.cli.score_tables import open_csv, open_parquet
from calispan.core.errors import CalispanError, InputError


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
            opener = open_parquet if place.suffix == ".parquet" else open_csv
            return _checked(place, opener(place, (not_classes or {}).get(place.path.resolve(), set())))
        return _checked(place, open_safetensors(place) if place.suffix == ".safetensors" else open_numpy(place))


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
