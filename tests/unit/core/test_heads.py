import torch

from calispan.core.heads import CosineHead, cosine_logits
from calispan.core.types import Embeddings


def test_gradient_agrees_with_finite_differences():
    draws = torch.Generator().manual_seed(0)
    features = torch.randn(3, 5, generator=draws, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(4, 5, generator=draws, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, w: cosine_logits(x, w, 7.0, 0.3), (features, weights))


def test_gradient_of_leading_axes():
    features = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, w: cosine_logits(x, w, 2.0), (features, weights))


def test_head_scores_every_view_with_scale_and_bias():
    rows = Embeddings(torch.randn(3, 2, 5, dtype=torch.float64))
    weights = torch.randn(4, 5, dtype=torch.float64)
    logits = CosineHead(weights, 30.0, -10.0)(rows)
    assert logits.shape == (3, 2, 4)
    for i in range(3):
        for j in range(2):
            for k in range(4):
                x, w = rows.views[i, j], weights[k]
                expected = 30 * float(x @ w) / float(w.norm()) - 10
                assert abs(float(logits[i, j, k]) - expected) < 1e-10
