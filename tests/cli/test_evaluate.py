"""`calispan evaluate`: numbers by hand, the same from every format and chunk, data on stdout and the rest on stderr."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from calispan.cli import score_sets
from calispan.cli.evaluate import split_specs
from calispan.cli.measuring import fitted, measure, usual_metrics
from calispan.cli.score_sets import ScoreSet
from calispan.core.evaluation import DEFAULT_METRICS, evaluate
from calispan.core.types import Scores
from calispan.pipeline import calibrate
from cli_scores import FORMATS, Arrays, made, write

Run = Callable[..., Any]


@pytest.fixture
def files(tmp_path: Path, arrays: Arrays) -> tuple[str, ...]:
    """What a user types for the three files."""
    logits, zero_shot, labels = write(tmp_path, "npy", arrays)
    return "--logits", logits, "--zero-shot", zero_shot, "--labels", labels


@pytest.fixture
def by_hand(tmp_path: Path) -> tuple[str, ...]:
    """Four rows of two classes, confident of class 0, 0, 0, 1 by .85 .62 .93 .55; the second is wrong."""
    sure = np.array([0.85, 0.62, 0.93, 0.45])
    np.save(tmp_path / "L.npy", np.stack([np.log(sure / (1 - sure)), np.zeros(4)], axis=1))
    np.save(tmp_path / "Z.npy", np.array([[1.0, 0], [3, 2], [0, -1], [-5, -4]]))  # every range is 1
    np.save(tmp_path / "Y.npy", np.array([0, 1, 0, 1]))
    return f"--logits={tmp_path / 'L.npy'}", f"--zero-shot={tmp_path / 'Z.npy'}", f"--labels={tmp_path / 'Y.npy'}"


def test_numbers_by_hand(run: Run, by_hand: tuple[str, ...]) -> None:
    ended = run("evaluate", *by_hand, "--json")
    assert (ended.code, ended.err) == (0, "")
    assert json.loads(ended.out) == {
        "rows": 4,
        "classes": 2,
        "after": [],
        "metrics": {
            "accuracy": 0.75,
            "ece-10": 0.3225,  # (.15 + .62 + .07 + .45) / 4: every row in a bin of its own
            "ece-15": 0.3225,
            "nll": 0.450128,  # -(ln .85 + ln .38 + ln .93 + ln .55) / 4
            "brier": 0.30715,  # 2 (.15^2 + .62^2 + .07^2 + .45^2) / 4
            "aurc": 0.145833,  # (0 + 0 + 1/3 + 1/4) / 4
            "range-inflation": 1.252877,  # mean of ln .85/.15, ln .62/.38, ln .93/.07, ln .55/.45
        },
    }


def test_numbers_by_hand_after_sals(run: Run, by_hand: tuple[str, ...]) -> None:
    ended = run("evaluate", *by_hand, "--json", "--after", "sals")
    result = json.loads(ended.out)
    # Ranges of 1: every row says 1 / (1 + 1/e) = .731059, and three of four are right.
    assert result["metrics"]["ece-10"] == 0.018941
    assert result["metrics"]["nll"] == 0.563262
    assert result["metrics"]["range-inflation"] == 1.0
    assert result["metrics"]["accuracy"] == 0.75
    assert result["before"]["ece-10"] == 0.3225
    assert result["after"] == ["sals"]
    assert list(result) == ["rows", "classes", "after", "before", "metrics"]


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_agrees_with_memory(tmp_path: Path, arrays: Arrays, form: str) -> None:
    scores = ScoreSet.open(*write(tmp_path, form, arrays))
    names = usual_metrics(scores)
    found = measure(scores, names, ["sals"], fitted(["sals"], scores, None), chunk_rows=100)
    here = Scores(torch.from_numpy(arrays.logits), torch.from_numpy(arrays.zero_shot))
    assert (found.rows, found.classes, names) == (357, 6, list(DEFAULT_METRICS))
    assert found.before == pytest.approx(evaluate(here, arrays.labels), abs=1e-12, rel=0)
    assert found.after == pytest.approx(evaluate(calibrate(here, "sals"), arrays.labels), abs=1e-12, rel=0)
    assert found.before != found.after


@pytest.mark.parametrize("rows", [1, 7, 64, 356, 357, 9999])
def test_chunks_do_not_change_numbers(tmp_path: Path, arrays: Arrays, rows: int) -> None:
    scores = ScoreSet.open(*write(tmp_path, "npy", arrays))
    names = [*DEFAULT_METRICS, "ece-20", "auroc", "smooth-ece", "classwise-ece", "range-p95"]
    maps = fitted(["sals:span=0.5"], scores, None)
    whole = measure(scores, names, ["sals:span=0.5"], maps, chunk_rows=None)
    parts = measure(scores, names, ["sals:span=0.5"], maps, chunk_rows=rows)
    assert parts.before == pytest.approx(whole.before, abs=1e-12, rel=0)
    assert parts.after == pytest.approx(whole.after, abs=1e-12, rel=0)


def test_calibrations_are_fitted_in_turn_on_the_held_out_files(
    tmp_path: Path, files: tuple[str, ...], run: Run
) -> None:
    held = made(rows=200, seed=5)
    logits, zero_shot, labels = write(tmp_path / "held", "npz", held)
    fit = ("--fit-logits", logits, "--fit-zero-shot", zero_shot, "--fit-labels", labels)
    chain = ["sals:span=0.5", "temperature"]
    ended = run("evaluate", *files, *fit, "--after", chain[0], "--after", chain[1], "--json")
    assert ended.code == 0, ended.err
    arrays = made()
    here = Scores(torch.from_numpy(arrays.logits), torch.from_numpy(arrays.zero_shot))
    source = Scores(torch.from_numpy(held.logits), torch.from_numpy(held.zero_shot))
    wanted = evaluate(calibrate(here, chain, held_out=(source, torch.from_numpy(held.labels))), arrays.labels)
    assert json.loads(ended.out)["metrics"] == {name: round(value, 6) for name, value in wanted.items()}
    assert json.loads(ended.out)["after"] == chain


def test_metrics_by_name_repeated_or_with_commas(files: tuple[str, ...], run: Run) -> None:
    ended = run("evaluate", *files, "--metrics", "nll,coverage-at:threshold=0.8", "--metrics", "ece:bins=7", "--json")
    assert list(json.loads(ended.out)["metrics"]) == ["nll", "coverage-at:threshold=0.8", "ece:bins=7"]


def test_commas_part_names_but_not_the_parameters_of_one() -> None:
    assert split_specs(["a:x=1,y=2,b", " c , d:z=3"]) == ["a:x=1,y=2", "b", "c", "d:z=3"]


def test_usual_metrics_are_those_the_files_can_answer(tmp_path: Path, arrays: Arrays, run: Run) -> None:
    logits, zero_shot, labels = write(tmp_path, "npy", arrays)
    no_labels = json.loads(run("evaluate", "--logits", logits, "--zero-shot", zero_shot, "--json").out)
    no_zero_shot = json.loads(run("evaluate", "--logits", logits, "--labels", labels, "--json").out)
    assert list(no_labels["metrics"]) == ["range-inflation"]
    assert list(no_zero_shot["metrics"]) == [name for name in DEFAULT_METRICS if name != "range-inflation"]


def test_a_number_that_is_none_is_null(tmp_path: Path, run: Run) -> None:
    np.save(tmp_path / "L.npy", np.eye(3))
    np.save(tmp_path / "Z.npy", np.zeros((3, 3)))  # flat: no range to compare with
    ended = run("evaluate", "--logits", tmp_path / "L.npy", "--zero-shot", tmp_path / "Z.npy", "--json")
    assert json.loads(ended.out)["metrics"] == {"range-inflation": None}


def test_people_see_direction_and_worth_in_words(files: tuple[str, ...], run: Run) -> None:
    ended = run("evaluate", *files, "--after", "sals")
    lines = {line.split()[0]: line.split() for line in ended.out.splitlines() if line.strip()}
    assert lines["metric"] == ["metric", "before", "after", "change"]
    assert lines["357"] == ["357", "rows,", "6", "classes"]
    assert lines["nll"][-2:] == ["↓", "better"]
    assert lines["accuracy"][-1] == "="
    assert lines["range-inflation"][-1] == "↓"  # neither end is better
    assert "\x1b[" not in ended.out
    told = ended.out.strip().splitlines()[-1]
    assert told.startswith("Logits spanned 2.")
    assert told.endswith("held to 1.00 x by sals.")


@pytest.mark.parametrize(
    ("factor", "said"), [(1.6, "1.60 x their zero-shot range: over-confidence"), (0.5, "less conf"), (1.0, "no more")]
)
def test_the_last_sentence_reads_the_range(tmp_path: Path, arrays: Arrays, run: Run, factor: float, said: str) -> None:
    np.save(tmp_path / "L.npy", factor * arrays.zero_shot)
    np.save(tmp_path / "Z.npy", arrays.zero_shot)
    ended = run("evaluate", "--logits", tmp_path / "L.npy", "--zero-shot", tmp_path / "Z.npy")
    assert said in ended.out.strip().splitlines()[-1]
    assert ("--after sals" in ended.out) == (factor > 1)


def test_worse_is_called_worse(tmp_path: Path, files: tuple[str, ...], run: Run) -> None:
    ended = run("evaluate", *files, "--after", "sals:span=40", "--metrics", "nll,auroc,accuracy")
    assert [line.split()[-1] for line in ended.out.splitlines() if line.strip().startswith(("nll", "accuracy"))] == [
        "worse",
        "=",
    ]


def test_the_diagram_is_written_and_told_on_stderr(tmp_path: Path, files: tuple[str, ...], run: Run) -> None:
    path = tmp_path / "new" / "out.png"
    ended = run("evaluate", *files, "--after", "sals", "--metrics", "nll", "--diagram", path, "--json")
    assert ended.code == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    assert list(json.loads(ended.out)["metrics"]) == ["nll"]  # the bins of the diagram are not a metric asked for
    assert str(path) in ended.err


def test_the_diagram_shows_the_bins_asked_for(tmp_path: Path, files: tuple[str, ...], run: Run) -> None:
    path = tmp_path / "out.svg"
    run("evaluate", *files, "--metrics", "nll,ece:bins=7", "--diagram", path, "--json")
    assert "7 bins" in path.read_text()


@pytest.mark.parametrize("spoilt", ["logits", "fit-logits"])
def test_probabilities_for_logits_are_warned_of_once_on_stderr(
    tmp_path: Path, arrays: Arrays, run: Run, spoilt: str
) -> None:
    np.save(tmp_path / "L.npy", arrays.logits)
    np.save(tmp_path / "P.npy", torch.from_numpy(arrays.logits).softmax(dim=-1).numpy())
    np.save(tmp_path / "Y.npy", arrays.labels)
    given = {"logits": "L.npy", "fit-logits": "L.npy", "labels": "Y.npy", "fit-labels": "Y.npy", spoilt: "P.npy"}
    ended = run(
        "evaluate", *(f"--{name}={tmp_path / file}" for name, file in given.items()), "--after=vector", "--json"
    )
    assert ended.code == 0
    assert ended.err.startswith("warning: ")
    assert ended.err.count("\n") == 1
    assert "probabilities" in ended.err
    assert "metrics" in json.loads(ended.out)


@pytest.mark.parametrize(
    ("terminal", "patience", "shown"), [(True, 0.01, True), (True, 2.0, False), (False, 0.01, False)]
)
def test_a_bar_on_a_terminal_for_what_takes_long(
    tmp_path: Path, arrays: Arrays, monkeypatch: pytest.MonkeyPatch, terminal: bool, patience: float, shown: bool
) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(stderr, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(score_sets, "PATIENCE", patience)
    scores = ScoreSet.open(*write(tmp_path, "npy", arrays))
    for _ in scores.with_progress(100):
        time.sleep(0.15)
    assert ("rows/s" in stderr.getvalue()) == shown


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_a_real_process_streams_without_holding_the_rows(tmp_path: Path) -> None:
    block = np.random.default_rng(0).normal(size=(1000, 20)).astype(np.float32)
    code = "import sys; from calispan.cli import main\ntry: main()\n"
    code += "finally: print(open('/proc/self/status').read(), file=sys.stderr)"

    def peak(rows: int) -> float:
        np.save(tmp_path / "L.npy", np.tile(block, (rows // 1000, 1)))
        words = ["evaluate", "--logits", tmp_path / "L.npy", "--metrics", "mean-confidence", "--json"]
        done = subprocess.run(
            [sys.executable, "-c", code, *words, "--chunk-rows", "1000"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert json.loads(done.stdout)["rows"] == rows
        return int(done.stderr.split("VmHWM:")[1].split()[0]) / 1024  # MiB

    assert peak(600_000) - peak(1000) < 15  # the logits are 46 MiB
