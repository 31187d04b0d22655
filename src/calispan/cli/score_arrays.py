"""Score files of arrays: npy, npz and safetensors."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from calispan.cli.score_place import Found, Place
from calispan.core.errors import InputError


def open_numpy(place: Place) -> Found:
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
    """The chunk as a tensor; copied only where it lies in a file or in another order."""
    kind = np.dtype(np.int64) if chunk.dtype.kind in "iu" else chunk.dtype.newbyteorder("=")
    return torch.from_numpy(np.ascontiguousarray(chunk, kind))


def open_safetensors(place: Place) -> Found:
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
