"""Every command of docs/command_line.md runs, and prints what the page says. `...` stands for anything."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


def commands() -> list[tuple[str, str]]:
    page = (DOCS / "command_line.md").read_text()
    blocks = "\n".join(re.findall(r"```console\n(.*?)```", page, flags=re.DOTALL))
    parts = re.split(r"^\$ calispan (.*)\n", blocks, flags=re.MULTILINE)
    return list(zip(parts[1::2], parts[2::2], strict=True))


def words_of(text: str) -> str:
    """Without layout: a longer name elsewhere in a table moves columns and line breaks."""
    return " ".join(text.split())


@pytest.mark.parametrize(("words", "printed"), commands(), ids=[words.replace(" ", "_") for words, _ in commands()])
def test_the_page_shows_real_output(
    words: str, printed: str, run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    runpy.run_path(str(DOCS / "examples" / "save_scores.py"))
    ended = run(*words.split())
    pattern = re.escape(words_of(printed)).replace(r"\.\.\.", ".*")
    assert re.fullmatch(pattern, words_of(ended.out + ended.err), flags=re.DOTALL), ended.out + ended.err


def test_the_page_is_read() -> None:
    assert len(commands()) == 7
