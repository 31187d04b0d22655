"""The path of the data: Problem -> Head -> Scores -> calibrated Scores."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from calispan.core import store
from calispan.core.contracts import Calibrator, Evidence, Given, Head, Method, Needs, ScoreMap, TrainCalibration
from calispan.core.errors import InputError, NeedsError
from calispan.core.heads import CosineHead
from calispan.core.objective import Objective
from calispan.core.registry import calibrators, methods, train_calibrations
from calispan.core.sampling import folds
from calispan.core.store import storable
from calispan.core.training import pick_device
from calispan.core.types import Arrayish, Embeddings, Problem, Scores

Labelled = tuple[Scores, Arrayish]


@storable("model")
@dataclass(frozen=True, eq=False)
class Model:
    """A fitted classifier: head, zero-shot head and score maps. Queries in, calibrated Scores out."""

    classes: tuple[str, ...]
    head: Head
    zero_shot: CosineHead
    maps: tuple[ScoreMap, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)  # how it was made

    def __call__(self, queries: Embeddings) -> Scores:
        """Logits after every calibration, and zero-shot logits of the same rows."""
        return apply(self.maps, self.raw(queries))

    @torch.no_grad()
    def raw(self, queries: Embeddings) -> Scores:
        """Scores before any calibration after training."""
        there, here = self.zero_shot.weights.device, queries.views.device
        width = int(self.zero_shot.weights.shape[1])
        if queries.width != width:
            raise InputError(
                f"Queries are {queries.width} wide but the model was fitted on width {width}. "
                "Embed them with the same backbone."
            )
        queries = queries.to(there)
        seen = Scores(self.head(queries).to(here), self.zero_shot(queries).to(here))  # n v c
        views = seen if queries.views.shape[1] > 1 else None
        return Scores(seen.logits[:, 0], seen.zero_shot[:, 0], views)

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the model into a folder; `calispan.load` reads it back bit for bit."""
        return store.save(self, folder, about={"classes": len(self.classes), **self.about})


def apply(maps: Sequence[ScoreMap], scores: Scores) -> Scores:
    """The maps in their order."""
    for score_map in maps:
        scores = score_map(scores)
    return scores


def fit(
    problem: Problem,
    method: str | Method,
    *,
    during: str | TrainCalibration | Sequence[str | TrainCalibration] = (),
    after: str | Calibrator | Sequence[str | Calibrator] = (),
    held_out: tuple[Embeddings, Arrayish] | Embeddings | None = None,
    seed: int = 0,
    device: str | torch.device = "auto",
    cross_fit: int = 4,
) -> Model:
    """Train a method on a problem, calibrated during and after training.

    `held_out` is asked for only by calibrators that need labels; those that learn from the support's own shots get
    out-of-fold scores from `cross_fit` further trainings.
    """
    recipe = methods.build(method)
    objective = Objective(tuple(train_calibrations.build(spec) for spec in _listed(during)))
    wanted = [calibrators.build(spec) for spec in _listed(after)]
    _check_needs(recipe, problem)
    evidence = Evidence.NOTHING
    for calibrator in wanted:
        evidence |= calibrator.needs
    problem = problem.to(pick_device(device))
    model = Model(
        problem.classes,
        recipe.fit(problem, objective, seed=seed),
        CosineHead(problem.text, problem.logit_scale, problem.logit_bias),
        about={
            "method": methods.name_of(recipe),
            "during": [train_calibrations.name_of(c) for c in objective.calibrations],
            "after": [calibrators.name_of(c) for c in wanted],
            "seed": seed,
            "shots": len(problem.support),
        },
    )
    given = Given(
        held_out=_held_out_scores(model, held_out) if Evidence.LABELS in evidence and held_out is not None else None,
        support=out_of_fold(problem, recipe, objective, seed=seed, count=cross_fit)
        if Evidence.SUPPORT in evidence
        else None,
        text=problem.text if Evidence.TEXT in evidence else None,
    )
    return replace(model, maps=fit_maps(wanted, given))


def out_of_fold(
    problem: Problem, method: Method, objective: Objective, *, seed: int, count: int = 4
) -> tuple[Scores, Tensor]:
    """Scores of the support's rows by heads that never saw them, with their labels."""
    if count < 2 or len(problem.support) < 2:
        raise InputError("Out-of-fold scores need two folds and two labelled rows at least.")
    fold = folds(problem.labels, count, seed=seed).to(problem.labels.device)
    zero_shot = CosineHead(problem.text, problem.logit_scale, problem.logit_bias)
    scored: list[Scores] = []
    labels: list[Tensor] = []
    for number in torch.unique(fold).tolist():
        rest = replace(problem, support=problem.support.rows(fold != number))
        unseen = problem.support.rows(fold == number)
        head = method.fit(rest, objective, seed=seed)
        scored.append(Model(problem.classes, head, zero_shot).raw(unseen))
        labels.append(problem.labels[fold == number])
    logits = torch.cat([scores.logits for scores in scored])
    return Scores(logits, torch.cat([scores.zero_shot for scores in scored])), torch.cat(labels)


def calibrate(
    scores: Scores,
    after: str | Calibrator | Sequence[str | Calibrator],
    *,
    held_out: Labelled | None = None,
    text: Arrayish | None = None,
) -> Scores:
    """Scores -> Scores under one calibrator or several in turn. SaLS asks for nothing; others say what they miss."""
    wanted = [calibrators.build(spec) for spec in _listed(after)]
    check_finite(scores)
    given = Given(
        held_out=None if held_out is None else _labelled(*held_out),
        text=None if text is None else torch.as_tensor(text),
    )
    return apply(fit_maps(wanted, given), scores)


def fit_maps(wanted: Sequence[Calibrator], given: Given) -> tuple[ScoreMap, ...]:
    """Fit calibrators in turn: each sees the evidence as the maps before it left it, and only what it asked for."""
    maps: list[ScoreMap] = []
    for calibrator in wanted:
        seen = Given(
            held_out=given.held_out if Evidence.LABELS in calibrator.needs else None,
            support=given.support if Evidence.SUPPORT in calibrator.needs else None,
            text=given.text if Evidence.TEXT in calibrator.needs else None,
        )
        fitted = calibrator.fit(seen)
        maps.append(fitted)
        given = replace(
            given,
            held_out=None if given.held_out is None else (fitted(given.held_out[0]), given.held_out[1]),
            support=None if given.support is None else (fitted(given.support[0]), given.support[1]),
        )
    return tuple(maps)


def load(folder: str | os.PathLike[str]) -> Any:
    """Read a saved model or score map."""
    return store.load(folder)


def check_finite(scores: Scores) -> None:
    """Refuse NaN and infinite rows by their number."""
    for what, values in (
        ("Logits", scores.logits),
        ("Zero-shot logits", scores.zero_shot if scores.has_zero_shot else None),
    ):
        if values is None:
            continue
        finite = torch.isfinite(values).flatten(0, -2).all(dim=-1)
        if not bool(finite.all()):
            row = int((~finite).nonzero()[0, 0])
            raise InputError(f"{what} of row {row} hold NaN or infinity. Drop the row or score it again.")


def _labelled(scores: Scores, labels: Arrayish) -> tuple[Scores, Tensor]:
    check_finite(scores)
    given = torch.as_tensor(labels)
    count = scores.logits.shape[-1]
    if given.is_floating_point() or given.shape != (len(scores),):
        raise InputError(
            f"The held-out set has {len(scores)} rows, but its labels came as {given.dtype} of shape "
            f"{tuple(given.shape)}; wanted one class index a row."
        )
    if len(given) and not 0 <= int(given.min()) <= int(given.max()) < count:
        raise InputError(f"Held-out labels leave the range 0..{count - 1} of the {count} classes.")
    return scores, given.long().to(scores.logits.device)


def _held_out_scores(model: Model, held_out: tuple[Embeddings, Arrayish] | Embeddings) -> tuple[Scores, Tensor]:
    rows, labels = held_out if isinstance(held_out, tuple) else (held_out, held_out.labels)
    if labels is None:
        raise InputError("The held-out embeddings have no labels. Pass Embeddings(features, labels).")
    return _labelled(model.raw(rows), labels)


def _check_needs(method: Method, problem: Problem) -> None:
    given = {
        Needs.TEXT_TOWER: problem.text_tower is not None,
        Needs.VIEWS: problem.support.views.shape[1] > 1,
        Needs.PIXELS: problem.support.images is not None,
    }
    missing = [
        str(need.name).lower().replace("_", " ") for need, here in given.items() if need in method.needs and not here
    ]
    if missing:
        raise NeedsError(
            f"{methods.name_of(method)} needs {' and '.join(missing)}, which this problem does not hold. "
            "Build the problem from a backbone, or choose a method that works on embeddings."
        )


def _listed(specs: Any) -> list[Any]:
    """One spec or several."""
    return [specs] if isinstance(specs, str) or not isinstance(specs, Sequence) else list(specs)
