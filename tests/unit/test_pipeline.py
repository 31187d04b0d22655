from dataclasses import dataclass, replace

import pytest
import torch

from calispan.core.contracts import Evidence, Given, Needs
from calispan.core.errors import InputError, NeedsError
from calispan.core.heads import CosineHead
from calispan.core.objective import Objective
from calispan.core.registry import calibrators, methods
from calispan.core.types import Embeddings, Problem, Scores
from calispan.pipeline import calibrate, fit, fit_maps, load, out_of_fold
from calispan.testing.methods import small_world


@pytest.fixture(scope="module")
def world():
    return small_world()


def test_the_readme_path(world, tmp_path):
    model = fit(world.problem, "task-res:epochs=5", during=["zs-norm"], after=["sals"], seed=0)
    scores = model(world.domains["far shift"])
    span = scores.logits.amax(-1) - scores.logits.amin(-1)
    span0 = scores.zero_shot.amax(-1) - scores.zero_shot.amin(-1)
    torch.testing.assert_close(span, span0)
    assert torch.equal(scores.logits.argmax(-1), model.raw(world.domains["far shift"]).logits.argmax(-1))
    back = load(model.save(tmp_path / "model"))
    assert torch.equal(back(world.domains["photo"]).logits, model(world.domains["photo"]).logits)
    assert back.about["method"] == "task-res:epochs=5"
    assert back.about["after"] == ["sals"]
    assert back.classes == world.problem.classes


def test_one_name_does_for_a_list(world):
    one = fit(world.problem, "zero-shot", after="sals:span=0.5")
    scores = one(world.domains["photo"])
    assert float((scores.logits.amax(-1) - scores.logits.amin(-1)).max()) < float(
        (scores.zero_shot.amax(-1) - scores.zero_shot.amin(-1)).max()
    )


def test_zero_shot_logits_travel_with_the_rows(world):
    rows = world.domains["photo"]
    scores = fit(world.problem, "linear-probe:epochs=2")(rows)
    torch.testing.assert_close(scores.zero_shot, world.problem.zero_shot(rows.features))


@dataclass(frozen=True)
class Witness:
    """Asks for some evidence and keeps what it was given."""

    needs: Evidence
    seen: list

    keeps_argmax = True

    def fit(self, given):
        self.seen.append(given)
        return lambda scores: scores.replace(scores.logits * 2)


def test_a_calibrator_is_given_what_it_asked_for_and_nothing_else():
    held = (Scores(torch.randn(4, 3), torch.randn(4, 3)), torch.tensor([0, 1, 2, 0]))
    everything = Given(held_out=held, support=held, text=torch.ones(3, 2))
    for needs, field in ((Evidence.LABELS, "held_out"), (Evidence.SUPPORT, "support"), (Evidence.TEXT, "text")):
        seen = []
        fit_maps([Witness(needs, seen)], everything)
        assert [name for name in ("held_out", "support", "text") if getattr(seen[0], name) is not None] == [field]
    seen = []
    fit_maps([Witness(Evidence.NOTHING, seen)], everything)
    assert (seen[0].held_out, seen[0].support, seen[0].text) == (None, None, None)


def test_each_calibrator_sees_the_evidence_as_those_before_left_it():
    held = (Scores(torch.randn(4, 3), torch.randn(4, 3)), torch.tensor([0, 1, 2, 0]))
    seen = []
    fit_maps([Witness(Evidence.LABELS, seen), Witness(Evidence.LABELS, seen)], Given(held_out=held))
    torch.testing.assert_close(seen[1].held_out[0].logits, held[0].logits * 2)


@dataclass(frozen=True)
class Remembers:
    """Scores a row by how near it is to rows it was trained on: a perfect cheat on its own support."""

    needs = Needs.EMBEDDINGS
    starts_at_zero_shot = False

    def fit(self, problem, objective, *, seed):
        known = problem.support.features

        class Nearest(CosineHead):
            def __call__(self, queries):
                near = (queries.views @ known.T).amax(dim=-1, keepdim=True)
                return near.expand(*near.shape[:-1], len(problem.classes))

        return Nearest(problem.text, 1.0)


def test_out_of_fold_heads_never_saw_their_rows(world):
    scores, labels = out_of_fold(world.problem, Remembers(), Objective(), seed=0)
    assert len(scores) == len(world.problem.support) == len(labels)
    assert float(scores.logits.max()) < 1 - 1e-6
    assert torch.equal(torch.bincount(labels), torch.bincount(world.problem.labels))


def test_out_of_fold_rows_keep_their_labels(world):
    scores, labels = out_of_fold(world.problem, methods.build("zero-shot"), Objective(), seed=0)
    features, labels_of_support = world.problem.support.features, world.problem.labels
    expected = {
        tuple(row.tolist()): int(y) for row, y in zip(world.problem.zero_shot(features), labels_of_support, strict=True)
    }
    for row, label in zip(scores.zero_shot, labels, strict=True):
        nearest = min(expected, key=lambda known: float((row - torch.tensor(known, dtype=row.dtype)).abs().max()))
        assert expected[nearest] == int(label)


def test_temperature_from_the_shots_alone(world):
    model = fit(world.problem, "zs-lp:epochs=8", after=["temperature:fit_on=support"])
    assert torch.isfinite(model(world.domains["photo"]).logits).all()


def test_calibrate_with_and_without_labels(world):
    scores = fit(world.problem, "zs-lp:epochs=8")(world.domains["photo"])
    y = world.domains["photo"].labels
    assert calibrate(scores, "sals").logits.shape == scores.logits.shape
    warm = calibrate(scores, "temperature", held_out=(scores, y.numpy()))
    ratio = scores.logits / warm.logits
    torch.testing.assert_close(ratio, ratio.flatten()[0].expand_as(ratio))
    both = calibrate(scores, ["sals", "temperature"], held_out=(scores, y))
    alone = calibrate(calibrate(scores, "sals"), "temperature", held_out=(calibrate(scores, "sals"), y))
    torch.testing.assert_close(both.logits, alone.logits)


def test_scores_without_zero_shot_can_be_calibrated_where_it_is_not_read():
    logits, labels = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)), torch.arange(50) % 3
    warm = calibrate(Scores(logits), "temperature", held_out=(Scores(logits), labels))
    assert not warm.has_zero_shot
    assert torch.equal(warm.logits.argmax(-1), logits.argmax(-1))


def nan_scores():
    logits = torch.zeros(3, 2)
    logits[1, 0] = float("nan")
    return Scores(logits, torch.zeros(3, 2))


@pytest.mark.parametrize(
    ("act", "error", "said"),
    [
        (lambda w: calibrate(nan_scores(), "sals"), InputError, "row 1 hold NaN"),
        (lambda w: calibrate(Scores(torch.zeros(3, 2)), "sals"), InputError, "carry no zero-shot logits"),
        (lambda w: calibrate(Scores(torch.zeros(3, 2), torch.zeros(3, 2)), "temperature"), NeedsError, "held_out="),
        (
            lambda w: calibrate(
                Scores(torch.zeros(3, 2), torch.zeros(3, 2)),
                "temperature",
                held_out=(Scores(torch.zeros(3, 2), torch.zeros(3, 2)), [0, 1, 2]),
            ),
            InputError,
            "0..1",
        ),
        (
            lambda w: calibrate(
                Scores(torch.zeros(3, 2), torch.zeros(3, 2)),
                "temperature",
                held_out=(Scores(torch.zeros(3, 2), torch.zeros(3, 2)), [0.5, 1, 2]),
            ),
            InputError,
            "one class index a row",
        ),
        (lambda w: fit(w.problem, "zs-lp:epochs=1")(Embeddings(torch.ones(2, 3))), InputError, "3 wide"),
        (
            lambda w: fit(w.problem, "zs-lp:epochs=1", after="temperature", held_out=Embeddings(torch.ones(2, 16))),
            InputError,
            "no labels",
        ),
        (lambda w: fit(w.problem, "tip-adapter@paper"), NeedsError, "raw_query multiplies by the length"),
    ],
)
def test_bad_calls_are_told(world, act, error, said):
    with pytest.raises(error) as caught:
        act(world)
    assert said in str(caught.value)


def test_needs_are_checked_before_any_compute(world, monkeypatch):
    recipe = methods.build("zs-lp")
    monkeypatch.setattr(type(recipe), "needs", Needs.PIXELS | Needs.TEXT_TOWER)
    monkeypatch.setattr(type(recipe), "fit", lambda *_, **__: pytest.fail("trained"))
    with pytest.raises(NeedsError, match="zs-lp needs text tower and pixels"):
        fit(world.problem, "zs-lp")


def test_an_image_of_many_views_is_scored_in_each(world):
    views = torch.randn(3, 5, 16, dtype=torch.float64)
    scores = fit(world.problem, "clip-adapter:epochs=2", after="sals")(Embeddings(views))
    assert scores.views.logits.shape == (3, 5, 6)
    torch.testing.assert_close(scores.views.logits[:, 0], scores.logits)
    span = scores.views.logits.amax(-1) - scores.views.logits.amin(-1)
    torch.testing.assert_close(span, scores.views.zero_shot.amax(-1) - scores.views.zero_shot.amin(-1))


def test_sals_asks_for_nothing_in_every_form():
    assert calibrators.build("sals").needs is Evidence.NOTHING


def test_every_class_may_lack_shots(world):
    some = world.problem.labels < 4
    partial = replace(world.problem, support=world.problem.support.rows(some))
    scores = fit(partial, "task-res:epochs=3")(world.domains["photo"])
    assert torch.isfinite(scores.logits).all()
    assert isinstance(partial, Problem)
