"""From scores to a dict of metrics: what is refused, what is warned of, and that chunks and shards never show."""

import pickle
import warnings

import numpy as np
import pytest
import torch

from calispan.core import evaluation as evaluation_module
from calispan.core.errors import CalispanWarning, InputError, NeedsError, RecipeError, UnknownNameError
from calispan.core.evaluation import DEFAULT_METRICS, Evaluation, evaluate, score_maps
from calispan.core.registry import metrics, recipe
from calispan.core.types import Scores
from calispan.testing.metrics import drawn_rows


@pytest.fixture
def scored():
    return drawn_rows(rows=500, classes=7, dtype=torch.float32)


def halve(scores):
    return scores.replace(scores.logits / 2)


def test_the_usual_metrics_are_those_that_the_scores_can_answer(scored):
    scores, labels = scored
    assert tuple(evaluate(scores, labels)) == DEFAULT_METRICS
    assert tuple(evaluate(Scores(scores.logits), labels)) == DEFAULT_METRICS[:-1]
    assert tuple(evaluate(scores)) == ("range-inflation",)
    with pytest.raises(NeedsError, match="labels or zero-shot logits"):
        evaluate(Scores(scores.logits))


def test_keys_are_the_names_as_written(scored):
    found = evaluate(*scored, metrics=["ece:bins=12", recipe("ece", bins=12), recipe("ece", bins=20), "ece-15"])
    assert list(found) == ["ece:bins=12", "ece-20", "ece-15"]
    assert list(evaluate(*scored, metrics="nll")) == ["nll"]
    assert list(evaluate(*scored, metrics=recipe("nll"))) == ["nll"]


def test_arrays_of_any_kind_are_welcome(scored):
    scores, labels = scored
    wanted = evaluate(scores, labels, metrics=["nll", "accuracy"])
    logits = scores.logits.numpy()
    for given in (labels.numpy(), labels.tolist(), labels.numpy().astype(np.uint8), labels.to(torch.int16)):
        assert evaluate(logits, given, metrics=["nll", "accuracy"]) == wanted


@pytest.mark.parametrize("size", [1, 3, 64, 499])
def test_chunks_shards_and_blocks_never_show(scored, size, monkeypatch):
    scores, labels = scored
    wanted = evaluate(scores, labels, metrics=metrics.names(), after=[halve])
    monkeypatch.setattr(evaluation_module, "_BLOCK_ROWS", 50)
    monkeypatch.setattr(evaluation_module, "_FIRST_BLOCK", 2)
    streamed, shards = Evaluation(metrics.names()), []
    for start in range(0, 500, size):
        part = slice(start, start + size)
        streamed.update(scores.rows(part), labels[part], [halve])
        if size > 3:
            shards.append(Evaluation(metrics.names()))
            shards[-1].update(scores.rows(part), labels[part], [halve])
    assert streamed.compute() == wanted
    assert streamed.rows == 500
    total = Evaluation(metrics.names())
    for shard in reversed(shards):
        total.merge(pickle.loads(pickle.dumps(shard)))
    assert not shards or total.compute() == wanted


def test_only_evaluations_of_the_same_metrics_merge(scored):
    one, other = Evaluation(["nll", "ece-10"]), Evaluation(["nll", "ece-15"])
    other.update(*scored)
    with pytest.raises(InputError, match="nll, ece-10 here, nll, ece-15 there"):
        one.merge(other)


def test_passes_learned_from_the_first_block_are_made_in_one_walk(scored, monkeypatch):
    scores, labels = scored
    monkeypatch.setattr(evaluation_module, "_seen_to_want", {})
    seen = []

    def spy(given):
        seen.append(len(given))
        return given

    evaluation = Evaluation(["accuracy", "nll", "brier", "norm-mean", "range-inflation"])
    evaluation.update(scores.rows(slice(0, 64)), labels[:64], [spy])
    learning, seen[:] = sum(seen), []
    evaluation.update(scores, labels, [spy])
    assert learning > 64
    assert sum(seen) == 500


def test_another_evaluation_of_the_same_metrics_knows_their_passes(scored):
    scores, labels = scored
    names = ["accuracy", "brier", "range-inflation"]
    evaluate(scores, labels, names)
    seen = []

    def spy(given):
        seen.append(len(given))
        return given

    evaluate(scores, labels, names, after=spy)
    assert sum(seen) == 500


def test_chunks_may_come_with_and_without_maps_and_labels(scored):
    """What one chunk has, the next need not have, though its passes are expected."""
    scores, labels = scored
    mixed = Evaluation(["range-mean", "coverage-at:threshold=0.5", "norm-mean"])
    parts = [(labels, score_maps("sals")), (None, ()), (labels, [halve]), (None, score_maps("sals"))]
    singles = []
    for given, maps in parts:
        mixed.update(scores, given, maps)
        Evaluation(["accuracy", "range-mean", "coverage-at:threshold=0.5", "norm-mean"]).update(scores, labels, maps)
        singles.append(evaluate(scores, given, list(mixed.metrics), after=maps))
    for name, value in mixed.compute().items():
        assert value == pytest.approx(sum(single[name] for single in singles) / 4, abs=1e-9), name


def test_maps_may_be_names_recipes_or_fitted(scored):
    scores, labels = scored
    wanted = evaluate(scores, labels, after="sals")
    assert wanted["range-inflation"] == pytest.approx(1, abs=1e-6)
    fitted = recipe("sals").fit(evaluation_module.Given())
    for after in (["sals"], recipe("sals"), (recipe("sals"),), fitted, [fitted]):
        assert evaluate(scores, labels, after=after) == wanted
    twice = evaluate(scores, labels, after=["sals", halve])
    assert twice["range-inflation"] == pytest.approx(0.5, abs=1e-6)
    assert twice["accuracy"] == wanted["accuracy"]
    assert score_maps(()) == ()
    with pytest.raises(NeedsError, match="'temperature' is fitted with labels first"):
        evaluate(scores, labels, after="temperature")
    with pytest.raises(UnknownNameError, match="sals"):
        evaluate(scores, labels, after="salz")
    with pytest.raises(RecipeError, match="int came where a calibrator was wanted"):
        evaluate(scores, labels, after=3)


def test_explicit_metrics_that_cannot_be_answered_are_refused(scored):
    scores, labels = scored
    with pytest.raises(NeedsError, match="'nll' needs labels"):
        evaluate(scores, metrics=["range-mean", "nll"])
    with pytest.raises(NeedsError, match="'range-inflation' needs zero-shot logits"):
        evaluate(Scores(scores.logits), labels, metrics=["range-inflation"])
    with pytest.raises(UnknownNameError, match="Did you mean 'ece-15'"):
        evaluate(scores, labels, metrics=["ece_15"])
    with pytest.raises(InputError, match="No metrics"):
        Evaluation([])


def broken(change):
    scores, labels = drawn_rows(rows=20, classes=4)
    return change(scores.logits, scores.zero_shot, labels)


def with_value(tensor, place, value):
    tensor[place] = value
    return tensor


BAD = {
    "NaN": (lambda x, z, y: (Scores(with_value(x, (7, 1), torch.nan), z), y), "Logits of row 7 hold NaN or infinity"),
    "infinity": (lambda x, z, y: (Scores(with_value(x, (3, 0), torch.inf), z), y), "Logits of row 3 hold NaN"),
    "zero-shot": (lambda x, z, y: (Scores(x, with_value(z, (5, 2), torch.nan)), y), "Zero-shot logits of row 5"),
    "label high": (lambda x, z, y: (Scores(x, z), with_value(y, 6, 4)), r"Label 4 of row 6 is outside 0\.\.3"),
    "label low": (lambda x, z, y: (Scores(x, z), with_value(y, 2, -1)), r"Label -1 of row 2 is outside 0\.\.3"),
    "label count": (lambda x, z, y: (Scores(x, z), y[:9]), "9 labels came for 20 rows"),
    "float labels": (lambda x, z, y: (Scores(x, z), y.double()), r"torch\.float64 .* wanted one whole number a row"),
    "bool labels": (lambda x, z, y: (Scores(x, z), y > 2), "wanted one whole number a row"),
    "one-hot labels": (lambda x, z, y: (Scores(x, z), torch.eye(4, dtype=torch.long)[y]), "shape .20, 4."),
    "three axes": (lambda x, z, y: (Scores(x[None], z[None]), y), r"\(1, 20, 4\) came; metrics want \[rows, classes\]"),
    "no rows": (lambda x, z, y: (Scores(x[:0], z[:0]), y[:0]), "no rows to evaluate"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_is_refused_in_a_sentence(kind):
    change, sentence = BAD[kind]
    with pytest.raises(InputError, match=sentence):
        evaluate(*broken(change))


def test_rows_are_counted_over_chunks():
    scores, labels = drawn_rows(rows=100, classes=4)
    evaluation = Evaluation(["nll"])
    evaluation.update(scores, labels)
    with pytest.raises(InputError, match="row 142 is outside"):
        evaluation.update(scores, with_value(labels.clone(), 42, 9))
    with pytest.raises(InputError, match="row 163 hold"):
        evaluation.update(Scores(with_value(scores.logits.clone(), 63, torch.nan)), labels)


def test_probabilities_in_place_of_logits_are_warned_of(scored):
    scores, labels = scored
    probabilities = scores.probabilities()
    with pytest.warns(CalispanWarning, match="look like probabilities"):
        evaluate(Scores(probabilities, scores.zero_shot), labels)
    rounded = (probabilities * 1e4).round() / 1e4
    with pytest.warns(CalispanWarning, match="look like probabilities"):
        evaluate(rounded, labels)
    silent = [
        scores.logits,
        probabilities.log(),
        probabilities - 0.01,
        torch.cat([probabilities[:-1], scores.logits[-1:]]),
        torch.cat([probabilities[:-1], probabilities[-1:] / 2]),
        probabilities * 3 - 2 / 7,  # rows sum to one, but leave 0..1
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for logits in silent:
            evaluate(logits, labels)
        mixed, part = Evaluation(["nll"]), Evaluation(["nll"])
        part.update(Scores(probabilities), labels)
        mixed.update(scores, labels)
        mixed.merge(part)
        mixed.compute()
