import numpy as np
import pytest
import torch

from calispan.core.errors import InputError
from calispan.core.types import Embeddings, Problem, Scores


def rows(n=4, d=3, **kw):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(1), **kw)


def test_embeddings_become_unit_views_and_remember_lengths():
    raw = rows() * 3
    seen = Embeddings(raw, [0, 1, 0, 1])
    assert seen.views.shape == (4, 1, 3)
    torch.testing.assert_close(seen.features.norm(dim=-1), torch.ones(4))
    torch.testing.assert_close(seen.lengths[:, 0], raw.norm(dim=-1))
    assert Embeddings(torch.nn.functional.normalize(raw, dim=-1)).lengths is None


def test_half_precision_is_upcast_and_double_is_kept():
    half = torch.nn.functional.normalize(rows(), dim=-1).half()
    seen = Embeddings(half)
    assert seen.views.dtype == torch.float32
    assert seen.lengths is None, "rounded unit rows are unit rows"
    assert float((seen.features.norm(dim=-1) - 1).abs().max()) < 1e-6
    assert Embeddings(rows(dtype=torch.float64)).views.dtype == torch.float64
    assert Scores(np.zeros((2, 3), np.float16)).logits.dtype == torch.float32


def test_chosen_rows_keep_their_bits():
    seen = Embeddings(rows(9) * 5, torch.arange(9) % 3, images=list("abcdefghi"))
    part = seen.rows(torch.tensor([7, 2]))
    assert torch.equal(part.views, seen.views[[7, 2]])
    assert part.labels.tolist() == [1, 2]
    assert part.images == ["h", "c"]
    assert torch.equal(part.lengths, seen.lengths[[7, 2]])
    assert seen.rows(torch.arange(9) > 6).images == ["h", "i"]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Embeddings(torch.zeros(2, 3)), "row 0 is zero"),
        (lambda: Embeddings(torch.tensor([[1.0, 2.0], [float("nan"), 1.0]])), "row 1 is zero, NaN"),
        (lambda: Embeddings(torch.ones(3)), "wanted [rows, width]"),
        (lambda: Embeddings(rows(), [0, 1]), "4 rows but 2 labels"),
        (lambda: Embeddings(rows(), torch.eye(4)), "not one-hot"),
        (lambda: Embeddings(rows(), images=["a"]), "4 rows but 1 images"),
        (lambda: Problem(("a", "b"), Embeddings(rows(), [0, 1, 0, 2]), rows(2)), "run from 0 to 2"),
        (lambda: Problem(("a", "b"), Embeddings(rows(), [0, 1, 0, 1]), rows(3)), "shape (3, 3) for 2 classes"),
        (lambda: Problem(("a", "b"), Embeddings(rows(), [0, 1, 0, 1]), rows(2, 5)), "5 wide but the support is 3"),
        (lambda: Problem(("a", "b"), Embeddings(rows()), rows(2)), "no labels"),
        (lambda: Problem(("a", "b"), Embeddings(rows(), [0, 1, 0, 1]), rows(2), logit_scale=0), "logit_scale"),
        (lambda: Problem(("a", "b"), Embeddings(rows(), [0, 1, 0, 1]), torch.zeros(2, 3)), "class 0 ('a')"),
        (lambda: Problem((), Embeddings(rows(), [0, 0, 0, 0]), torch.zeros(0, 3)), "at least one class"),
        (lambda: Scores(rows(), rows(3)), "(3, 3) but the logits are (4, 3)"),
        (lambda: Scores(torch.zeros(3)), "wanted [rows, classes]"),
        (lambda: Scores(rows()).zero_shot, "carry no zero-shot logits"),
        (lambda: Scores(rows()).select([0, 3]), "within 0..2"),
        (lambda: Scores(rows() > 0), "real numbers"),
    ],
)
def test_bad_values_are_told_in_a_sentence(make, said):
    with pytest.raises(InputError, match=None) as caught:
        make()
    assert said in str(caught.value)
    assert str(caught.value).endswith((".", "line."))


def test_zero_shot_handed_over_as_a_function_runs_once_and_only_when_read():
    calls = []

    def compute():
        calls.append(1)
        return torch.zeros(4, 3)

    scores = Scores(rows(), compute)
    assert scores.has_zero_shot
    assert not calls
    assert scores.replace(rows() * 2).zero_shot is not None
    assert torch.equal(scores.zero_shot, scores.zero_shot)
    assert len(calls) == 2  # once for each Scores that was read


def test_select_takes_columns_everywhere():
    views = Scores(torch.randn(4, 2, 3), torch.randn(4, 2, 3))
    scores = Scores(rows(), rows() + 1, views)
    part = scores.select([2, 0])
    assert torch.equal(part.logits, scores.logits[:, [2, 0]])
    assert torch.equal(part.zero_shot, scores.zero_shot[:, [2, 0]])
    assert torch.equal(part.views.logits, views.logits[..., [2, 0]])
    assert torch.equal(scores.rows(slice(1, 3)).views.zero_shot, views.zero_shot[1:3])


def test_zero_shot_of_a_problem():
    problem = Problem(("a", "b"), Embeddings(rows(), [0, 1, 0, 1]), rows(2) * 4, logit_scale=50, logit_bias=-3)
    x = problem.support.features
    expected = 50 * x @ torch.nn.functional.normalize(problem.text, dim=-1).T - 3
    torch.testing.assert_close(problem.zero_shot(x), expected)
