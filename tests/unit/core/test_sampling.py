import pytest
import torch

from calispan.core.errors import InputError
from calispan.core.sampling import few_shot, folds, generator


def test_the_draw_depends_on_names_and_seed_alone():
    names = [f"img{i:03d}.jpg" for i in range(40)]
    labels = [i % 4 for i in range(40)]
    chosen = {names[i] for i in few_shot(labels, 3, seed=1, names=names)}
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0)).tolist()
    shuffled_names, shuffled_labels = [names[i] for i in order], [labels[i] for i in order]
    again = {shuffled_names[i] for i in few_shot(shuffled_labels, 3, seed=1, names=shuffled_names)}
    assert chosen == again
    assert len(chosen) == 12
    assert chosen != {names[i] for i in few_shot(labels, 3, seed=2, names=names)}


def test_a_class_keeps_its_images_when_others_go():
    names = [f"{i}" for i in range(20)]
    labels = torch.arange(20) % 2
    both = few_shot(labels, 4, seed=0, names=names)
    alone = few_shot(labels[labels == 1], 4, seed=0, names=names[1::2])
    assert [names[i] for i in both[4:]] == [names[1::2][i] for i in alone]


def test_small_classes_give_all_they_have():
    chosen = few_shot([0, 0, 0, 1], 2, seed=0)
    assert len(chosen) == 3
    assert 3 in chosen.tolist()


def test_more_shots_hold_the_fewer():
    labels = torch.arange(60) % 3
    assert set(few_shot(labels, 2, seed=5).tolist()) < set(few_shot(labels, 8, seed=5).tolist())


def test_bad_requests():
    with pytest.raises(InputError, match="wanted 1 or more"):
        few_shot([0], 0, seed=0)
    with pytest.raises(InputError, match="2 names came for 1"):
        few_shot([0], 1, seed=0, names=["a", "b"])


def test_folds_are_even_within_classes():
    labels = torch.arange(5).repeat_interleave(8)
    fold = folds(labels, 4, seed=0)
    for label in range(5):
        assert torch.bincount(fold[labels == label], minlength=4).tolist() == [2] * 4
    assert not torch.equal(fold, folds(labels, 4, seed=1))
    assert torch.bincount(folds(torch.arange(8), 4, seed=0), minlength=4).tolist() == [2] * 4


def test_streams_are_apart_and_repeatable():
    a, b = (torch.rand(3, generator=generator(0, name)) for name in ("a", "b"))
    assert not torch.equal(a, b)
    assert torch.equal(a, torch.rand(3, generator=generator(0, "a")))
