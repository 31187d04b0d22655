"""The work of `calispan evaluate`: fit the calibrations, then measure every row raw and calibrated in one pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from calispan.cli.score_sets import ScoreSet
from calispan.core.contracts import Calibrator, Evidence, Given, ScoreMap
from calispan.core.errors import InputError, NeedsError, UnknownNameError
from calispan.core.evaluation import DEFAULT_METRICS, Evaluation
from calispan.core.registry import calibrators, metrics, parse_spec, train_calibrations
from calispan.core.reliability import Reliability
from calispan.pipeline import fit_maps


@dataclass(frozen=True)
class Measured:
    """What one pass over the files found."""

    rows: int
    classes: int
    calibrations: tuple[str, ...]
    before: Mapping[str, float]
    after: Mapping[str, float]  # the same as before where there are no calibrations
    panels: Mapping[str, Reliability]  # of a reliability diagram, by title


def usual_metrics(scores: ScoreSet) -> list[str]:
    """The usual metrics that these files can answer."""
    names = [name for name in DEFAULT_METRICS if not _missing(name, scores)]
    if not names:
        raise NeedsError("Logits alone answer none of the usual metrics. Pass --labels FILE, --zero-shot FILE or both.")
    return names


def check_metrics(names: Sequence[str], scores: ScoreSet) -> None:
    """Refuse before the first row what would fail after it."""
    for name in names:
        if missing := _missing(name, scores):
            raise NeedsError(f"Metric '{name}' cannot be computed from these files. Pass {' and '.join(missing)} too.")


def _missing(metric: str, scores: ScoreSet) -> list[str]:
    """The options a metric would need beside those given."""
    recipe = metrics.build(metric)
    absent = {
        "--labels FILE": recipe.needs_labels and scores.labels is None,
        "--zero-shot FILE": recipe.needs_zero_shot and scores.zero_shot is None,
    }
    return [option for option, missing in absent.items() if missing]


def fitted(specs: Sequence[str], scores: ScoreSet, held_out: ScoreSet | None) -> tuple[ScoreMap, ...]:
    """Score maps of the calibrations, fitted in turn on the held-out files where they ask for labels."""
    wanted = [_calibrator(spec) for spec in specs]
    if not any(_asks_for(calibrator, Evidence.LABELS, spec) for spec, calibrator in zip(specs, wanted, strict=True)):
        return fit_maps(wanted, Given())
    if held_out is None or held_out.labels is None:
        asking = next(spec for spec, calibrator in zip(specs, wanted, strict=True) if calibrator.needs)
        raise NeedsError(
            f"'{asking}' is fitted on labelled rows. Pass --fit-logits FILE and --fit-labels FILE of a held-out set, "
            "or choose a calibration that needs no labels, such as sals."
        )
    if held_out.classes != scores.classes:
        raise InputError(
            f"{held_out.logits.source} has {held_out.classes} classes but {scores.logits.source} has "
            f"{scores.classes}; the held-out set must score the same classes in the same order."
        )
    with held_out.named():
        rows, labels = held_out.whole()
        assert labels is not None  # its file is open
        # Metrics that read every value, and say which row is wrong.
        values = Evaluation(["accuracy", "range-inflation"] if rows.has_zero_shot else ["accuracy"])
        values.update(rows, labels)
        values.compute()
        return fit_maps(wanted, Given(held_out=(rows, labels)))


def _calibrator(spec: str) -> Calibrator:
    name, _ = parse_spec(spec)
    if name in train_calibrations.names() and name not in calibrators.names():
        raise UnknownNameError(
            f"'{name}' calibrates during training, and these logits are finished. "
            f"Name one that works after it: {', '.join(calibrators.names())}."
        )
    return calibrators.build(spec)


def _asks_for(calibrator: Calibrator, evidence: Evidence, spec: str) -> bool:
    beyond = calibrator.needs & ~evidence
    if beyond:
        names = str(beyond.name).lower().replace("|", " and ")
        raise NeedsError(
            f"'{spec}' learns from {names}, which score files do not hold. Use it from Python with calispan.fit, "
            "or choose another calibration."
        )
    return evidence in calibrator.needs


def measure(
    scores: ScoreSet, names: Sequence[str], specs: Sequence[str], maps: Sequence[ScoreMap], *, chunk_rows: int | None
) -> Measured:
    """Every chunk is measured as it is, and seen through the maps."""
    before = Evaluation(names)
    after = Evaluation(names) if maps else before
    with scores.named():
        for part, labels in scores.with_progress(chunk_rows):
            before.update(part, labels)
            if after is not before:
                after.update(part, labels, maps)
    raw = before.compute()
    return Measured(
        before.rows,
        scores.classes,
        tuple(specs),
        raw,
        raw if after is before else after.compute(),
        {
            title: reliability(evaluation)[0]
            for title, evaluation in ({"": before} if after is before else _titled(before, after, specs)).items()
            if reliability(evaluation)
        },
    )


def _titled(before: Evaluation, after: Evaluation, specs: Sequence[str]) -> dict[str, Evaluation]:
    return {"before": before, f"after {', '.join(specs)}": after}


def reliability(evaluation: Evaluation) -> list[Reliability]:
    """The states that a reliability diagram can be drawn from."""
    return [state for state in evaluation.states.values() if isinstance(state, Reliability)]
