"""`calispan evaluate`: metrics of logits that lie in files, raw and after calibrations."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from calispan.core.errors import InputError, NeedsError

if TYPE_CHECKING:
    from calispan.cli.scoring import ScoreFiles
    from calispan.core.contracts import ScoreMap

_FILES = "npy, npz (FILE:ARRAY), safetensors (FILE:TENSOR), parquet or csv (FILE:COLUMN)."


def evaluate(
    logits: str = typer.Option(..., metavar="FILE", help=f"Logits [rows, classes]: {_FILES}"),
    zero_shot: str | None = typer.Option(None, metavar="FILE", help="Zero-shot logits of the same rows."),
    labels: str | None = typer.Option(None, metavar="FILE", help="Class index of each row, from 0."),
    after: list[str] = typer.Option(
        [], metavar="NAME", help="Calibration to apply, such as sals or sals:span=0.5; repeat to chain."
    ),
    metrics: list[str] = typer.Option([], metavar="NAME", help="Metrics instead of the default ones; repeat or a,b."),
    fit_logits: str | None = typer.Option(None, metavar="FILE", help="Held-out logits for calibrations that fit."),
    fit_zero_shot: str | None = typer.Option(None, metavar="FILE", help="Zero-shot logits of the held-out rows."),
    fit_labels: str | None = typer.Option(None, metavar="FILE", help="Labels of the held-out rows."),
    as_json: bool = typer.Option(False, "--json", help="One JSON object on stdout."),
    diagram: str | None = typer.Option(None, metavar="FILE", help="Write a reliability diagram: png, svg or pdf."),
    chunk_rows: int | None = typer.Option(None, min=1, help="Rows held in memory at a time."),
) -> None:
    """Measure logits from files, and what calibrations after training make of them."""
    from calispan.cli.scoring import ScoreFiles

    files = ScoreFiles.open(logits, zero_shot, labels)
    wanted = [name for text in metrics for name in split_specs(text)] or _defaults(files)
    _check_wanted(files, wanted, diagram)
    specs = [spec for text in after for spec in split_specs(text)]
    maps = _fitted(specs, files, fit_logits, fit_zero_shot, fit_labels)
    result = _measure(files, wanted, maps, chunk_rows, diagram, specs)
    if as_json:
        print(json.dumps(_plain(result, specs), indent=2, allow_nan=False))
    else:
        _show(result, specs)


def split_specs(text: str) -> list[str]:
    """`"ece-15,coverage:threshold=0.9,nll"`: names apart, while the key=value pairs of a name stay with it."""
    return [piece.strip() for piece in re.split(r",(?![^,:]*=)", text) if piece.strip()]


def _defaults(files: ScoreFiles) -> list[str]:
    """The usual metrics that these files can answer."""
    from calispan.core.evaluation import DEFAULT_METRICS

    names = [name for name in DEFAULT_METRICS if not _missing(name, files)]
    if not names:
        raise NeedsError("Logits alone answer none of the usual metrics. Pass --labels FILE, --zero-shot FILE or both.")
    return names


def _missing(metric: str, files: ScoreFiles) -> list[str]:
    """The options a metric would need beside those given."""
    from calispan.core.registry import metrics

    recipe = metrics.build(metric)
    wanted = {"--labels FILE": recipe.needs_labels and files.labels is None}
    wanted["--zero-shot FILE"] = recipe.needs_zero_shot and files.zero_shot is None
    return [option for option, missing in wanted.items() if missing]


def _check_wanted(files: ScoreFiles, metrics: Sequence[str], diagram: str | None) -> None:
    """Refuse before the first row is read what would fail after the last."""
    for name in metrics:
        if missing := _missing(name, files):
            raise NeedsError(f"Metric '{name}' cannot be computed from these files. Pass {' and '.join(missing)} too.")
    if diagram is not None:
        from calispan.report.diagrams import checked_path

        checked_path(diagram)
        if files.labels is None:
            raise NeedsError("A reliability diagram compares confidence with labels. Pass --labels FILE too.")


def _fitted(specs: Sequence[str], files: ScoreFiles, *held_out: str | None) -> tuple[ScoreMap, ...]:
    """The score maps of --after, fitted in turn on the held-out files where they ask for labels."""
    from calispan.cli.scoring import ScoreFiles, about
    from calispan.core.contracts import Evidence, Given
    from calispan.core.evaluation import Evaluation
    from calispan.core.registry import calibrators
    from calispan.pipeline import fit_maps

    wanted = [calibrators.build(spec) for spec in specs]
    for spec, calibrator in zip(specs, wanted, strict=True):
        beyond = calibrator.needs & ~Evidence.LABELS
        if beyond:
            raise NeedsError(
                f"'{spec}' learns from {str(beyond.name).lower().replace('|', ' and ')} evidence, which score files do "
                "not hold. Use it from Python with calispan.fit, or choose another calibration."
            )
    logits, zero_shot, labels = held_out
    if not any(Evidence.LABELS in calibrator.needs for calibrator in wanted):
        return fit_maps(wanted, Given())
    if logits is None or labels is None:
        named = ", ".join(spec for spec, calibrator in zip(specs, wanted, strict=True) if calibrator.needs)
        raise NeedsError(
            f"'{named}' is fitted on labelled rows. Pass --fit-logits FILE and --fit-labels FILE of a held-out set, "
            "or choose a calibration that needs no labels, such as sals."
        )
    held = ScoreFiles.open(logits, zero_shot, labels)
    if held.classes != files.classes:
        raise InputError(
            f"{logits} has {held.classes} classes but {files.logits.source} has {files.classes}; "
            "the held-out set must have the same classes in the same order."
        )
    scores, truth = held.whole()
    assert truth is not None  # its file was given
    with about(held):
        Evaluation(["accuracy"]).update(scores, truth)  # for its checks of the values
        return fit_maps(wanted, Given(held_out=(scores, truth)))
