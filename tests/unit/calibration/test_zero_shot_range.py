"""ZS-Norm, Penalty and SaLS against the formulas written as loops, and the properties the paper claims."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calispan.calibration.confidence_match import ConfidenceMatch
from calispan.calibration.zero_shot_range import RangePenalty, Sals, ZeroShotRange, ZsNorm, range_map
from calispan.core.contracts import Evidence, Given
from calispan.core.errors import InputError, RecipeError
from calispan.core.objective import Objective, cross_entropy
from calispan.core.types import Scores


def draw(seed, rows=7, classes=5):
    draws = torch.Generator().manual_seed(seed)
    logits = 25 + 6 * torch.randn(rows, classes, generator=draws, dtype=torch.float64)
    zero_shot = 22 + 2 * torch.randn(rows, classes, generator=draws, dtype=torch.float64)
    return logits, zero_shot, torch.randint(classes, (rows,), generator=draws)


def mapped_by_loops(logits, zero_shot, factor=1.0):
    out = torch.empty_like(logits)
    for i in range(len(logits)):
        row, reference = logits[i].tolist(), zero_shot[i].tolist()
        span, span0 = max(row) - min(row), max(reference) - min(reference)
        for k, value in enumerate(row):
            out[i, k] = factor * span0 / span * (value - min(row)) + min(reference)
    return out


def softmax_by_loops(row):
    top = max(row)
    weights = [math.exp(value - top) for value in row]
    return [weight / sum(weights) for weight in weights]


def cross_entropy_by_loops(logits, labels):
    """Mean loss, and its gradient with respect to the logits."""
    gradient = torch.zeros_like(logits)
    loss = 0.0
    for i, y in enumerate(labels.tolist()):
        p = softmax_by_loops(logits[i].tolist())
        loss -= math.log(p[y]) / len(logits)
        for k in range(len(p)):
            gradient[i, k] = (p[k] - (k == y)) / len(logits)
    return loss, gradient


def test_range_map_loss_and_gradient_agree_with_the_closed_form():
    logits, zero_shot, labels = draw(0)
    live = logits.clone().requires_grad_()
    loss = Objective((ZsNorm(),))(cross_entropy, Scores(live, zero_shot), labels)
    loss.backward()

    mapped = mapped_by_loops(logits, zero_shot)
    torch.testing.assert_close(range_map(logits, zero_shot), mapped, rtol=0, atol=1e-10)
    expected_loss, outer = cross_entropy_by_loops(mapped, labels)
    assert loss.item() == pytest.approx(expected_loss, abs=1e-10)
    expected = torch.empty_like(logits)
    for i in range(len(logits)):
        row, reference = logits[i].tolist(), zero_shot[i].tolist()
        low, high = min(row), max(row)
        span = high - low
        c = (max(reference) - min(reference)) / span
        g = outer[i].tolist()
        s = c * sum(g[j] * (row[j] - low) for j in range(len(row)))
        for k in range(len(row)):
            at_top, at_bottom = k == row.index(high), k == row.index(low)
            expected[i, k] = c * g[k] - at_top * s / span + at_bottom * (s / span - c * sum(g))
    torch.testing.assert_close(live.grad, expected, rtol=0, atol=1e-10)


def test_range_map_gradient_agrees_with_finite_differences():
    logits, zero_shot, _ = draw(1)
    assert torch.autograd.gradcheck(range_map, (logits.requires_grad_(), zero_shot.requires_grad_()), atol=1e-7)


def test_tied_ends_send_their_gradient_to_one_entry():
    logits = torch.tensor([[5.0, 1.0, 5.0, 1.0, 3.0]], dtype=torch.float64, requires_grad=True)
    zero_shot = torch.tensor([[2.0, 0.0, 1.0, 1.0, 1.0]], dtype=torch.float64)
    range_map(logits, zero_shot)[0, 4].backward()  # only the row's span and low touch the other entries
    top, bottom = int(logits[0].max(dim=0).indices), int(logits[0].min(dim=0).indices)
    assert set(logits.grad[0].nonzero()[:, 0].tolist()) == {top, bottom, 4}


def test_detached_variant_is_a_constant_scale():
    logits, zero_shot, labels = draw(2)
    live = logits.clone().requires_grad_()
    cross_entropy(ZsNorm(detach=True).reshape(Scores(live, zero_shot)).logits, labels).backward()
    _, outer = cross_entropy_by_loops(mapped_by_loops(logits, zero_shot), labels)
    scale = (zero_shot.amax(-1) - zero_shot.amin(-1)) / (logits.amax(-1) - logits.amin(-1))
    torch.testing.assert_close(live.grad, outer * scale[:, None], rtol=0, atol=1e-10)


def test_attached_zero_shot_keeps_its_gradient_split_among_ties():
    logits = torch.tensor([[3.0, 1.0, 0.0]], dtype=torch.float64)
    zero_shot = torch.tensor([[2.0, 2.0, 0.0]], dtype=torch.float64, requires_grad=True)
    range_map(logits, zero_shot)[0, 0].backward()  # the winner sits at max z
    assert zero_shot.grad.tolist() == [[0.5, 0.5, 0.0]]


def test_at_the_zero_shot_logits_everything_is_the_identity():
    _, zero_shot, labels = draw(3)
    same = Scores(zero_shot, zero_shot)
    torch.testing.assert_close(ZsNorm().reshape(same).logits, zero_shot, rtol=0, atol=1e-12)
    torch.testing.assert_close(Sals().fit(Given())(same).logits, zero_shot, rtol=0, atol=1e-12)
    assert RangePenalty().penalty(same, labels).item() == 0


@pytest.mark.parametrize("span", [1.0, 0.5, 0.25])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sals_gives_the_zero_shot_range_and_the_loops_values(span, dtype):
    logits, zero_shot, _ = draw(4, rows=300, classes=40)
    logits, zero_shot = logits.to(dtype), zero_shot.to(dtype)
    out = Sals(span=span).fit(Given())(Scores(logits, zero_shot)).logits
    rounding = 4 * 40 * torch.finfo(dtype).eps  # a few steps of numbers of size 40
    low, high = zero_shot.amin(-1), zero_shot.amax(-1)
    torch.testing.assert_close(out.amax(-1) - out.amin(-1), span * (high - low), rtol=0, atol=rounding)
    torch.testing.assert_close(out.amin(-1), low, rtol=0, atol=rounding)
    expected = mapped_by_loops(logits.double(), zero_shot.double(), span)
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=1e-10 if dtype == torch.float64 else rounding)


def test_sals_is_the_range_map_of_training():
    logits, zero_shot, _ = draw(5)
    out = Sals().fit(Given())(Scores(logits, zero_shot)).logits
    torch.testing.assert_close(out, ZsNorm().reshape(Scores(logits, zero_shot)).logits, rtol=0, atol=1e-12)


@given(seed=st.integers(0, 10**6), scale=st.floats(0.01, 50), shift=st.floats(-100, 100))
@settings(max_examples=50, deadline=None)
def test_a_stretched_zero_shot_model_gets_its_probabilities_back(seed, scale, shift):
    _, zero_shot, _ = draw(seed)
    stretched = Scores(scale * zero_shot + shift, zero_shot)
    for recipe in (Sals(), ConfidenceMatch()):
        out = recipe.fit(Given())(stretched)
        torch.testing.assert_close(out.probabilities(), zero_shot.softmax(-1), rtol=0, atol=1e-9)


def test_sals_keeps_the_argmax_where_rounding_would_not():
    # Two neighbours in float32 under a factor of 1/8: the plain formula in float32 ties them, the earlier one wins.
    top = torch.tensor(20.0)
    second = torch.nextafter(top, torch.tensor(0.0))
    logits = torch.stack([second, top, torch.tensor(4.0)])[None]
    zero_shot = torch.tensor([[21.0, 22.0, 20.0]])
    plain = 2 / 16 * (logits - 4) + 20
    assert plain.argmax().item() == 0
    assert logits.argmax().item() == 1
    out = ZeroShotRange()(Scores(logits, zero_shot)).logits
    assert out.argmax().item() == 1
    assert out[0, 0] < out[0, 1] <= torch.nextafter(torch.tensor(22.0), torch.tensor(23.0))


@pytest.mark.parametrize("value", [0.0, 25.0, -1e4])
def test_flat_rows(value):
    zero_shot = torch.tensor([[2.0, 7.0, 3.0]], dtype=torch.float64)
    flat = torch.full_like(zero_shot, value).requires_grad_()
    mapped = range_map(flat, zero_shot)
    assert mapped.tolist() == [[2.0, 2.0, 2.0]]  # flat, at the zero-shot minimum
    mapped.square().sum().backward()
    assert flat.grad.tolist() == [[0.0, 0.0, 0.0]]
    sals = Sals().fit(Given())
    assert sals(Scores(flat.detach(), zero_shot)).logits.tolist() == [[2.0, 2.0, 2.0]]
    # A flat zero-shot row asks for a flat row; one floating-point step keeps the winner.
    out = sals(Scores(zero_shot, flat.detach()))
    torch.testing.assert_close(out.probabilities(), torch.full_like(zero_shot, 1 / 3), rtol=0, atol=1e-9)
    assert out.logits.argmax().item() == 1
    assert range_map(zero_shot, flat.detach()).unique().tolist() == [value]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_penalty_loss_and_gradient_agree_with_loops(reduction):
    logits, zero_shot, labels = draw(6)
    live = logits.clone().requires_grad_()
    recipe = RangePenalty(weight=3.0, reduction=reduction)
    loss = Objective((recipe,))(cross_entropy, Scores(live, zero_shot), labels)
    loss.backward()
    expected, gradient = cross_entropy_by_loops(logits, labels)
    share = 3.0 / (logits.numel() if reduction == "mean" else 1)
    for i in range(len(logits)):
        low, high = min(zero_shot[i].tolist()), max(zero_shot[i].tolist())
        for k, value in enumerate(logits[i].tolist()):
            expected += share * (max(0.0, value - high) + max(0.0, low - value))
            gradient[i, k] += share * ((value > high) - (value < low))
    assert loss.item() == pytest.approx(expected, abs=1e-10)
    torch.testing.assert_close(live.grad, gradient, rtol=0, atol=1e-10)


def test_penalty_default_is_the_mean_times_ten():
    scores = Scores(torch.tensor([[5.0, -1.0, 1.0]]), torch.tensor([[2.0, 0.0, 1.0]]))
    assert RangePenalty().penalty(scores, None).item() == pytest.approx(10 * (3 + 1) / 3)


def test_order_of_calibrations_is_the_order_of_the_maps():
    logits, zero_shot, labels = draw(7)
    first = Objective((RangePenalty(), ZsNorm()))(cross_entropy, Scores(logits, zero_shot), labels)
    last = Objective((ZsNorm(), RangePenalty()))(cross_entropy, Scores(logits, zero_shot), labels)
    inside = cross_entropy(range_map(logits, zero_shot), labels).item()
    assert last.item() == pytest.approx(inside, abs=1e-9)  # nothing is outside the range any more
    assert first.item() == pytest.approx(inside + RangePenalty().penalty(Scores(logits, zero_shot), None).item())


def test_views_are_mapped_each_to_its_own_range():
    logits, zero_shot, _ = draw(8, rows=12)
    views = Scores(logits.view(4, 3, 5), zero_shot.view(4, 3, 5))
    out = Sals().fit(Given())(Scores(views.logits[:, 0], views.zero_shot[:, 0], views))
    alone = Sals().fit(Given())(Scores(logits, zero_shot)).logits
    torch.testing.assert_close(out.views.logits, alone.view(4, 3, 5), rtol=0, atol=0)
    torch.testing.assert_close(out.logits, alone.view(4, 3, 5)[:, 0], rtol=0, atol=0)


def test_sals_asks_for_nothing_but_the_zero_shot_logits():
    assert Sals().needs == Evidence.NOTHING
    with pytest.raises(InputError, match="carry no zero-shot logits"):
        Sals().fit(Given())(Scores(torch.zeros(2, 3)))


@pytest.mark.parametrize(
    "build",
    [
        lambda: Sals(span=0.0),
        lambda: Sals(span=math.nan),
        lambda: Sals(span=math.inf),
        lambda: RangePenalty(weight=-1.0),
        lambda: RangePenalty(reduction="max"),
    ],
)
def test_bad_parameters_are_refused(build):
    with pytest.raises(RecipeError, match="want"):
        build()
