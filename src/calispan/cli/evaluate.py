"""`calispan evaluate`: metrics of logits that lie in files, raw and after calibrations."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calispan.core.errors import NeedsError

if TYPE_CHECKING:
    from calispan.cli.measuring import Measured

_FORMATS = "npy, npz (FILE:ARRAY), safetensors (FILE:TENSOR), parquet or csv (FILE:COLUMN)"


def _file(about: str) -> Any:
    return typer.Option(metavar="FILE", help=about)


def evaluate(
    logits: Annotated[str, typer.Option(metavar="FILE", help=f"Logits, rows x classes: {_FORMATS}.")],
    zero_shot: Annotated[str | None, _file("Zero-shot logits of the same rows.")] = None,
    labels: Annotated[str | None, _file("Class index of each row, counted from 0.")] = None,
    after: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Calibrate, as with sals or sals:span=0.5; repeat to apply several in turn."),
    ] = None,
    metrics: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Metrics in place of the usual ones: repeat, or a,b.")
    ] = None,
    fit_logits: Annotated[str | None, _file("Held-out logits, for calibrations that fit.")] = None,
    fit_zero_shot: Annotated[str | None, _file("Zero-shot logits of the held-out rows.")] = None,
    fit_labels: Annotated[str | None, _file("Labels of the held-out rows.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
    diagram: Annotated[str | None, _file("Write a reliability diagram: png, svg or pdf.")] = None,
    chunk_rows: Annotated[int | None, typer.Option(min=1, help="Rows in memory at a time; by default 16 MiB.")] = None,
) -> None:
    """Measure logits that lie in files, and what calibrations make of them."""
    from calispan.cli import measuring
    from calispan.cli.score_sets import ScoreSet

    specs = split_specs(after or [])
    scores = ScoreSet.open(logits, zero_shot, labels)
    names = list(dict.fromkeys(split_specs(metrics or []))) or measuring.usual_metrics(scores)
    measuring.check_metrics(names, scores)
    if diagram is not None:
        _check_diagram(diagram, labels)
    if fit_logits is None and (fit_labels is not None or fit_zero_shot is not None):
        raise NeedsError("--fit-labels and --fit-zero-shot describe held-out rows. Pass their --fit-logits FILE too.")
    held_out = None if fit_logits is None else ScoreSet.open(fit_logits, fit_zero_shot, fit_labels)
    maps = measuring.fitted(specs, scores, held_out)
    drawn = _with_bins(names) if diagram is not None else names
    found = measuring.measure(scores, drawn, specs, maps, chunk_rows=chunk_rows)
    if diagram is not None:
        from calispan.report.diagrams import reliability_diagram, save_figure

        written = save_figure(reliability_diagram(found.panels), diagram)
        print(f"reliability diagram: {written}", file=sys.stderr)
    if as_json:
        print(json.dumps(_as_json(found, names), indent=2, allow_nan=False))
    else:
        _show(found, names)


def split_specs(texts: Sequence[str]) -> list[str]:
    """`["ece-15,coverage-at:threshold=0.8", "nll"]`: names apart; key=value pairs stay with the name they follow."""
    pieces = [piece.strip() for text in texts for piece in re.split(r",(?![^,:]*=)", text)]
    return [piece for piece in pieces if piece]


def _check_diagram(path: str, labels: str | None) -> None:
    from calispan.report.diagrams import checked_path

    checked_path(path)
    if labels is None:
        raise NeedsError("A reliability diagram compares confidence with labels. Pass --labels FILE too.")


def _with_bins(names: Sequence[str]) -> list[str]:
    """The metrics, and ece-10 where none of them keeps the bins that a diagram is drawn from."""
    from calispan.cli.measuring import reliability
    from calispan.core.evaluation import Evaluation

    return [*names] if reliability(Evaluation(names)) else [*names, "ece-10"]


def _as_json(found: Measured, names: Sequence[str]) -> dict[str, Any]:
    def six_digits(values: Mapping[str, float]) -> dict[str, float | None]:
        return {name: round(values[name], 6) if math.isfinite(values[name]) else None for name in names}

    before = {"before": six_digits(found.before)} if found.calibrations else {}
    head = {"rows": found.rows, "classes": found.classes, "after": list(found.calibrations)}
    return {**head, **before, "metrics": six_digits(found.after)}


def _show(found: Measured, names: Sequence[str]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from calispan.cli._console import Page
    from calispan.core.registry import metrics

    console = Page()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("metric", no_wrap=True)
    for heading in ("before", "after") if found.calibrations else ("value",):
        table.add_column(heading, justify="right", no_wrap=True)
    if found.calibrations:
        table.add_column("change", no_wrap=True)
    for name in names:
        before, after = found.before[name], found.after[name]
        cells = [f"{before:.4f}", f"{after:.4f}", _change(before, after, metrics.build(name).lower_is_better)]
        table.add_row(Text(name), *map(Text, cells if found.calibrations else cells[:1]))
    console.print(f"{found.rows} rows, {found.classes} classes")
    console.print(table)
    if sentence := range_sentence(found):
        console.print(sentence, markup=False, soft_wrap=True)


def _change(before: float, after: float, lower_is_better: bool | None) -> str:
    """An arrow for the direction and a word for its worth, so that neither hangs on colour."""
    moved = after - before
    if not abs(moved) >= 5e-5:  # not in the digits shown; NaN, too, is no change
        return "="
    arrow = "↓" if moved < 0 else "↑"
    if lower_is_better is None:
        return arrow
    return f"{arrow} {'better' if (moved < 0) == lower_is_better else 'worse'}"


def range_sentence(found: Measured) -> str:
    """What the range inflation, where it was measured, says about confidence."""
    name = "range-inflation"
    if name not in found.before:
        return ""
    raw, now = found.before[name], found.after[name]
    if not found.calibrations:
        if raw > 1.05:
            return (
                f"Logits span {raw:.2f} x their zero-shot range: over-confidence is to be expected; "
                "--after sals holds them to it."
            )
        if raw < 0.95:
            return f"Logits span {raw:.2f} x their zero-shot range: expect less confidence than zero-shot has."
        return f"Logits span {raw:.2f} x their zero-shot range: no more confidence than zero-shot has."
    verb = "held to" if abs(now - 1) <= 0.05 else "now at"
    by = ", ".join(found.calibrations)
    return f"Logits spanned {raw:.2f} x their zero-shot range, and are {verb} {now:.2f} x by {by}."
