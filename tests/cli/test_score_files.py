"""Readers: whatever the format, the same numbers come out, in chunks of the size asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from safetensors.torch import save_file

from calispan.cli.score_files import open_table
from calispan.core.errors import InputError
from cli_scores import FORMATS, Arrays, made, write


def read(typed: object, role: str, size: int = 64, **more: object) -> np.ndarray:
    return torch.cat(list(open_table(str(typed), role, **more).read(size))).numpy()  # type: ignore[arg-type]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("size", [1, 50, 64, 357, 10_000])
def test_every_format_gives_the_same_rows(tmp_path: Path, form: str, size: int) -> None:
    arrays = made(rows=120 if size == 1 else 357)
    names = write(tmp_path, form, arrays)
    wanted = (arrays.logits, arrays.zero_shot, arrays.labels)
    for typed, role, array in zip(names, ("logits", "zero-shot logits", "labels"), wanted, strict=True):
        table = open_table(typed, role)
        parts = list(table.read(size))
        assert all(len(part) == size for part in parts[:-1])
        assert 1 <= len(parts[-1]) <= size
        np.testing.assert_array_equal(torch.cat(parts).numpy(), array)
        assert table.rows in (None, len(array))
        assert table.columns == (array.shape[1] if array.ndim == 2 else 1)


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", ">f4", "int16", "uint8"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_number_types_and_memory_orders_of_numpy(tmp_path: Path, kind: str, order: str, suffix: str) -> None:
    array = np.asarray(np.random.default_rng(1).integers(0, 99, (41, 3)), dtype=kind, order=order)  # type: ignore[call-overload]
    path = tmp_path / f"a{suffix}"
    np.save(path, array) if suffix == ".npy" else np.savez(path, array)
    np.testing.assert_array_equal(read(path, "logits", 7), array)


def test_bfloat16_of_safetensors(tmp_path: Path) -> None:
    tensor = torch.randn(30, 4).bfloat16()
    save_file({"anything": tensor}, tmp_path / "a.safetensors")
    parts = list(open_table(str(tmp_path / "a.safetensors"), "logits").read(7))
    assert torch.equal(torch.cat(parts), tensor)


def test_a_key_chooses_and_a_lone_or_namesake_array_needs_none(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", adapted=np.eye(3), Zero_Shot=2 * np.eye(3), label=np.arange(3))
    np.savez(tmp_path / "lone.npz", whatever=np.eye(2))
    np.testing.assert_array_equal(read(f"{tmp_path}/a.npz:adapted", "logits"), np.eye(3))
    np.testing.assert_array_equal(read(tmp_path / "a.npz", "zero-shot logits"), 2 * np.eye(3))
    np.testing.assert_array_equal(read(tmp_path / "a.npz", "labels"), [0, 1, 2])
    np.testing.assert_array_equal(read(tmp_path / "lone.npz", "logits"), np.eye(2))
    with pytest.raises(InputError, match=r"3 arrays \(adapted, Zero_Shot, label\).*Write .*a.npz:NAME"):
        open_table(str(tmp_path / "a.npz"), "logits")


def test_a_file_whose_name_holds_a_colon_is_that_file(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npz:y.npy", np.eye(2))
    np.testing.assert_array_equal(read(tmp_path / "x.npz:y.npy", "logits"), np.eye(2))


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("1,2\n3,4\n", [[1, 2], [3, 4]]),  # numbers from the first line on
        ("cat,dog\n1,2\n3,4\n", [[1, 2], [3, 4]]),
        ("0,1\n1.5,2\n3,4\n", [[1.5, 2], [3, 4]]),  # numbered titles, as pandas writes them
        ("\ufeffcat,dog\r\n1,2\r\n3,4", [[1, 2], [3, 4]]),
        ("\ufeff1,2\n3,4\n", [[1, 2], [3, 4]]),  # a byte order mark is no title
        ('"cat, big",dog\n1e3,-2\n', [[1e3, -2]]),
        ("cat,label\n1,9\n2,9\n", [[1], [2]]),  # a column called label is never a class
    ],
)
def test_the_first_line_of_a_csv_is_titles_unless_it_is_numbers(tmp_path: Path, text: str, rows: list[object]) -> None:
    (tmp_path / "a.csv").write_bytes(text.encode())
    np.testing.assert_array_equal(read(tmp_path / "a.csv", "logits"), rows)


def test_pandas_files_are_read(tmp_path: Path, arrays: Arrays) -> None:
    frame = pd.DataFrame(arrays.logits).rename(columns=str).assign(label=arrays.labels)
    frame.to_parquet(tmp_path / "a.parquet")
    frame.to_csv(tmp_path / "a.csv", index=False)
    for path in (tmp_path / "a.parquet", tmp_path / "a.csv"):
        np.testing.assert_array_equal(read(path, "logits"), arrays.logits)
        np.testing.assert_array_equal(read(path, "labels"), arrays.labels)
    frame.to_csv(tmp_path / "index.csv")
    with pytest.raises(InputError, match=r"index=False"):
        open_table(str(tmp_path / "index.csv"), "logits")


def test_a_column_taken_elsewhere_is_not_a_class(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"cat": [1.0, 2.0], "dog": [3.0, 4.0], "truth": [0, 1]}), path)
    assert read(path, "logits").shape == (2, 3)
    np.testing.assert_array_equal(read(path, "logits", not_classes={path.resolve(): {"truth"}}), [[1, 3], [2, 4]])


def test_a_csv_longer_than_its_first_block(tmp_path: Path) -> None:
    # The first block of 4 MiB holds whole numbers alone; types must not be guessed from it.
    text = "1,2\n" * 1_500_000
    (tmp_path / "a.csv").write_text(text + "0.5,0.25")
    parts = list(open_table(str(tmp_path / "a.csv"), "logits").read(300_000))
    assert [len(part) for part in parts] == [300_000] * 5 + [1]
    np.testing.assert_array_equal(parts[-1][-1], [0.5, 0.25])
    (tmp_path / "b.csv").write_text(text + "3,")
    with pytest.raises(InputError, match="empty at row 1500000 "):
        read(tmp_path / "b.csv", "logits", 300_000)


def test_row_groups_of_a_parquet_file_are_let_go(tmp_path: Path) -> None:
    columns = {str(i): np.random.default_rng(i).normal(size=400_000) for i in range(4)}
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=20_000)
    before = pa.total_allocated_bytes()
    held = [pa.total_allocated_bytes() - before for _ in open_table(str(tmp_path / "a.parquet"), "logits").read(5000)]
    assert len(held) == 80
    assert max(held) < 2 << 20  # the file is 12 MiB
