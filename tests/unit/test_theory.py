"""The paper's two propositions as properties, with the conditions it leaves out.

Length of a logit vector does not make a confidence; its range does.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calispan.calibration.zero_shot_range import range_map

values = st.floats(0, 100, allow_subnormal=False)
non_negative = st.lists(values, min_size=1, max_size=12).map(lambda row: torch.tensor(row, dtype=torch.float64))
spread = (
    st.lists(st.floats(-5, 5), min_size=2, max_size=12)
    .map(lambda row: torch.tensor(row, dtype=torch.float64))
    .filter(lambda row: logit_range(row) >= 0.1)
)


def logit_range(row):
    return (row.max() - row.min()).item()


def confidence(row):
    return row.softmax(-1).max().item()


def others(row):
    """What the first winner leaves, over what it takes: (1 - c) / c. It does not saturate where c rounds to 1."""
    below = (row - row.max()).exp()
    return below.sum().item() - 1


@given(row=non_negative, shift=st.floats(0.01, 100))
def test_proposition_1_a_longer_vector_is_not_a_surer_one(row, shift):
    longer = row + shift
    assert longer.norm() > row.norm()
    torch.testing.assert_close(longer.softmax(-1), row.softmax(-1), rtol=0, atol=1e-12)
    assert logit_range(longer) == pytest.approx(logit_range(row), abs=1e-12)


def test_proposition_1_holds_at_zero_where_the_printed_proof_breaks():
    # The proof wants 2 a sum(l) > 0, which is false for l = 0; K a^2 > 0 is enough.
    row = torch.zeros(4, dtype=torch.float64)
    assert (row + 0.5).norm().item() == pytest.approx(1.0)


def test_proposition_1_needs_non_negative_logits():
    row = torch.tensor([-2.0, -1.0], dtype=torch.float64)
    assert (row + 1).norm() < row.norm()
    torch.testing.assert_close((row + 1).softmax(-1), row.softmax(-1))


@given(row=spread, scale=st.floats(1.05, 3))
def test_proposition_2_a_wider_range_is_a_surer_prediction(row, scale):
    wider = scale * row
    assert logit_range(wider) == pytest.approx(scale * logit_range(row), rel=1e-12)
    assert logit_range(wider) > logit_range(row)
    assert confidence(wider) > confidence(row)
    assert others(wider) < others(row)


@given(row=spread, winners=st.integers(2, 4), scale=st.floats(1.05, 3))
def test_proposition_2_holds_with_several_winners(row, winners, scale):
    # The printed proof asks every other logit to be smaller; one that is smaller is enough.
    tied = torch.cat([row, row.max().repeat(winners - 1)])
    assert confidence(scale * tied) > confidence(tied)


@given(value=st.floats(-50, 50), classes=st.integers(1, 12), scale=st.floats(1.05, 3))
def test_proposition_2_fails_for_constant_logits(value, classes, scale):
    row = torch.full((classes,), value, dtype=torch.float64)
    assert logit_range(scale * row) == logit_range(row) == 0
    assert confidence(scale * row) == pytest.approx(confidence(row), abs=1e-15)


@given(row=spread, reference=spread, shift=st.floats(-50, 50))
def test_the_range_map_is_a_temperature_of_the_row(row, reference, shift):
    # Softmax ignores where the reference sits: only R / R0 counts.
    zero_shot = reference.new_tensor([reference.min(), reference.max()]).repeat(len(row))[: len(row)]
    mapped = range_map(row[None], zero_shot[None] + shift)[0]
    tempered = row / (logit_range(row) / logit_range(zero_shot))
    torch.testing.assert_close(mapped.softmax(-1), tempered.softmax(-1), rtol=0, atol=1e-9)
