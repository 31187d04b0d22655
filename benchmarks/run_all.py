"""Every speed benchmark in one table: `make bench`. Flags are passed on (`--quick`, `--device cuda`, `--json FILE`)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from _common import Result, main

HERE = Path(__file__).resolve().parent


def bench(device: str, *, quick: bool) -> Sequence[Result]:
    results: list[Result] = []
    for script in sorted(HERE.glob("*_speed.py")):
        print(f"{script.stem} ...", file=sys.stderr, flush=True)
        results += importlib.import_module(script.stem).bench(device, quick=quick)
    return results


if __name__ == "__main__":
    sys.exit(main(bench))
