"""Exact sums: the same bits in every order and split, and within 2^-41 a value of the true sum."""

import pickle
from fractions import Fraction
from operator import attrgetter
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calispan.core import exact_sum
from calispan.core.errors import InputError
from calispan.core.exact_sum import ExactSums, RowMean

NUMBERS = st.floats(min_value=-2e9, max_value=2e9, allow_nan=False)


def summed(values, index=None, size=1):
    sums = ExactSums(size)
    sums.add(torch.tensor(values, dtype=torch.float64), None if index is None else torch.tensor(index))
    return sums


@given(st.lists(NUMBERS, min_size=1, max_size=50), st.randoms(use_true_random=False), st.integers(1, 49))
def test_order_and_split_never_show(values, random, cut):
    whole = summed(values)
    shuffled = random.sample(values, len(values))
    first, second = summed(shuffled[:cut] or [0.0]), summed(shuffled[cut:] or [0.0])
    second.merge(first)
    assert torch.equal(second.whole, whole.whole)
    assert torch.equal(second.steps, whole.steps)
    true = sum(map(Fraction, values))
    assert abs(Fraction(int(whole.whole)) + Fraction(int(whole.steps), 2**40) - true) <= Fraction(len(values), 2**41)
    assert whole.total() == pytest.approx(float(true), rel=1e-15, abs=len(values) * 2**-41)


def test_a_float_sum_would_have_shown():
    values = [0.1, 1e9, -1e9, 0.3]
    assert sum(values) != sum(sorted(values))
    assert summed(values).total() == summed(sorted(values)).total() == pytest.approx(0.4, abs=1e-12)


def test_sums_side_by_side():
    values, index = torch.linspace(-3, 5, 1000).double(), torch.arange(1000) % 3
    found = summed(values.tolist(), index.tolist(), size=4).totals()
    wanted = [values[index == part].sum() for part in range(3)] + [0]
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-9)


def test_whole_numbers_and_booleans_stay_whole():
    sums = ExactSums()
    sums.add(torch.tensor([True, False, True]))
    sums.add(torch.tensor([2**50, 1]))
    assert sums.whole.tolist() == [2**50 + 3]
    assert sums.steps.tolist() == [0]


def test_many_rows_are_added_in_parts_that_cannot_overflow(monkeypatch):
    values = torch.full((1000,), 2.0**39 + 0.75)
    at_once = summed(values.tolist())
    monkeypatch.setattr(exact_sum, "_MANY", 7)
    assert summed(values.tolist()).total() == at_once.total() == 1000 * float(values[0])


def test_the_most_rows_added_at_once_fit_an_integer():
    assert exact_sum._MANY * exact_sum._LARGEST < 2**63
    assert exact_sum._MANY * exact_sum._STEPS < 2**63


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 2.0**40, -1e300])
def test_what_cannot_be_summed_is_refused(bad):
    with pytest.raises(InputError, match="cannot be summed exactly"):
        summed([1.0, bad])


def test_the_state_of_a_mean():
    state, other = RowMean(attrgetter("nll")), RowMean(attrgetter("nll"))
    assert state.compute() != state.compute(), "no rows, no mean"
    state.update(Chunk([1.0, 2.0, 6.0]))
    other.update(Chunk([-1.0]))
    other = pickle.loads(pickle.dumps(other))
    other.merge(state)
    assert other.compute() == 2.0
    assert state.compute() == 3.0, "the merged state is left alone"
    terms = state.terms(Chunk([1.0, 3.0]))
    assert terms.tolist() == [[1.0], [3.0]]
    assert state.of_means(terms.mean(dim=0)) == 2.0


class Chunk(SimpleNamespace):
    def __init__(self, nll):
        super().__init__(nll=torch.tensor(nll, dtype=torch.float64))

    def __len__(self):
        return len(self.nll)
