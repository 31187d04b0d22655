"""Rows against slow loops in float64, and the promise that a row's numbers depend on that row alone."""

import math
import threading
import time

import pytest
import torch

from calispan.core import tiling as tiling_module
from calispan.core.errors import InputError, NeedsError
from calispan.core.evaluation import score_maps
from calispan.core.rows import Rows
from calispan.core.types import Scores

NUMBERS = ("confidence", "predicted", "correct", "nll", "brier", "norm", "span", "zero_shot_span")


def oracle(logits, zero_shot, labels):
    """Every number once more, as plain as can be."""
    out = {name: [] for name in NUMBERS}
    for row, zero, label in zip(logits.double().tolist(), zero_shot.double().tolist(), labels.tolist(), strict=True):
        top = max(row)
        total = math.fsum(math.exp(value - top) for value in row)
        p = [math.exp(value - top) / total for value in row]
        first = row.index(top)
        out["confidence"].append(p[first])
        out["predicted"].append(first)
        out["correct"].append(first == label)
        out["nll"].append(top + math.log(total) - row[label])
        out["brier"].append(math.fsum((q - (k == label)) ** 2 for k, q in enumerate(p)))
        out["norm"].append(math.sqrt(math.fsum(value * value for value in row)))
        out["span"].append(top - min(row))
        out["zero_shot_span"].append(max(zero) - min(zero))
    return out


def drawn(rows, classes, *, scale=3.0, dtype=torch.float64, seed=0):
    draws = torch.Generator().manual_seed(seed)
    logits = 20 + scale * torch.randn(rows, classes, generator=draws, dtype=torch.float64)
    zero_shot = 20 + torch.randn(rows, classes, generator=draws, dtype=torch.float64)
    labels = torch.randint(classes, (rows,), generator=draws)
    return Scores(logits.to(dtype), zero_shot.to(dtype)), labels


def hard(dtype=torch.float64):
    rows = [
        [0.0, 0.0, 0.0, 0.0, 0.0],
        [7.0, 7.0, 1.0, 7.0, 0.0],
        [1e4, -1e4, 0.0, 1e4, -1e4],
        [-1e4, -1e4, -1e4, -1e4, 1e4],
        [1e-30, 0.0, 0.0, 0.0, -1e-30],
    ]
    logits = torch.tensor(rows, dtype=dtype).repeat_interleave(5, dim=0)
    return Scores(logits, logits.flip(0)), torch.arange(5).repeat(5)


@pytest.mark.parametrize("classes", [1, 2, 7, 100])
@pytest.mark.parametrize("scale", [0.5, 3.0, 30.0])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-6)])
def test_numbers_of_drawn_rows(classes, scale, dtype, tolerance):
    scores, labels = drawn(200, classes, scale=scale, dtype=dtype)
    assert_numbers(Rows(scores, labels), oracle(scores.logits, scores.zero_shot, labels), tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-6)])
def test_numbers_of_flat_tied_and_huge_rows(dtype, tolerance):
    scores, labels = hard(dtype)
    assert_numbers(Rows(scores, labels), oracle(scores.logits, scores.zero_shot, labels), tolerance)


def assert_numbers(rows, wanted, tolerance):
    for name in NUMBERS:
        found = getattr(rows, name)
        if name in ("predicted", "correct"):
            assert found.tolist() == wanted[name], name
        else:
            assert found.dtype == torch.float64, name
            torch.testing.assert_close(
                found, torch.tensor(wanted[name], dtype=torch.float64), rtol=tolerance, atol=tolerance, msg=name
            )


def test_half_precision_is_worked_on_as_float32():
    scores, labels = drawn(50, 10, dtype=torch.float16)
    assert_numbers(Rows(scores, labels), oracle(scores.logits, scores.zero_shot, labels), 1e-6)


def test_confidence_of_flat_rows_is_exact():
    for classes in (3, 5, 10, 15):
        assert Rows(Scores(torch.full((2, classes), 3.3))).confidence.tolist() == [1 / classes] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("classes", [1, 3, 10, 101])
def test_a_row_gives_the_same_bits_in_every_tile_order_and_thread(dtype, classes, monkeypatch):
    scores, labels = drawn(300, classes, dtype=dtype)
    whole = Rows(scores, labels)
    order = torch.randperm(300, generator=torch.Generator().manual_seed(1))
    shuffled = Rows(scores.rows(order), labels[order])
    last = Rows(scores.rows(slice(299, 300)), labels[299:])
    monkeypatch.setitem(tiling_module._TILE, "cpu", 7 * classes)
    tiled = Rows(scores, labels)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        threaded = Rows(scores, labels)
        for name in (*NUMBERS, "probabilities"):
            expected = getattr(whole, name)
            assert torch.equal(getattr(threaded, name), expected), name
            assert torch.equal(getattr(tiled, name), expected), name
            assert torch.equal(getattr(shuffled, name), expected[order]), name
            assert torch.equal(getattr(last, name), expected[299:]), name
    finally:
        torch.set_num_threads(threads)


def test_one_very_wide_row_gives_the_same_bits_alone():
    """Torch would share out the sums of a single row among its threads, and so round them otherwise."""
    scores, labels = drawn(6, 70_001, dtype=torch.float32)
    whole = Rows(scores, labels)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        for row in range(6):
            alone = Rows(scores.rows(slice(row, row + 1)), labels[row : row + 1])
            for name in ("confidence", "brier", "norm", "given_sum"):
                assert torch.equal(getattr(alone, name), getattr(whole, name)[row : row + 1]), name
    finally:
        torch.set_num_threads(threads)


class Meeting:
    """A row temperature whose tiles wait for each other."""

    def __init__(self):
        self.barrier = threading.Barrier(2, timeout=20)

    def __call__(self, scores):
        return scores

    def row_factor(self, rows):
        self.barrier.wait()
        return torch.ones_like(rows.span)


def test_threads_do_not_share_their_working_memory(monkeypatch):
    scores, _ = drawn(20, 5)
    monkeypatch.setitem(tiling_module._TILE, "cpu", 50)
    together = Rows(scores, maps=[Meeting()], threads=2).confidence
    assert torch.equal(together, Rows(scores).confidence)


def test_threads_of_torch_are_left_as_they_were():
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        Rows(*drawn(100, 10)).confidence.sum()
        assert torch.get_num_threads() == 3
        seen = []
        other = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        other.start()
        other.join()
        assert seen == [3]
    finally:
        torch.set_num_threads(threads)


def halve(scores):
    return scores.replace(scores.logits / 2 + scores.zero_shot)


def test_maps_are_applied_tile_by_tile_in_their_order(monkeypatch):
    scores, labels = drawn(100, 10)
    seen = []

    def spy(given):
        seen.append(len(given))
        return given.replace(given.logits.square())

    monkeypatch.setitem(tiling_module._TILE, "cpu", 80)
    rows = Rows(scores, labels, [halve, spy], expect=["predicted", "high", "low", "norm", "exp_norm", "label_logit"])
    mapped = (scores.logits / 2 + scores.zero_shot).square()
    assert_numbers(rows, oracle(mapped, scores.zero_shot, labels), 1e-10)
    assert max(seen) == 8, "a map sees a tile, never the whole"
    assert sum(seen) == 100, "one walk makes all that is expected, and the zero-shot range needs no map"
    torch.testing.assert_close(torch.cat([tile.probabilities for tile in rows.tiles()]), mapped.softmax(dim=1))


class Stretch:
    """A temperature of each row that refuses to be carried out."""

    def __init__(self, power):
        self.power = power

    def __call__(self, scores):
        raise AssertionError("a row temperature need not be carried out")

    def row_factor(self, rows):
        return (rows.zero_shot_span / rows.span) ** self.power


def test_row_temperatures_are_not_carried_out():
    scores, labels = drawn(100, 10)
    rows = Rows(scores, labels, [Stretch(0.5), Stretch(1.0), Stretch(2.0)])  # the later ones see equal spans
    span, zero_span = (
        values.amax(dim=1, keepdim=True) - values.amin(dim=1, keepdim=True)
        for values in (scores.logits, scores.zero_shot)
    )
    wanted = oracle(scores.logits * (zero_span / span), scores.zero_shot, labels)
    for name in ("confidence", "nll", "brier", "span"):
        expected = torch.tensor(wanted[name], dtype=torch.float64)
        torch.testing.assert_close(getattr(rows, name), expected, rtol=1e-10, atol=1e-10)
    with pytest.raises(AssertionError, match="need not be carried out"):
        _ = rows.norm  # offsets matter here


@pytest.mark.parametrize("names", [["sals"], ["sals:span=0.5"], ["sals:span=3", "sals"]])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 2e-6)])
def test_sals_by_its_factor_is_sals_carried_out(names, dtype, tolerance):
    maps = score_maps(names)
    for scores, labels in (drawn(300, 50, dtype=dtype), hard(dtype), drawn(9, 1, dtype=dtype)):
        quick, done = Rows(scores, labels, maps), scores
        for score_map in maps:
            done = score_map(done)
        slow = Rows(done, labels)
        assert torch.equal(quick.predicted, slow.predicted)
        for name in ("confidence", "nll", "brier", "norm", "span", "zero_shot_span", "probabilities"):
            found, wanted = getattr(quick, name).double(), getattr(slow, name).double()
            torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance, msg=name)


def test_a_row_temperature_beside_another_map_is_carried_out():
    scores, labels = drawn(50, 6)
    maps = [halve, *score_maps("sals")]
    assert_numbers(Rows(scores, labels, maps), oracle(maps[1](halve(scores)).logits, scores.zero_shot, labels), 1e-10)


@pytest.mark.parametrize("side", ["logits", "zero_shot"])
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_bad_row_does_not_hide_behind_a_factor(side, poison):
    scores, labels = drawn(30, 4)
    getattr(scores, side)[5, 1] = poison
    with pytest.raises(InputError, match="ogits of row 5 hold NaN or infinity"):
        _ = Rows(scores, labels, score_maps("sals")).confidence


def test_views_of_a_tile_are_those_of_its_rows(monkeypatch):
    views = Scores(torch.randn(50, 3, 4), torch.randn(50, 3, 4))
    scores = Scores(views.logits[:, 0], views.zero_shot[:, 0], views)
    monkeypatch.setitem(tiling_module._TILE, "cpu", 28)

    def mean_of_views(given):
        assert torch.equal(given.views.logits[:, 0], given.logits)
        return given.replace((given.views.logits + given.views.zero_shot).mean(dim=1))

    expected = (views.logits + views.zero_shot).mean(dim=1).amax(dim=1).double()
    torch.testing.assert_close(Rows(scores, maps=[mean_of_views])._pass("high").double(), expected)


def test_zero_shot_logits_are_made_once_and_only_when_read(monkeypatch):
    scores, labels = drawn(60, 5)
    calls = []

    def make():
        calls.append(threading.get_ident())
        time.sleep(0.05)
        return scores.zero_shot

    monkeypatch.setitem(tiling_module._TILE, "cpu", 20)
    lazy = Rows(Scores(scores.logits, make), labels)
    _ = lazy.nll, lazy.span, lazy.norm
    assert calls == []
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        mapped = Rows(Scores(scores.logits, make), labels, [halve])
        _ = mapped.confidence
    finally:
        torch.set_num_threads(threads)
    assert len(calls) == 1


def test_taken_rows_are_looked_up():
    scores, labels = drawn(40, 6)
    index = torch.tensor([5, 5, 0, 39])
    whole = Rows(scores, labels, [halve])
    taken, again = whole.take(index), Rows(scores.rows(index), labels[index], [halve])
    assert len(taken) == 4
    for name in (*NUMBERS, "probabilities", "labels"):
        assert torch.equal(getattr(taken, name), getattr(again, name)), name
    assert torch.equal(taken.take(torch.tensor([3])).nll, again.nll[3:])


def test_what_came_in_is_not_changed_nor_followed_by_gradients():
    scores, labels = drawn(20, 4)
    kept = scores.logits.clone()
    learned = scores.logits.clone().requires_grad_()

    def weighted(given):
        assert not torch.is_grad_enabled(), "nobody will ask for gradients"
        return halve(given)

    rows = Rows(Scores(learned, scores.zero_shot), labels, [weighted])
    assert not rows.nll.requires_grad
    assert not rows.probabilities.requires_grad
    assert torch.equal(learned.detach(), kept)


def test_no_rows_are_fine():
    rows = Rows(Scores(torch.empty(0, 5), torch.empty(0, 5)), torch.empty(0, dtype=torch.long))
    assert [len(getattr(rows, name)) for name in (*NUMBERS, "probabilities")] == [0] * 9


def test_labels_are_asked_for_in_a_sentence():
    rows = Rows(drawn(5, 3)[0], expect=["label_logit"])
    assert len(rows.confidence) == 5
    for name in ("labels", "correct", "nll", "brier"):
        with pytest.raises(NeedsError, match="labels"):
            getattr(rows, name)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_bad_row_is_refused_by_its_number(poison):
    scores, labels = drawn(30, 4)
    scores.logits[17, 2] = poison
    with pytest.raises(InputError, match=r"^Logits of row 117 hold NaN or infinity"):
        _ = Rows(scores, labels, start=100).confidence

    def hide(given):
        return given.replace(given.logits.nan_to_num(0, 0, 0))

    for expect in ([], ["low"]):
        with pytest.raises(InputError, match=r"^Logits of row 17 "):
            _ = Rows(scores, labels, [hide], expect=expect).confidence
    scores, labels = drawn(30, 4)
    scores.zero_shot[3, 0] = poison
    assert torch.isfinite(Rows(scores, labels).confidence).all(), "nobody has read the zero-shot logits"
    with pytest.raises(InputError, match=r"^Zero-shot logits of row 3 hold"):
        _ = Rows(scores, labels).zero_shot_span
    with pytest.raises(InputError, match=r"^Zero-shot logits of row 3 hold"):
        _ = Rows(scores, labels, [halve]).span


def test_a_map_that_breaks_a_row_is_told_apart_from_bad_input():
    scores, labels = drawn(30, 4)
    scores.logits[9] = -1
    with pytest.raises(InputError, match="calibration turned row 9 into NaN"):
        _ = Rows(scores, labels, [lambda given: given.replace(given.logits.sqrt())]).confidence


def test_huge_finite_logits_are_not_called_infinite():
    rows = Rows(Scores(torch.tensor([[3e38, 3e38, 0.0], [1.0, 2.0, 3.0]])))
    assert rows.confidence[0] == 0.5
