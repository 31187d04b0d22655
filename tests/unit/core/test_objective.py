import torch

from calispan.core.objective import Objective, cross_entropy
from calispan.core.types import Scores


class Doubles:
    def reshape(self, scores):
        return scores.replace(scores.logits * 2)

    def penalty(self, scores, labels):
        return scores.logits.amax(dim=(-1, -2))


def test_calibrations_see_what_those_before_them_left():
    logits, labels = torch.randn(3, 4, dtype=torch.float64), torch.tensor([0, 1, 2])
    loss = Objective((Doubles(), Doubles()))(cross_entropy, Scores(logits), labels)
    expected = cross_entropy(logits * 4, labels) + logits.max() + (2 * logits).max()
    torch.testing.assert_close(loss, expected)


def test_leading_axes_are_other_problems():
    logits = torch.randn(5, 3, 4, dtype=torch.float64)
    labels = torch.randint(4, (5, 3))
    together = Objective((Doubles(),))(cross_entropy, Scores(logits), labels)
    alone = [Objective((Doubles(),))(cross_entropy, Scores(rows), y) for rows, y in zip(logits, labels, strict=True)]
    torch.testing.assert_close(together, torch.stack(alone))


def test_cross_entropy_is_the_librarys_with_its_gradient():
    draws = torch.Generator().manual_seed(3)
    for scale in (1, 30, 1e4):  # at 1e4 the label's probability is zero in floating point, its loss is not
        logits = (scale * torch.randn(4, 6, 5, generator=draws, dtype=torch.float64)).requires_grad_()
        labels = torch.randint(5, (4, 6), generator=draws)
        weights = torch.rand(4, generator=draws, dtype=torch.float64)
        ours = cross_entropy(logits, labels)
        theirs = torch.nn.functional.cross_entropy(logits.mT, labels, reduction="none").mean(dim=-1)
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
        (one,) = torch.autograd.grad((weights * ours).sum(), logits)
        (other,) = torch.autograd.grad((weights * theirs).sum(), logits)
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    flat = torch.zeros(3, 1, requires_grad=True)
    cross_entropy(flat, torch.zeros(3, dtype=torch.long)).backward()
    assert float(flat.grad.abs().max()) == 0


def test_no_calibration_is_the_plain_mean():
    logits, labels = torch.randn(6, 4), torch.randint(4, (6,))
    expected = -logits.log_softmax(-1)[torch.arange(6), labels].mean()
    torch.testing.assert_close(Objective()(cross_entropy, Scores(logits), labels), expected)
