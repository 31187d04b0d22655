"""What score maps share: views, chunks, the kept winner, rows with a given confidence."""

import math

import pytest
import torch

from calispan.core import score_maps
from calispan.core.contracts import Evidence, Given
from calispan.core.errors import InputError, NeedsError
from calispan.core.evidence import asked_by, labelled, labels_of_loss
from calispan.core.score_maps import keep_argmax, map_logits, map_rows, with_confidence
from calispan.core.types import Scores


def test_map_logits_maps_views_and_leaves_the_zero_shot_side_unread():
    def never():
        raise AssertionError("read")

    views = Scores(torch.randn(4, 3, 5), never)
    out = map_logits(Scores(views.logits[:, 0], never, views), lambda s: 2 * s.logits)
    assert torch.equal(out.logits, 2 * views.logits[:, 0])
    assert torch.equal(out.views.logits, 2 * views.logits)


def test_map_rows_is_the_function_in_float64_in_any_chunk(monkeypatch):
    first, second = torch.randn(2, 3, 7, 5)
    seen = []

    def function(a, b):
        seen.append((a.dtype, len(a)))
        return a.softmax(-1) + b

    whole = map_rows(function, first, second)
    assert whole.dtype == torch.float32
    assert whole.shape == (3, 7, 5)
    assert torch.equal(whole, (first.double().softmax(-1) + second.double()).float())
    monkeypatch.setattr(score_maps, "_CHUNK", 20)
    assert torch.equal(map_rows(function, first, second), whole)
    assert seen == [(torch.float64, 21)] + 5 * [(torch.float64, 4)] + [(torch.float64, 1)]


def test_keep_argmax_mends_lost_winners_and_nothing_else():
    before = torch.tensor([[1.0, 2.0, 0.0], [2.0, 1.0, 2.0], [0.0, 3.0, 3.0]])
    after = torch.tensor([[5.0, 5.0, 0.0], [4.0, 3.0, 4.0], [0.0, 6.0, 6.0]])
    mended = keep_argmax(before, after)
    assert mended[0].tolist() == [5.0, torch.nextafter(torch.tensor(5.0), torch.tensor(6.0)).item(), 0.0]
    assert torch.equal(mended[1:], after[1:])
    assert keep_argmax(before, before) is before


def test_with_confidence_gives_the_winner_its_share():
    logits = torch.tensor([[3.0, 1.0, 0.0], [0.0, 800.0, 1.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    confidence = torch.tensor([0.4, 1.0, 0.0], dtype=torch.float64)
    out = with_confidence(logits, confidence)
    torch.testing.assert_close(out.exp().sum(-1), torch.ones(3, dtype=torch.float64))
    share = math.e / (math.e + 1)
    assert out[0].exp().tolist() == pytest.approx([0.4, 0.6 * share, 0.6 * (1 - share)], abs=1e-12)
    assert out[1].exp().tolist() == pytest.approx([0, 1, 0], abs=2e-9)
    assert out[2].exp().tolist() == pytest.approx([0, 0.5, 0.5], abs=2e-9)
    assert torch.isfinite(out).all()


def test_evidence_is_handed_out_or_asked_for():
    scores, labels = Scores(torch.zeros(2, 3)), torch.tensor([0, 2])
    assert asked_by("held-out") == Evidence.LABELS
    assert asked_by("support") == Evidence.SUPPORT
    assert labelled(Given(held_out=(scores, labels)), "held-out", "it")[0] is scores
    assert labelled(Given(support=(scores, labels)), "support", "it")[0] is scores
    with pytest.raises(NeedsError, match=r"'it' is fitted on labelled held-out scores.*Pass held_out="):
        labelled(Given(support=(scores, labels)), "held-out", "it")
    with pytest.raises(NeedsError, match="'it' with fit_on=support learns from out-of-fold scores"):
        labelled(Given(held_out=(scores, labels)), "support", "it")
    for bad in (torch.tensor([0]), torch.tensor([0, 3]), torch.tensor([-1, 0])):
        with pytest.raises(InputError, match="'it' was given"):
            labelled(Given(held_out=(scores, bad)), "held-out", "it")
    with pytest.raises(NeedsError, match="'it' needs labels"):
        labels_of_loss(None, "it")
