import math

import pytest
import torch

from calispan.core.errors import InputError, RecipeError
from calispan.core.training import Bank, Training, learning_rate, make_optimizer, minimise, pick_device
from calispan.core.types import Embeddings


def test_warm_up_cosine_is_the_recursion_of_the_protocol():
    """torch's own cosine scheduler, started after one constant epoch, as the reference trainers step it."""
    epochs, base = 50, 0.002
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=base)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
    rates = [1e-5]
    for _ in range(2, epochs + 1):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        cosine.step()
    ours = [learning_rate("warm-up-cosine", base, epoch, epochs) for epoch in range(1, epochs + 1)]
    assert max(abs(a - b) for a, b in zip(ours, rates, strict=True)) < 1e-15
    assert ours[1] == base
    assert ours[-1] == pytest.approx(base * (1 + math.cos(math.pi * 48 / 50)) / 2)
    assert ours[-1] > 0


def test_plain_schedules():
    assert learning_rate("constant", 0.3, 7, 9) == 0.3
    assert learning_rate("cosine", 0.3, 1, 10) == 0.3
    assert learning_rate("cosine", 0.3, 6, 10) == pytest.approx(0.15)


def bank(images, views=1, width=4):
    rows = torch.randn(images, 1 + views if views > 1 else 1, width)
    return Bank.of(Embeddings(rows * 3, torch.arange(images) % 5))


def test_an_epoch_has_the_batches_of_the_image_loader():
    big = bank(1600, views=20)
    assert big.features.shape == (1600 * 21, 4)
    batches = list(big.batches(256, draws=torch.Generator().manual_seed(0)))
    assert [len(rows) for rows in batches] == [256] * 6
    assert len(torch.unique(torch.cat(batches))) == 6 * 256, "rows come without replacement"
    drawn = torch.cat(batches)
    assert int(drawn.max()) > 30000, "and from the whole bank"
    assert int((drawn % 21 == 0).sum()) == 0, "but never the image itself"


def test_fewer_images_than_a_batch_make_one_batch():
    assert [len(rows) for rows in bank(100).batches(256, draws=torch.Generator())] == [100]
    assert [len(rows) for rows in bank(100, views=3).batches(256, draws=torch.Generator())] == [100]


def test_bank_leaves_out_view_zero_where_there_are_others():
    rows = torch.randn(3, 4, 5, dtype=torch.float64) * 2
    support = Embeddings(rows, [2, 0, 1])
    whole = Bank.of(support)
    assert whole.features.data_ptr() == support.views.data_ptr(), "nothing is copied"
    every = whole.every_row()
    torch.testing.assert_close((whole.features * whole.lengths[:, None])[every], rows[:, 1:].reshape(9, 5))
    assert whole.labels[every].tolist() == [2, 2, 2, 0, 0, 0, 1, 1, 1]
    assert sorted(torch.cat([whole.positions(torch.tensor([i])) for i in range(9)]).tolist()) == every.tolist()
    first = whole.first_views()
    torch.testing.assert_close(first.features * first.lengths[:, None], rows[:, 1])
    assert first.labels.tolist() == [2, 0, 1]


def test_minimise_is_momentum_sgd_with_decay():
    target = torch.randn(4, dtype=torch.float64)
    weight = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    recipe = Training(epochs=3, lr=0.05, weight_decay=0.1, schedule="constant")
    seen = []

    def loss_of(features, labels, rows):
        seen.append(rows)
        return (weight - target).square().sum()

    minimise(recipe, [weight], bank(20), loss_of, seed=0)
    w, m = torch.zeros(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    for _ in range(3):
        m = 0.9 * m + 2 * (w - target) + 0.1 * w
        w = w - 0.05 * m
    torch.testing.assert_close(weight.detach(), w)
    assert not torch.equal(seen[0], seen[1]), "every epoch draws a new order"


def test_same_seed_same_batches():
    def orders(seed):
        seen = []
        weight = torch.zeros(1, requires_grad=True)
        minimise(Training(epochs=2), [weight], bank(8), lambda f, y, rows: seen.append(rows) or weight.sum(), seed=seed)
        return torch.cat(seen).tolist()

    assert orders(1) == orders(1) != orders(2)


def test_hooks_run_after_each_epoch():
    weight, epochs = torch.zeros(1, requires_grad=True), []
    minimise(
        Training(epochs=3), [weight], bank(8), lambda *_: weight.sum(), seed=0, after_epoch=lambda: epochs.append(1)
    )
    assert len(epochs) == 3


def test_empty_support_and_bad_recipes_are_refused():
    empty = Bank.of(Embeddings(torch.zeros(0, 1, 4), torch.zeros(0, dtype=torch.long)))
    with pytest.raises(InputError, match="at least one labelled row"):
        minimise(Training(epochs=1), [torch.zeros(1, requires_grad=True)], empty, lambda *_: None, seed=0)
    for bad in ({"epochs": -1}, {"batch_size": 0}, {"momentum": 1.0}, {"lr": -0.1}):
        with pytest.raises(RecipeError):
            Training(**bad)


def test_optimizers_are_torchs_own():
    weight = torch.zeros(2, requires_grad=True)
    assert isinstance(make_optimizer(Training(), [weight]), torch.optim.SGD)
    assert isinstance(make_optimizer(Training(optimizer="adamw"), [weight]), torch.optim.AdamW)
    half = make_optimizer(Training(optimizer="adam"), [weight.detach().half().requires_grad_()])
    assert half.defaults["eps"] == 1e-4


def test_devices():
    assert pick_device("cpu").type == "cpu"
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(InputError, match="no device"):
        pick_device("quantum")
