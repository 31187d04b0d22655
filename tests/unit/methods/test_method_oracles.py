"""Every adapter once more as slow loops in float64: scores, losses and whole training runs agree.

A run of full-batch steps that ends in the same parameters proves every gradient on the way, and the schedule.
"""

import math

import numpy as np
import pytest
import torch

from calispan.core.objective import Objective
from calispan.core.registry import methods, train_calibrations
from calispan.core.types import Embeddings, Problem

CLASSES, WIDTH, SHOTS, SCALE = 4, 8, 3, 12.0
RATES = [1e-5, 0.1, 0.1 * (1 + math.cos(math.pi / 4)) / 2, 0.1 * (1 + math.cos(2 * math.pi / 4)) / 2]


@pytest.fixture
def problem():
    draws = torch.Generator().manual_seed(5)
    labels = torch.arange(CLASSES).repeat_interleave(SHOTS)
    rows = torch.randn(len(labels), WIDTH, generator=draws, dtype=torch.float64)
    text = torch.randn(CLASSES, WIDTH, generator=draws, dtype=torch.float64)
    return Problem(tuple("abcd"), Embeddings(rows, labels), text, logit_scale=SCALE)


@pytest.fixture
def queries():
    return Embeddings(torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(9), dtype=torch.float64))


def unit(v):
    return [x / math.sqrt(sum(y**2 for y in v)) for x in v]


def cosine(a, b):
    """Cosine of two vectors of tensors or floats, by loops; differentiable."""
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / (sum(x * x for x in a) ** 0.5 * sum(y * y for y in b) ** 0.5)


def loop_cross_entropy(logits, labels):
    total = 0
    for row, label in zip(logits, labels, strict=True):
        top = max(float(torch.as_tensor(x).detach()) for x in row)
        total = total - (row[label] - top - torch.log(sum(torch.exp(x - top) for x in row)))
    return total / len(labels)


def loop_sgd(parameters, loss_of, rates):
    """Momentum SGD as the textbook has it."""
    momenta = [torch.zeros_like(p) for p in parameters]
    for rate in rates:
        parameters = [p.detach().requires_grad_() for p in parameters]
        grads = torch.autograd.grad(loss_of(*parameters), parameters)
        momenta = [0.9 * m + g for m, g in zip(momenta, grads, strict=True)]
        parameters = [p - rate * m for p, m in zip(parameters, momenta, strict=True)]
    return [p.detach() for p in parameters]


def train(name, problem, during=(), **changes):
    recipe = methods.build(name, epochs=4, **changes)
    return recipe.fit(problem, Objective(tuple(train_calibrations.build(d) for d in during)), seed=0)


def start(name, problem, **changes):
    """The head before any training."""
    changes = changes if name == "zero-shot" else {"epochs": 0, **changes}
    return methods.build(name, **changes).fit(problem, Objective(), seed=0)


def close(left, right, tolerance=1e-10):
    left, right = torch.as_tensor(left), torch.as_tensor(right)
    assert left.shape == right.shape
    assert float((left - right).abs().max()) < tolerance


def table(rows):
    return torch.tensor([[float(x) for x in row] for row in rows], dtype=torch.float64)


def class_matrix_logits(weights, features):
    return [[SCALE * cosine(w, x) for w in weights] for x in features]


def test_zero_shot_logits(problem, queries):
    head = start("zero-shot", problem)
    close(head(queries)[:, 0], table(class_matrix_logits(problem.text.tolist(), queries.features.tolist())))


@pytest.mark.parametrize("name", ["linear-probe", "zs-lp"])
def test_linear_probes(problem, name):
    first = start(name, problem).weights
    loss = lambda w: loop_cross_entropy(class_matrix_logits(w, problem.support.features), problem.labels)  # noqa: E731
    (expected,) = loop_sgd([first], loss, RATES)
    close(train(name, problem).weights, expected)
    assert float((expected - first).abs().max()) > 1e-3


def test_linear_probe_starts_from_kaiming_normal():
    classes, width = 200, 128
    support = Embeddings(torch.eye(width)[:1].expand(classes, width), torch.arange(classes))
    big = Problem(tuple(map(str, range(classes))), support, torch.randn(classes, width))
    weights = methods.build("linear-probe", epochs=0).fit(big, Objective(), seed=0).weights
    assert float(weights.std()) == pytest.approx(math.sqrt(2 / width), rel=0.02)
    assert abs(float(weights.mean())) < 0.002


def test_task_res(problem):
    def loss(residual):
        return loop_cross_entropy(
            class_matrix_logits(problem.text + 0.5 * residual, problem.support.features), problem.labels
        )

    (residual,) = loop_sgd([torch.zeros_like(problem.text)], loss, RATES)
    close(train("task-res", problem).weights, problem.text + 0.5 * residual)


def test_task_res_is_a_linear_probe_at_alpha_squared_times_the_rate(problem, monkeypatch):
    monkeypatch.setattr("calispan.core.training.WARM_UP_LR", 1e-5 * 0.25)
    probe = train("zs-lp", problem, lr=0.1 * 0.25)
    monkeypatch.undo()
    close(probe.weights, train("task-res", problem, alpha=0.5).weights)


def test_enhanced_base_is_a_fine_tuned_projection(problem):
    def loss(matrix):
        prototypes = [[sum(t[i] * matrix[i, j] for i in range(WIDTH)) for j in range(WIDTH)] for t in problem.text]
        return loop_cross_entropy(class_matrix_logits(prototypes, problem.support.features), problem.labels)

    (matrix,) = loop_sgd([torch.eye(WIDTH, dtype=torch.float64)], loss, [1e-5, 0.002])
    head = methods.build("task-res", epochs=0, enhanced=True, base_epochs=2).fit(problem, Objective(), seed=0)
    close(head.weights, problem.text @ matrix)


def clip_adapter_logits(down, up, text, features):
    rows = []
    for x in features:
        hidden = [torch.relu(sum(w * v for w, v in zip(row, x, strict=True))) for row in down]
        out = [torch.relu(sum(w * h for w, h in zip(row, hidden, strict=True))) for row in up]
        rows.append([SCALE * cosine([0.2 * o + 0.8 * v for o, v in zip(out, x, strict=True)], t) for t in text])
    return rows


def test_clip_adapter(problem, queries):
    first = start("clip-adapter", problem)
    assert first.down.shape == (WIDTH // 4, WIDTH)
    assert float(first.down.abs().max()) <= 1 / math.sqrt(WIDTH)
    assert float(first.up.abs().max()) <= 1 / math.sqrt(WIDTH // 4)
    loss = lambda d, u: loop_cross_entropy(  # noqa: E731
        clip_adapter_logits(d, u, problem.text, problem.support.features), problem.labels
    )
    down, up = loop_sgd([first.down, first.up], loss, RATES)
    head = train("clip-adapter", problem)
    close(head.down, down)
    close(head.up, up)
    rows = clip_adapter_logits(head.down, head.up, problem.text, queries.features)
    close(head(queries)[:, 0], table(rows))


def test_clip_adapter_does_not_see_the_length_of_a_feature(problem, queries):
    head = train("clip-adapter", problem)
    raw = 7.3 * queries.features
    rows = clip_adapter_logits(head.down, head.up, problem.text, raw)
    close(head(queries)[:, 0], table(rows))


def tip_logits(keys, labels, text, features, alpha, beta, lengths=None):
    rows = []
    for i, x in enumerate(features):
        row = [SCALE * cosine(t, x) for t in text]
        for key, label in zip(keys, labels, strict=True):
            affinity = cosine(key, x) * (1 if lengths is None else lengths[i])
            row[label] = row[label] + alpha * torch.exp(-beta * (1 - affinity))
        rows.append(row)
    return rows


def test_tip_adapter(problem, queries):
    head = start("tip-adapter", problem)
    rows = tip_logits(problem.support.features.tolist(), problem.labels, problem.text, queries.features, 1.17, 1.0)
    close(head(queries)[:, 0], table(rows))


def test_tip_adapter_f(problem):
    loss = lambda keys: loop_cross_entropy(  # noqa: E731
        tip_logits(keys, problem.labels, problem.text, problem.support.features, 1.17, 1.0), problem.labels
    )
    (keys,) = loop_sgd([problem.support.features], loss, RATES)
    close(train("tip-adapter-f", problem).keys, keys)


def test_tip_adapter_paper_variant_multiplies_by_the_raw_length(problem):
    lengths = torch.linspace(0.5, 3.0, 5, dtype=torch.float64)
    directions = torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    queries = Embeddings(torch.nn.functional.normalize(directions, dim=-1) * lengths[:, None])
    support = Embeddings(problem.support.views * 2.5, problem.labels)
    raw = Problem(problem.classes, support, problem.text, logit_scale=SCALE)
    head = methods.build("tip-adapter@paper", epochs=0).fit(raw, Objective(), seed=0)
    assert head.keys.dtype == torch.float16
    rows = tip_logits(head.keys.double(), raw.labels, raw.text, queries.features, 1.0, 1.0, lengths)
    close(head(queries)[:, 0], table(rows))


def test_tip_cache_of_uneven_classes_and_unsorted_rows(problem, queries):
    labels = torch.tensor([3, 0, 0, 1, 3, 3, 2, 0, 1, 3, 0, 2])
    uneven = Problem(problem.classes, Embeddings(problem.support.views, labels), problem.text, logit_scale=SCALE)
    head = start("tip-adapter", uneven)
    rows = tip_logits(uneven.support.features.tolist(), labels, uneven.text, queries.features, 1.17, 1.0)
    close(head(queries)[:, 0], table(rows))


def test_tip_keys_are_the_mean_of_augmented_views(problem):
    views = torch.randn(12, 4, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    seen = Problem(problem.classes, Embeddings(views, problem.labels), problem.text)
    keys = start("tip-adapter", seen).keys
    for row, key in zip(views.tolist(), keys.tolist(), strict=True):
        mean = [sum(column) for column in zip(*[unit(v) for v in row[1:]], strict=True)]
        assert np.allclose(key, unit(mean), atol=1e-12)
    first = methods.build("tip-adapter", keys="first").fit(seen, Objective(), seed=0).keys
    assert np.allclose(first[0].tolist(), unit(views[0, 1].tolist()), atol=1e-12)


def clap_strength(problem):
    strength = []
    for k in range(CLASSES):
        probabilities = []
        for x, label in zip(problem.support.features.tolist(), problem.labels.tolist(), strict=True):
            if label == k:
                exps = [math.exp(SCALE * cosine(t, x)) for t in problem.text.tolist()]
                probabilities.append(exps[k] / sum(exps))
        strength.append(sum(probabilities) / len(probabilities))
    return strength


@pytest.mark.parametrize("weights", ["per-class", "corrected", "constant", "balanced"])
def test_clap(problem, weights):
    strength = clap_strength(problem)
    mean = sum(strength) / CLASSES
    a = {
        "per-class": strength,
        "corrected": [s / mean for s in strength],
        "constant": [mean] * CLASSES,
        "balanced": [1.0] * CLASSES,
    }[weights]

    def loss(w):
        held = sum(a[k] * sum((w[k][j] - problem.text[k][j]) ** 2 for j in range(WIDTH)) for k in range(CLASSES))
        return loop_cross_entropy(class_matrix_logits(w, problem.support.features), problem.labels) + held / CLASSES

    (expected,) = loop_sgd([problem.text], loss, RATES)
    close(train("clap", problem, weights=weights).weights, expected)


def test_clap_adaptive_updates_after_each_epoch(problem):
    a, rho = clap_strength(problem), [0.0] * CLASSES
    weights, momentum = problem.text.clone(), torch.zeros_like(problem.text)
    for rate in RATES:
        w = weights.detach().requires_grad_()
        held = sum(a[k] * ((w[k] - problem.text[k]) ** 2).sum() for k in range(CLASSES)) / CLASSES
        loss = loop_cross_entropy(class_matrix_logits(w, problem.support.features), problem.labels) + held
        momentum = 0.9 * momentum + torch.autograd.grad(loss, w)[0]
        weights = (w - rate * momentum).detach()
        h = [float(((weights[k] - problem.text[k]) ** 2).sum()) for k in range(CLASSES)]
        a = [max(0.0, a[k] + rho[k] * h[k]) for k in range(CLASSES)]
        rho = h
    close(train("clap-adaptive", problem).weights, weights)


def test_cross_modal_trains_on_text_rows_too(problem):
    # As many text rows as image rows, each class equally often: the batch holds every shot and three of every text.
    drawn = torch.arange(CLASSES).repeat_interleave(SHOTS)
    features = torch.cat([problem.support.features, problem.text[drawn]])
    labels = torch.cat([problem.labels, drawn])
    loss = lambda w: loop_cross_entropy(class_matrix_logits(w, features), labels)  # noqa: E731
    (expected,) = loop_sgd([problem.text], loss, RATES)
    close(train("cross-modal", problem).weights, expected)


def test_zs_norm_of_zs_lp_starts_as_the_plain_loss(problem):
    """At the prototypes the range map is the identity, so the first step is the plain one."""
    plain = methods.build("zs-lp", epochs=1, schedule="constant").fit(problem, Objective(), seed=0)
    normed = methods.build("zs-lp", epochs=1, schedule="constant").fit(
        problem, Objective((train_calibrations.build("zs-norm", detach=True),)), seed=0
    )
    assert float((plain.weights - problem.text).abs().max()) > 1e-3
    close(plain.weights, normed.weights)
