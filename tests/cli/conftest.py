"""A run of the program in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from typer.testing import CliRunner

from calispan.cli._app import app
from cli_scores import Arrays, made


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


@pytest.fixture
def run() -> Callable[..., Ended]:
    def call(*words: Any) -> Ended:
        result = CliRunner().invoke(app, [str(word) for word in words], prog_name="calispan")
        return Ended(result.exit_code, result.stdout, result.stderr)

    return call


@pytest.fixture
def arrays() -> Arrays:
    return made()
