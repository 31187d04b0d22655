"""The laws of methods. `check_method("task-res")` runs them all; a broken one is an AssertionError that names it."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from typing import Any

import torch

from calispan.core import store
from calispan.core.contracts import Method, Needs
from calispan.core.objective import Objective
from calispan.core.registry import methods
from calispan.core.training import Training
from calispan.core.types import Embeddings, Problem, Scores
from calispan.pipeline import Model, fit
from calispan.testing.world import FeatureWorld, feature_world


def small_world() -> FeatureWorld:
    """A world in float64, small enough for every law and separable enough to be learned in a few steps."""
    return feature_world(
        classes=6, width=16, shots=4, views=2, rows=48, noise=0.4, logit_scale=10.0, dtype=torch.float64
    )


def shortened(recipe: Method, epochs: int) -> Method:
    """The recipe with fewer epochs, where it trains at all."""
    return with_epochs(recipe, min(epochs, recipe.epochs)) if isinstance(recipe, Training) else recipe


def with_epochs(recipe: Any, epochs: int) -> Any:
    return replace(recipe, epochs=epochs)


def check_method(spec: str | Method, *, epochs: int = 12) -> None:
    """Every law a method must keep. `spec` is a name or a recipe."""
    recipe = shortened(methods.build(spec), epochs)
    if recipe.needs & ~Needs.VIEWS:
        raise AssertionError(f"{spec}: these laws make embeddings only; give a method with towers a world with towers.")
    world = small_world()
    # Raw lengths too, so that methods which read them can be checked.
    problem = replace(world.problem, support=stretched(world.problem.support))
    queries = stretched(world.domains["photo"])
    model = fit(problem, recipe, seed=3)
    scores = model(queries)
    _check_scores(model, scores, queries)
    _check_repeatable(recipe, problem, queries, scores)
    _check_inputs_untouched(recipe, problem)
    _check_class_order(recipe, problem, queries, scores)
    _check_saved(model, queries, scores)
    _check_learns(recipe, problem, queries)
    if recipe.starts_at_zero_shot:
        start: Method = with_epochs(recipe, 0) if isinstance(recipe, Training) else recipe
        untrained = fit(problem, start, seed=3)(queries)
        _same(untrained.logits, untrained.zero_shot, "zero training steps leave the zero-shot logits", 1e-12)


def stretched(rows: Embeddings) -> Embeddings:
    """The same directions with known raw lengths around one."""
    lengths = 0.7 + 0.6 * torch.linspace(0, 1, rows.views[..., 0].numel(), dtype=torch.float64).view(
        rows.views.shape[:2]
    )
    return Embeddings(rows.views * lengths[..., None], rows.labels)


def _same(left: torch.Tensor, right: torch.Tensor, law: str, tolerance: float) -> None:
    worst = float((left - right).abs().max())
    assert worst <= tolerance, f"Law broken: {law} (largest difference {worst:.3g}, allowed {tolerance:.3g})."


def _check_scores(model: Model, scores: Scores, queries: Embeddings) -> None:
    expected = (len(queries), len(model.classes))
    assert tuple(scores.logits.shape) == expected, (
        f"Law broken: scores are [rows, classes]; came {scores.logits.shape}."
    )
    assert bool(torch.isfinite(scores.logits).all()), "Law broken: scores are finite."
    assert not scores.logits.requires_grad, "Law broken: scores of a fitted model carry no gradient."
    one_by_one = torch.cat([model(queries.rows(slice(i, i + 1))).logits for i in range(len(queries))])
    _same(one_by_one, scores.logits, "a row's scores do not depend on its batch", 1e-9)
    doubled = torch.cat([queries.views, queries.views.flip(0)], dim=1)
    lengths = None if queries.lengths is None else torch.cat([queries.lengths, queries.lengths.flip(0)], dim=1)
    seen = model(Embeddings(doubled * (1 if lengths is None else lengths[..., None]))).views
    assert seen is not None, "Law broken: queries of several views give scores of every view."
    _same(seen.logits[:, 1], scores.logits.flip(0), "a view is scored as an image would be", 1e-9)


def _check_repeatable(recipe: Method, problem: Problem, queries: Embeddings, scores: Scores) -> None:
    again = fit(problem, recipe, seed=3)(queries)
    assert torch.equal(again.logits, scores.logits), "Law broken: same problem and seed, same head."


def _check_inputs_untouched(recipe: Method, problem: Problem) -> None:
    before = (problem.text.clone(), problem.support.views.clone())
    fit(problem, recipe, seed=0)
    intact = torch.equal(before[0], problem.text) and torch.equal(before[1], problem.support.views)
    assert intact, "Law broken: fitting leaves its problem as it was."
    assert not problem.text.requires_grad, "Law broken: fitting leaves its problem as it was."


def _check_class_order(recipe: Method, problem: Problem, queries: Embeddings, scores: Scores) -> None:
    order = torch.tensor([4, 0, 5, 2, 1, 3])
    turned = replace(
        problem,
        classes=tuple(problem.classes[i] for i in order.tolist()),
        text=problem.text[order],
        support=replace_labels(problem.support, torch.argsort(order)[problem.labels]),
    )
    columns = fit(turned, recipe, seed=3)(queries).logits
    tolerance = 1e-8 if getattr(recipe, "key_dtype", "same") == "same" else 1e-2  # half-precision keys round
    _same(columns, scores.logits[:, order], "permuting the classes permutes the columns", tolerance)


def replace_labels(rows: Embeddings, labels: torch.Tensor) -> Embeddings:
    """The same rows under other labels, bit for bit."""
    return rows._with(views=rows.views, labels=labels, images=rows.images, lengths=rows.lengths)


def _check_saved(model: Model, queries: Embeddings, scores: Scores) -> None:
    with tempfile.TemporaryDirectory() as folder:
        back = store.load(model.save(folder))(queries)
    assert torch.equal(back.logits, scores.logits), "Law broken: a saved model scores bit for bit as before."
    assert torch.equal(back.zero_shot, scores.zero_shot), "Law broken: a saved model scores bit for bit as before."


def _check_learns(recipe: Method, problem: Problem, queries: Embeddings) -> None:
    assert queries.labels is not None
    right = fit(problem, recipe, seed=1)(queries).logits.argmax(dim=-1) == queries.labels
    accuracy, chance = float(right.double().mean()), 1 / len(problem.classes)
    assert accuracy > 2 * chance, f"Law broken: it beats chance on separable data (accuracy {accuracy:.2f})."


def check_pair(method: str | Method, during: Any = (), after: Any = (), *, epochs: int = 4) -> None:
    """A method under a calibration trains to a finite head, and the calibration reaches its loss."""
    recipe = shortened(methods.build(method), epochs)
    world = small_world()
    support = stretched(world.problem.support)
    problem = replace(world.problem, support=support)
    shifted = stretched(world.domains["far shift"])
    held_out = stretched(world.domains["photo"])
    model = fit(problem, recipe, during=during, after=after, held_out=held_out, seed=1)
    scores = model(shifted)
    assert bool(torch.isfinite(scores.logits).all()), f"Law broken: {method} with {during}{after} gives finite scores."
    if during and getattr(recipe, "epochs", 0):
        spy = _Spy()
        recipe.fit(problem, Objective((spy,)), seed=1)
        assert spy.asked, f"Law broken: {method} trains through its objective, so every calibration reaches it."


class _Spy:
    """A train calibration that notes whether the method asked it."""

    def __init__(self) -> None:
        self.asked = 0

    def reshape(self, scores: Scores) -> Scores:
        assert scores.zero_shot.shape == scores.logits.shape
        return scores

    def penalty(self, scores: Scores, labels: torch.Tensor | None) -> float:
        self.asked += 1
        return 0.0
