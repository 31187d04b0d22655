"""What the benchmark scripts share: interleaved timing with medians, a result as a record, a table, JSON, arguments."""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch


@dataclass(frozen=True)
class Result:
    """One comparison. `ratio` is what the goal speaks of: our cost over theirs for `<=`, theirs over ours for `>=`."""

    name: str
    opponent: str
    ratio: float
    spread: float  # half the distance between the quartiles of the repeats' ratios
    goal: str
    repeats: int
    device: str
    ms: float | None = None  # our median, on a GPU
    card: str | None = None

    @property
    def met(self) -> bool:
        limit = float(self.goal[2:])
        return self.ratio <= limit if self.goal.startswith("<=") else self.ratio >= limit

    def record(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value is not None}


class Bench(Protocol):
    def __call__(self, device: str, /, *, quick: bool) -> Sequence[Result]: ...


def measure(ours: Callable[[], object], opponent: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Our time over theirs: the ratio of medians, and its spread."""
    mine, theirs = interleaved(ours, opponent, repeats)
    return statistics.median(mine) / statistics.median(theirs), spread(mine, theirs)


def interleaved(
    ours: Callable[[], object], opponent: Callable[[], object], repeats: int
) -> tuple[list[float], list[float]]:
    """Seconds of each repeat, one of ours and one of theirs in turn, after one of each to warm up."""
    mine, theirs = [], []
    for repeat in range(repeats + 1):
        one, other = timed_once(ours), timed_once(opponent)
        if repeat:
            mine.append(one)
            theirs.append(other)
    return mine, theirs


def spread(mine: Sequence[float], theirs: Sequence[float]) -> float:
    """Half the distance between the quartiles of the ratios of neighbouring repeats."""
    ratios = [one / other for one, other in zip(mine, theirs, strict=True)]
    if len(ratios) < 2:
        return 0.0
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return (high - low) / 2


def timed_once(work: Callable[[], object]) -> float:
    """Seconds of one run, without the garbage of the one before, to the end of what a GPU was given."""
    gc.collect()
    _settle()
    time.sleep(0.02)  # OpenMP's idle threads spin for a few milliseconds after the work before
    started = time.perf_counter()
    work()
    _settle()
    return time.perf_counter() - started


def against(
    name: str,
    opponent: str,
    ours: Callable[[], object],
    theirs: Callable[[], object],
    *,
    goal: str,
    repeats: int,
    device: str,
    per: int = 1,
    opponent_per: int | None = None,
) -> Result:
    """Time ours against theirs. Where a run is so many steps (`per`, `opponent_per`), the steps are compared."""
    mine, yours = interleaved(ours, theirs, repeats)
    mine = [seconds / per for seconds in mine]
    yours = [seconds / (per if opponent_per is None else opponent_per) for seconds in yours]
    ms = 1000 * statistics.median(mine)
    print(f"{name}: {ms:.3f} ms; {opponent}: {1000 * statistics.median(yours):.3f} ms", flush=True)
    if goal.startswith(">="):
        mine, yours = yours, mine
    ratio = statistics.median(mine) / statistics.median(yours)
    return result(name, opponent, ratio, spread(mine, yours), goal=goal, repeats=repeats, device=device, ms=ms)


def result(
    name: str,
    opponent: str,
    ratio: float,
    spread: float,
    *,
    goal: str,
    repeats: int,
    device: str,
    ms: float | None = None,
) -> Result:
    """A result; on a GPU with its milliseconds and the card's name."""
    if not device.startswith("cuda"):
        return Result(name, opponent, ratio, spread, goal, repeats, device)
    return Result(name, opponent, ratio, spread, goal, repeats, device, ms, torch.cuda.get_device_name(device))


def table(results: Sequence[Result]) -> str:
    """Results in columns, with a word on every goal."""
    rows = [("what", "against", "ratio", "goal", "", "repeats", "device")]
    for one in results:
        word = "met" if one.met else "MISSED"
        ratio = f"{one.ratio:.3g} +-{one.spread:.2g}"
        rows.append((one.name, one.opponent, ratio, one.goal, word, str(one.repeats), one.card or one.device))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def main(bench: Bench) -> int:
    """Run a bench under the arguments every script takes, print a table, write JSON where asked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="smaller sizes and fewer repeats")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results as a list of objects")
    given = parser.parse_args()
    if given.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("torch sees no CUDA card here")
    results = bench(given.device, quick=given.quick)
    print(table(results))
    if given.json is not None:
        given.json.write_text(json.dumps([one.record() for one in results], indent=2) + "\n")
    return 0


def _settle() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
