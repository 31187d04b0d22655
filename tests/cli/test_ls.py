"""`calispan ls`: everything that is registered, once, for people and for programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from calispan.cli.ls import KINDS, plain
from calispan.core import registry

Run = Callable[..., Any]


def listed(run: Run, *kind: str) -> list[dict[str, Any]]:
    ended = run("ls", *kind, "--json")
    assert (ended.code, ended.err) == (0, "")
    items: list[dict[str, Any]] = json.loads(ended.out)
    return items


def test_json_lists_every_registered_name_once(run: Run) -> None:
    items = listed(run)
    assert {(item["kind"], item["name"]) for item in items} == {
        ({"train calibration": "calibration", "calibrator": "calibration"}.get(source.kind, source.kind), name)
        for source in registry.REGISTRIES
        for name in source.names()
    }
    assert len(items) == sum(len(source.names()) for source in registry.REGISTRIES)
    for item in items:
        assert item["summary"].strip(), item["name"]
        assert isinstance(item["parameters"], dict)


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_lists_itself_alone(run: Run, kind: str) -> None:
    assert listed(run, kind) == [item for item in listed(run) if item["kind"] == kind.removesuffix("s")]


def test_what_is_told_of_known_plug_ins(run: Run) -> None:
    known = {item["name"]: item for item in listed(run)}
    assert known["sals"]["when"] == "after"
    assert known["sals"]["needs"] == []
    assert known["sals"]["parameters"] == {"span": 1.0}
    assert known["sals"]["paper"] == "Murugesan et al. 2024"
    assert known["temperature"]["needs"] == ["labels"]
    assert known["penalty"]["when"] == "during"
    assert known["penalty"]["parameters"]["weight"] == 10.0
    assert known["ece-10"]["parameters"] == {"bins": 10}
    assert known["ece-10"]["variant_of"] == "ece"
    assert known["ece"]["variant_of"] is None
    assert known["flsd-53"]["variant_of"] == "focal"
    assert known["nll"]["lower_is_better"] is True
    assert known["nll"]["needs"] == ["labels"]
    assert known["range-inflation"]["needs"] == ["zero-shot"]
    assert known["range-inflation"]["lower_is_better"] is None


def test_people_see_name_idea_paper_and_parameters(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    ended = run("ls", "calibrations")
    assert ended.code == 0
    assert "calibrations during training (" in ended.out
    assert "calibrations after training (" in ended.out
    row = ended.out[ended.out.index(" sals ") :]
    assert "(Murugesan et al. 2024)" in row.splitlines()[0]
    assert "span=1.0" in row.splitlines()[1]
    assert "ece with bins=10" in run("ls", "metrics").out


def test_a_kind_of_which_there_is_none_is_empty(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "backbones", registry.Registry("backbone", "no_such_folder"))
    assert listed(run, "backbones") == []
    ended = run("ls", "backbones")
    assert ended.code == 0
    assert "backbones: none yet" in ended.out
    assert "entry point of the group calispan.backbones" in ended.out


def test_a_folder_with_a_broken_import_is_not_taken_for_a_missing_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import calispan

    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "__init__.py").write_text("import a_module_that_is_not_there")
    monkeypatch.setattr(calispan, "__path__", [*calispan.__path__, str(tmp_path)])
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_not_there"):
        registry.load_folder("broken")
    registry.load_folder("missing")


def test_parameters_become_plain_values() -> None:
    assert plain({"a": (1, 2.5, None), "b": float("inf"), 3: Path("x")}) == {"a": [1, 2.5, None], "b": "inf", "3": "x"}


@pytest.mark.parametrize("words", [["ls", "--json"], ["ls", "backbones"]])  # more than a buffer holds, and less
def test_a_reader_that_has_left_is_no_error(words: list[str]) -> None:
    there, here = os.pipe()
    os.close(there)
    program = [sys.executable, "-c", "from calispan.cli import main; main()", *words]
    buffered = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    done = subprocess.run(program, stdout=here, stderr=subprocess.PIPE, env=buffered)
    os.close(here)
    assert (done.returncode, done.stderr) == (141, b"")


def test_help_and_version(run: Run) -> None:
    assert "evaluate" in run("--help").out
    assert run().out == run("--help").out
    assert run("--version").out.startswith("calispan 0.")
    assert "--zero-shot" in run("evaluate", "-h").out


def test_the_commands_import_nothing_heavy_before_they_run() -> None:
    code = "import sys, calispan; before = set(sys.modules); import calispan.cli._app; "
    code += "print(*sorted({name.split('.')[0] for name in set(sys.modules) - before}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "matplotlib", "pyarrow", "numpy", "scipy", "safetensors", "tqdm"} & set(loaded)
