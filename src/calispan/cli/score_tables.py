"""Score files with named columns, parquet and csv: a column a class, or one column of lists."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calispan.cli.score_place import Found, Place, listing
from calispan.core.errors import InputError

_BLOCK = 4 << 20  # bytes of csv parsed at a time
_LONGEST_LINE = 64 << 20


def open_parquet(place: Place, not_classes: set[str]) -> Found:
    from pyarrow import parquet, types

    with parquet.ParquetFile(place.path) as file:
        schema, rows = file.schema_arrow, file.metadata.num_rows

    lists = [name for name in schema.names if _is_list(schema.field(name).type)]
    names = _columns(place, schema.names, lists, not_classes)
    kinds = [schema.field(name).type for name in names]
    width: int | None = len(names)
    if _is_list(kinds[0]):
        kinds = [kinds[0].value_type]
        width = _list_width(place, names[0])
    for name, kind in zip(names, kinds, strict=True):
        if not (types.is_integer(kind) or types.is_floating(kind)):
            raise InputError(_not_numbers(place, name, str(kind)))

    def parts(size: int) -> Iterator[Tensor]:
        # Buffered and nothing fetched ahead: a few pages of each column are held, not the row groups met so far.
        lean: dict[str, Any] = {"buffer_size": 1 << 16, "pre_buffer": False}
        with parquet.ParquetFile(place.path, page_checksum_verification=True, **lean) as file:
            start = 0
            for batch in file.iter_batches(batch_size=size, columns=names):
                yield _matrix(place, batch.columns, names, start)
                start += len(batch)

    whole = all(types.is_integer(kind) for kind in kinds)
    return Found((rows, width), str(kinds[0]), whole, True, lambda size: _rechunk(parts(size), size))


def open_csv(place: Place, not_classes: set[str]) -> Found:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    cells, longest = _first_line(place.path)
    titled = not all(map(_is_number, cells)) or (len(cells) > 1 and cells == [str(i) for i in range(len(cells))])
    names = cells if titled else [str(i) for i in range(len(cells))]
    chosen = _columns(place, names, [], not_classes)
    inside = [str(names.index(name)) for name in chosen]  # by position: titles may repeat
    number = pa.int64() if place.labels else pa.float64()

    def parts() -> Iterator[Tensor]:
        reader = arrow_csv.open_csv(
            place.path,
            read_options=arrow_csv.ReadOptions(
                column_names=[str(i) for i in range(len(names))],
                skip_rows=int(titled),
                block_size=max(_BLOCK, 16 * longest),
                use_threads=False,  # so that a bad cell is told by its row
            ),
            convert_options=arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(inside, number), include_columns=inside, null_values=[""]
            ),
        )
        start = 0
        with reader:
            for batch in reader:
                yield _matrix(place, batch.columns, chosen, start)
                start += len(batch)

    if titled and not _has_second_line(place.path):
        raise InputError(f"{place.path} holds one line, its column names, and no rows. Write the {place.role} again.")
    return Found((None, len(chosen)), str(number), place.labels, True, lambda size: _rechunk(parts(), size))


def _columns(place: Place, names: Sequence[str], lists: Sequence[str], not_classes: set[str]) -> list[str]:
    """The columns to read: one that was named, or a column a class. A column titled `label` is never a class."""
    if place.key is not None or place.labels:
        return [place.choose(names, "column")]
    if lists:
        return [place.choose([name for name in lists if name not in not_classes], "column of lists")]
    classes = [name for name in names if name not in not_classes and name.lower() not in ("label", "labels")]
    if "" in classes or "__index_level_0__" in classes:
        raise InputError(
            f"{place.path} has a column without a title beside its classes, as pandas writes a row index. "
            "Save it with index=False."
        )
    if len(set(classes)) != len(classes):
        raise InputError(f"{place.path} has two columns of the same title. Give each class its own, or no titles.")
    if not classes:
        raise InputError(f"{place.path} has no columns left for the classes (its columns: {listing(names)}).")
    return classes


def _matrix(place: Place, columns: Sequence[Any], names: Sequence[str], start: int) -> Tensor:
    for name, column in zip(names, columns, strict=True):
        if column.null_count:
            row = start + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
            raise InputError(
                f"{place.path} is empty at row {row} (the first is 0), column '{name}'. Fill that cell or drop the row."
            )
    if not _is_list(columns[0].type):
        kind = np.result_type(*(np.dtype(column.type.to_pandas_dtype()) for column in columns))
        whole = np.empty((len(columns[0]), len(columns)), np.int64 if kind.kind in "iu" else kind)
        for index, column in enumerate(columns):
            whole[:, index] = column.to_numpy(zero_copy_only=False)
        return torch.from_numpy(whole)
    flat, sizes = columns[0].flatten(), columns[0].value_lengths().to_numpy(zero_copy_only=False)
    if flat.null_count or len(set(sizes.tolist())) != 1:
        raise InputError(
            f"{place.path}, column '{names[0]}': its lists are not all full and of one length. "
            "Write one number for each class in every row."
        )
    return torch.from_numpy(np.array(flat.to_numpy(zero_copy_only=False))).view(len(sizes), -1)


def _rechunk(parts: Iterable[Tensor], size: int) -> Iterator[Tensor]:
    """The same rows in chunks of one size: row groups and csv blocks end where they like."""
    held: list[Tensor] = []
    for part in parts:
        while len(part):
            wanted = size - sum(map(len, held))
            held.append(part[:wanted])
            part = part[wanted:]
            if sum(map(len, held)) == size:
                yield torch.cat(held)
                held = []
    if held:
        yield torch.cat(held)


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _list_width(place: Place, name: str) -> int | None:
    from pyarrow import parquet

    with parquet.ParquetFile(place.path) as file:
        for batch in file.iter_batches(batch_size=1, columns=[name]):
            return int(_matrix(place, batch.columns, [name], 0).shape[1])
    return None


def _not_numbers(place: Place, name: str, kind: str) -> str:
    return (
        f"{place.path}, column '{name}' holds {kind}; {place.role} are numbers. "
        "Drop that column, or choose another as FILE:COLUMN."
    )


def _first_line(path: Path) -> tuple[list[str], int]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        line = file.readline(_LONGEST_LINE)
    cells = next(csv.reader([line.rstrip("\r\n")], strict=True), [])
    if not cells or "\0" in line:
        raise ValueError("its first line is not numbers or titles separated by commas")
    return [cell.strip() for cell in cells], len(line)


def _has_second_line(path: Path) -> bool:
    with path.open(encoding="utf-8-sig") as file:
        file.readline(_LONGEST_LINE)
        return bool(file.readline(1024).strip())


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
