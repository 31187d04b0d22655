"""The same scores in every file format that the command line reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from pyarrow import parquet
from safetensors.torch import save_file

FORMATS = ("npy", "npz", "npz-compressed", "safetensors", "parquet", "parquet-lists", "csv", "csv-titled")


@dataclass(frozen=True)
class Arrays:
    logits: np.ndarray
    zero_shot: np.ndarray
    labels: np.ndarray


def made(rows: int = 357, classes: int = 6, seed: int = 0) -> Arrays:
    """Scores of a model that is right about half of the time and too sure of it."""
    draws = np.random.default_rng(seed)
    labels = draws.integers(0, classes, rows)
    zero_shot = draws.normal(size=(rows, classes)) + 1.2 * np.eye(classes)[labels]
    return Arrays(2.5 * zero_shot + draws.normal(size=(rows, classes)), zero_shot, labels)


def write(folder: Path, form: str, arrays: Arrays) -> tuple[str, str, str]:
    """The arrays in a format, and what a user types for logits, zero-shot logits and labels."""
    folder.mkdir(exist_ok=True)
    named = {"logits": arrays.logits, "zero_shot": arrays.zero_shot, "labels": arrays.labels}
    match form:
        case "npy":
            for name, array in named.items():
                np.save(folder / f"{name}.npy", array)
        case "npz" | "npz-compressed":
            (np.savez if form == "npz" else np.savez_compressed)(folder / "all.npz", **named)
            return (str(folder / "all.npz"),) * 3
        case "safetensors":
            save_file({name: torch.from_numpy(array) for name, array in named.items()}, folder / "all.safetensors")
            return (str(folder / "all.safetensors"),) * 3
        case "parquet":
            for name, array in named.items():
                columns = (
                    {f"class {i}": array[:, i] for i in range(array.shape[1])} if array.ndim == 2 else {"y": array}
                )
                parquet.write_table(pa.table(columns), folder / f"{name}.parquet", row_group_size=50)
        case "parquet-lists":
            table = pa.table({name: pa.array(list(array)) for name, array in named.items()})
            parquet.write_table(table, folder / "all.parquet", row_group_size=50)
            return (str(folder / "all.parquet"),) * 3
        case "csv" | "csv-titled":
            for name, array in named.items():
                width = array.shape[1] if array.ndim == 2 else 1
                titles = ",".join(f"c{i}" for i in range(width)) if form == "csv-titled" else ""
                number = "%d" if name == "labels" else "%.17g"
                np.savetxt(folder / f"{name}.csv", array, fmt=number, delimiter=",", header=titles, comments="")
    suffix = form.split("-")[0]
    return str(folder / f"logits.{suffix}"), str(folder / f"zero_shot.{suffix}"), str(folder / f"labels.{suffix}")
