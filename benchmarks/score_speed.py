"""Scoring 50,000 x 1,000 float32 logits: SaLS and the usual metrics, in time and in memory.

    python benchmarks/score_speed.py [--quick] [--device cpu|cuda] [--json FILE]

- *Time* of SaLS with accuracy, ece-10, ece-15, nll, brier and range-inflation, against reading the same memory once:
  `torch.sum` of the logits and of the zero-shot logits, with as many threads as ours.
- *Peak memory* of the same in a fresh process: (logits + growth) / logits, where the growth is the highest resident
  memory during evaluation less the resident memory before it, when both matrices are there already and one small
  evaluation has loaded what is loaded on demand. On a GPU, its allocator's own count.
- *torchmetrics*: its 15-bin multiclass calibration error of the softmax of the logits, against our ece-15 of the
  logits; both end in one number.
- *Streaming*: highest resident memory of a fresh process that streams ece-15 over many rows of 10 classes in chunks
  of 10,000, against one that streams 10,000 rows.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from _common import Result, against, main, result
from calispan.core.evaluation import Evaluation, evaluate
from calispan.core.types import Scores

METRICS = ("accuracy", "ece-10", "ece-15", "nll", "brier", "range-inflation")
CHUNK = 10_000


def rows_of(rows: int, classes: int, device: str) -> tuple[Scores, torch.Tensor]:
    """Logits three times as wide as the zero-shot ones; a third of the labels are the winner's."""
    torch.manual_seed(0)
    logits = torch.randn(rows, classes, device=device).mul_(3)
    labels = torch.randint(classes, (rows,), device=device)
    labels[::3] = logits[::3].argmax(dim=1)
    return Scores(logits, torch.randn(rows, classes, device=device)), labels


def time_bench(device: str, *, quick: bool) -> Sequence[Result]:
    from torchmetrics.functional.classification import multiclass_calibration_error

    rows, repeats = (10_000, 5) if quick else (50_000, 15)
    scores, labels = rows_of(rows, 1000, device)

    def read() -> None:
        scores.logits.sum()
        scores.zero_shot.sum()

    def torchmetrics() -> None:
        multiclass_calibration_error(
            scores.logits.softmax(dim=1), labels, num_classes=1000, n_bins=15, validate_args=False
        )

    ours = "SaLS and six metrics"
    return [
        against(
            ours,
            "reading both matrices",
            lambda: evaluate(scores, labels, METRICS, after="sals"),
            read,
            goal="<=4",
            repeats=repeats,
            device=device,
        ),
        against(
            "ece-15",
            "torchmetrics",
            lambda: evaluate(Scores(scores.logits), labels, "ece-15"),
            torchmetrics,
            goal=">=5",
            repeats=min(repeats, 5),
            device=device,
        ),
    ]


def memory_bench(device: str, *, quick: bool) -> Sequence[Result]:
    rows, many = (10_000, 10**6) if quick else (50_000, 10**7)
    size = rows * 1000 * 4
    growth = _fresh("growth", device, rows)
    few_bytes, many_bytes = _fresh("stream", device, CHUNK), _fresh("stream", device, many)
    print(f"growth {growth / 2**20:.1f} MiB; streaming {few_bytes / 2**20:.0f} and {many_bytes / 2**20:.0f} MiB")
    return [
        result(
            f"peak memory of SaLS and six metrics, {rows:,} rows",
            "the logits",
            (size + growth) / size,
            0.0,
            goal="<=1.3",
            repeats=1,
            device=device,
        ),
        result(
            f"peak memory of streaming {many:,} rows",
            f"streaming {CHUNK:,} rows",
            many_bytes / few_bytes,
            0.0,
            goal="<=1.05",
            repeats=1,
            device=device,
        ),
    ]


def bench(device: str, *, quick: bool) -> Sequence[Result]:
    return [*time_bench(device, quick=quick), *memory_bench(device, quick=quick)]


def _fresh(what: str, device: str, rows: int) -> int:
    """Bytes that a process of its own reports."""
    command = [sys.executable, __file__, "--fresh", what, device, str(rows)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def growth_of(device: str, rows: int) -> int:
    scores, labels = rows_of(rows, 1000, device)
    evaluate(scores.rows(slice(0, 100)), labels[:100], METRICS, after="sals")
    before = _held(device, peak=False)
    evaluate(scores, labels, METRICS, after="sals")
    return _held(device, peak=True) - before


def stream_of(device: str, rows: int) -> int:
    scores, labels = rows_of(CHUNK, 10, device)
    evaluation = Evaluation("ece-15")
    for _ in range(rows // CHUNK):
        evaluation.update(scores, labels)
    evaluation.compute()
    return _held(device, peak=True)


def _held(device: str, *, peak: bool) -> int:
    """Memory of this process, or of its GPU allocator, in bytes."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated() if peak else torch.cuda.memory_allocated()
    status = Path("/proc/self/status")
    if not status.is_file():  # elsewhere than on Linux there is the peak alone
        import resource

        peak_size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak_size if sys.platform == "darwin" else peak_size * 1024
    wanted = "VmHWM:" if peak else "VmRSS:"
    return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line.startswith(wanted))


if __name__ == "__main__":
    if "--fresh" in sys.argv:
        what, device, rows = sys.argv[-3:]
        print((growth_of if what == "growth" else stream_of)(device, int(rows)))
        sys.exit()
    sys.exit(main(bench))
