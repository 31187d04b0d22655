"""Bad input: each gives one sentence that names the file or option, what came and what to do, and exit code 2."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import typer
from pyarrow import parquet
from safetensors.torch import save_file

from calispan.cli import evaluate as evaluate_file
from calispan.core import evaluation
from cli_scores import made

Run = Callable[..., Any]
GOOD = "--logits good.npz --labels good.npz"


def with_cell(value: float) -> np.ndarray:
    logits = np.random.default_rng(2).normal(size=(40, 3))
    logits[17, 1] = value
    return logits


def write_files(folder: Path) -> None:
    """Good scores of 40 rows and 3 classes, and every way to spoil them."""
    good = made(rows=40, classes=3)
    logits, labels = good.logits, good.labels
    np.savez(folder / "good.npz", logits=logits, zero_shot=good.zero_shot, labels=labels)
    np.save(folder / "good.npy", logits)
    np.save(folder / "short.npy", logits[:39])
    np.save(folder / "four-classes.npy", np.zeros((40, 4)))
    np.save(folder / "nan.npy", with_cell(np.nan))
    np.save(folder / "inf.npy", with_cell(-np.inf))
    np.save(folder / "cube.npy", np.zeros((4, 3, 2)))
    np.save(folder / "row.npy", np.zeros(40))
    np.save(folder / "no-rows.npy", np.zeros((0, 3)))
    np.save(folder / "no-classes.npy", np.zeros((40, 0)))
    np.save(folder / "complex.npy", np.zeros((40, 3), complex))
    np.save(folder / "bool.npy", np.zeros((40, 3), bool))
    np.save(folder / "objects.npy", np.array([[1, "a"]], dtype=object))
    np.save(folder / "words.npy", np.array(["cat"] * 40))
    np.save(folder / "one-hot.npy", np.eye(3)[labels])
    np.save(folder / "halves.npy", labels / 2)
    np.save(folder / "from-one.npy", labels + 1)
    np.save(folder / "negative.npy", labels - 1)
    np.save(folder / "short-labels.npy", labels[:39])
    np.savez(folder / "two.npz", a=logits, b=logits)
    tensor = torch.from_numpy(logits)
    save_file({"logits": tensor, "other": tensor.clone()}, folder / "good.safetensors")
    table = pa.table({"cat": logits[:, 0], "dog": logits[:, 1], "fox": logits[:, 2], "label": labels})
    parquet.write_table(table, folder / "good.parquet", row_group_size=7)
    parquet.write_table(pa.table({"cat": logits[:, 0], "name": ["x"] * 40}), folder / "names.parquet")
    parquet.write_table(pa.table({"logits": [[1.0, 2.0], [3.0]]}), folder / "ragged.parquet")
    parquet.write_table(pa.table({"cat": [1.0] * 17 + [None], "dog": [0.5] * 18}), folder / "hole.parquet")
    for name in ("good.npy", "good.npz", "good.safetensors", "good.parquet"):
        whole = (folder / name).read_bytes()
        (folder / f"cut{Path(name).suffix}").write_bytes(whole[: len(whole) // 2])
        (folder / f"junk{Path(name).suffix}").write_bytes(bytes(range(256)) * 4)
    flipped = bytearray((folder / "good.npz").read_bytes())
    flipped[400] ^= 255
    (folder / "flipped.npz").write_bytes(flipped)
    for name, text in {
        "empty.csv": "",
        "titles.csv": "cat,dog\n",
        "ragged.csv": "1,2\n3,4\n5\n",
        "words.csv": "cat,dog\n1,2\n3,many\n",
        "semicolons.csv": "1;2\n3;4\n",
        "hole.csv": "cat,dog\n1,2\n3,\n",
        "index.csv": ",0,1\n0,1.5,2\n",
        "twice.csv": "cat,cat\n1,2\n",
        "short.csv": "1,2,3\n" * 39,
        "classes.csv": "label\ncat\ndog\n",
    }.items():
        (folder / name).write_text(text)
    (folder / "junk.csv").write_bytes(bytes(range(256)) * 4)
    (folder / "empty.npy").write_bytes(b"")
    (folder / "folder.npy").mkdir()
    (folder / "scores.pt").write_bytes(b"PK")


@pytest.fixture(autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path_factory.getbasetemp() / "bad-input"
    if not path.exists():
        path.mkdir()
        write_files(path)
    monkeypatch.chdir(path)
    return path


TABLE = [
    # options and names
    ("evaluate", "Missing option '--logits'. See `calispan evaluate --help`."),
    ("evaluate --logits", "--logits' requires an argument"),
    (f"evaluate {GOOD} --label good.npz", "--label"),
    (f"evaluate {GOOD} --chunk-rows 0", "--chunk-rows"),
    (f"evaluate {GOOD} --chunk-rows many", "'--chunk-rows'"),
    ("evalute", "'evalute'. Did you mean 'evaluate'?"),
    ("ls metric", "No kind is called 'metric'. Did you mean 'metrics'?"),
    ("ls --jsn", "--json"),
    (f"evaluate {GOOD} --metrics ece-16", "No metric is called 'ece-16'. Did you mean 'ece-15'?"),
    (f"evaluate {GOOD} --metrics ece:bin=3", "no parameter 'bin'. Did you mean 'bins'?"),
    (f"evaluate {GOOD} --metrics ece:bins=0", "bins is 0; wanted 1 or more"),
    (f"evaluate {GOOD} --metrics ece:bins=few", "'few'"),
    (f"evaluate {GOOD} --after salz", "No calibrator is called 'salz'. Did you mean 'sals'?"),
    (
        f"evaluate {GOOD} --after penalty:weight=1",
        "'penalty' calibrates during training, and these logits are finished",
    ),
    (f"evaluate {GOOD} --after sals:span=-1", "span above 0"),
    (f"evaluate {GOOD} --after sals:0.5", "'0.5' in 'sals:0.5' is not key=value"),
    # what was not given
    (f"evaluate {GOOD} --after sals", "pass --zero-shot FILE"),
    (f"evaluate {GOOD} --after temperature", "--fit-logits FILE and --fit-labels FILE"),
    (f"evaluate {GOOD} --after temperature --fit-logits good.npz", "--fit-labels FILE"),
    (f"evaluate {GOOD} --fit-labels good.npz", "Pass their --fit-logits FILE too"),
    (f"evaluate {GOOD} --after temperature:fit_on=support", "'temperature:fit_on=support' learns from support"),
    ("evaluate --logits good.npz", "Pass --labels FILE, --zero-shot FILE or both"),
    (
        "evaluate --logits good.npz --metrics nll",
        "Metric 'nll' cannot be computed from these files. Pass --labels FILE",
    ),
    (f"evaluate {GOOD} --metrics range-inflation", "Pass --zero-shot FILE too"),
    ("evaluate --logits good.npz --metrics mean-confidence --diagram d.png", "Pass --labels FILE too"),
    # where a diagram cannot go
    (f"evaluate {GOOD} --diagram d.jpeg", "d.jpeg ends in '.jpeg'; a diagram is written as .png, .svg, .pdf"),
    (f"evaluate {GOOD} --diagram good.npy/d.png", "good.npy/d.png cannot be written (File exists: good.npy)"),
    # files that are not there, not readable, not whole
    ("evaluate --logits gone.npy", "gone.npy does not exist. Pass the path of your logits file"),
    ("evaluate --logits gone.npz:logits", "gone.npz does not exist"),
    ("evaluate --logits folder.npy", "folder.npy is a folder"),
    ("evaluate --logits empty.npy", "empty.npy is empty (0 bytes)"),
    ("evaluate --logits empty.csv", "empty.csv is empty (0 bytes)"),
    ("evaluate --logits scores.pt", "scores.pt ends in '.pt'; logits are read from .npy, .npz"),
    ("evaluate --logits cut.npy", "cut.npy is cut short: its head promises shape (40, 3) of float64"),
    ("evaluate --logits cut.npz", "cut.npz cannot be read as .npz"),
    ("evaluate --logits cut.safetensors", "cut.safetensors cannot be read as .safetensors"),
    ("evaluate --logits cut.parquet", "cut.parquet cannot be read as .parquet"),
    ("evaluate --logits flipped.npz --labels good.npz", "flipped.npz cannot be read as .npz (Bad CRC-32"),
    ("evaluate --logits junk.npy", "junk.npy cannot be read as .npy"),
    ("evaluate --logits junk.npz", "junk.npz cannot be read as .npz"),
    ("evaluate --logits junk.safetensors", "junk.safetensors cannot be read as .safetensors"),
    ("evaluate --logits junk.parquet", "junk.parquet cannot be read as .parquet"),
    ("evaluate --logits junk.csv", "junk.csv cannot be read as .csv"),
    ("evaluate --logits objects.npy", "objects.npy holds Python objects, which are never unpickled"),
    # arrays and columns in a file
    ("evaluate --logits good.npz:logitz", "good.npz has no array 'logitz'. Did you mean 'logits'?"),
    ("evaluate --logits good.npy:logits", "good.npy holds one array, so 'logits' chooses nothing"),
    ("evaluate --logits two.npz", "2 arrays (a, b), and none is plainly the logits. Write two.npz:NAME"),
    ("evaluate --logits good.safetensors:othr", "Did you mean 'other'?"),
    ("evaluate --logits good.npz --labels good.parquet:labl", "no column 'labl'. Did you mean 'label'?"),
    ("evaluate --logits names.parquet", "names.parquet, column 'name' holds"),
    ("evaluate --logits ragged.parquet --metrics mean-confidence", "not all full and of one length"),
    ("evaluate --logits hole.parquet --metrics mean-confidence --chunk-rows 5", "hole.parquet is empty at row 17 (the"),
    ("evaluate --logits titles.csv", "titles.csv holds one line, its column names, and no rows"),
    ("evaluate --logits ragged.csv --metrics mean-confidence", "Row #3: Expected 2 columns, got 1"),
    ("evaluate --logits words.csv --metrics mean-confidence", "invalid value 'many'"),
    ("evaluate --logits semicolons.csv --metrics mean-confidence", "semicolons.csv cannot be read as .csv"),
    (
        "evaluate --logits hole.csv --metrics mean-confidence",
        "hole.csv is empty at row 1 (the first is 0), column 'dog'",
    ),
    ("evaluate --logits index.csv", "Save it with index=False"),
    ("evaluate --logits twice.csv", "two columns of the same title"),
    # shapes and types
    ("evaluate --logits cube.npy", "cube.npy holds float64 of shape [4, 3, 2]; logits are [rows, classes]"),
    ("evaluate --logits row.npy", "row.npy holds float64 of shape [40]; logits are [rows, classes]"),
    ("evaluate --logits no-classes.npy", "of shape [40, 0]; logits are [rows, classes]"),
    ("evaluate --logits no-rows.npy", "no-rows.npy holds no rows"),
    ("evaluate --logits complex.npy", "complex.npy holds complex128 of shape [40, 3]; logits are real numbers"),
    ("evaluate --logits bool.npy", "bool.npy holds bool"),
    ("evaluate --logits good.npz --labels one-hot.npy", "one-hot.npy holds float64 of shape [40, 3]; labels are one"),
    ("evaluate --logits good.npz --labels halves.npy", "labels are whole numbers 0..classes-1"),
    ("evaluate --logits good.npz --labels words.npy", "words.npy holds <U3"),
    ("evaluate --logits good.npz --labels classes.csv", "classes.csv cannot be read as .csv"),
    # files that do not fit each other
    ("evaluate --logits good.npz --labels short-labels.npy", "good.npz has 40, short-labels.npy has 39"),
    ("evaluate --logits good.npy --zero-shot short.npy", "good.npy has 40, short.npy has 39. Pass files of the same"),
    ("evaluate --logits good.npy --zero-shot short.csv", "good.npy has 40, short.csv has 39"),
    ("evaluate --logits short.csv --labels good.npz", "short.csv has 39, good.npz has 40"),
    ("evaluate --logits good.npy --zero-shot four-classes.npy", "four-classes.npy has 4 classes but good.npy has 3"),
    (
        f"evaluate {GOOD} --after temperature --fit-logits four-classes.npy --fit-labels good.npz",
        "four-classes.npy has 4 classes but good.npz has 3",
    ),
    # values
    ("evaluate --logits nan.npy --labels good.npz", "nan.npy: Logits of row 17 hold NaN or infinity"),
    ("evaluate --logits inf.npy --labels good.npz", "inf.npy: Logits of row 17 hold NaN or infinity"),
    ("evaluate --logits nan.npy --labels good.npz --chunk-rows 5", "nan.npy: Logits of row 17 hold"),
    ("evaluate --logits good.npy --zero-shot nan.npy", "nan.npy: Zero-shot logits of row 17 hold NaN"),
    ("evaluate --logits good.npy --labels from-one.npy", "from-one.npy: Label 3 of row"),
    ("evaluate --logits good.npy --labels negative.npy", "negative.npy: Label -1 of row"),
    (f"evaluate {GOOD} --after temperature --fit-logits nan.npy --fit-labels good.npz", "nan.npy: Logits of row 17"),
    (
        f"evaluate {GOOD} --after temperature --fit-logits good.npy --fit-zero-shot nan.npy --fit-labels good.npz",
        "nan.npy: Zero-shot logits of row 17 hold NaN",
    ),
    (f"evaluate {GOOD} --after vector --fit-logits good.npy --fit-labels from-one.npy", "from-one.npy: Label 3 of"),
]


@pytest.mark.parametrize(("words", "said"), TABLE, ids=[words.replace(" ", "_") for words, _ in TABLE])
def test_one_sentence_and_exit_code_2(run: Run, words: str, said: str) -> None:
    ended = run(*words.split())
    assert ended.code == 2
    assert said in ended.err
    assert ended.err.startswith("error: ")
    assert ended.err.endswith(".\n")
    assert ended.err.count("\n") == 1
    assert "Traceback" not in ended.err
    assert ended.out == ""


def test_control_codes_of_a_file_name_do_not_reach_the_terminal(run: Run) -> None:
    ended = run("evaluate", "--logits", "a\x1b[31m\nb.npy")
    assert ended.err == "error: a?[31m b.npy does not exist. Pass the path of your logits file.\n"


def test_a_bad_file_leaves_no_diagram(run: Run, folder: Path) -> None:
    run("evaluate", "--logits", "nan.npy", "--labels", "good.npz", "--diagram", "never.png")
    assert not (folder / "never.png").exists()


def test_the_unforeseen_is_one_sentence_and_exit_code_1(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by\nzero")

    monkeypatch.setattr(evaluation.Evaluation, "compute", fault)
    ended = run(*f"evaluate {GOOD}".split())
    assert ended.code == 1
    assert ended.err.startswith("error: ZeroDivisionError where none was foreseen (by zero).")
    assert "CALISPAN_DEBUG=1" in ended.err
    assert ended.err.count("\n") == 1
    monkeypatch.setenv("CALISPAN_DEBUG", "1")
    assert "Traceback" in run(*f"evaluate {GOOD}".split()).err


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, typer.Abort])
def test_an_interrupt_is_quiet(run: Run, monkeypatch: pytest.MonkeyPatch, interrupt: type[BaseException]) -> None:
    def interrupted(*_: object) -> None:
        raise interrupt

    monkeypatch.setattr(evaluate_file, "split_specs", interrupted)
    ended = run(*f"evaluate {GOOD}".split())
    assert (ended.code, ended.err, ended.out) == (130, "", "")


def test_a_real_process_says_the_same(folder: Path) -> None:
    program = [sys.executable, "-c", "from calispan.cli import main; main()"]
    done = subprocess.run([*program, "evaluate", "--logits", "nan.npy", "--labels", "good.npz"], capture_output=True)
    assert done.returncode == 2
    assert done.stdout == b""
    assert done.stderr.startswith(b"error: nan.npy: Logits of row 17 hold NaN or infinity.")
    assert b"Traceback" not in done.stderr
