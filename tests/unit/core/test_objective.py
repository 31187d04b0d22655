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


def test_no_calibration_is_the_plain_mean():
    logits, labels = torch.randn(6, 4), torch.randint(4, (6,))
    expected = -logits.log_softmax(-1)[torch.arange(6), labels].mean()
    torch.testing.assert_close(Objective()(cross_entropy, Scores(logits), labels), expected)
