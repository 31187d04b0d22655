import json
import os

import pytest
import torch

from calispan.core import store
from calispan.core.errors import StoreError
from calispan.core.heads import CosineHead


@pytest.fixture
def saved(tmp_path):
    return store.save(CosineHead(torch.randn(4, 3, dtype=torch.float64), 12.5, -1.0), tmp_path / "head", about={"k": 1})


def test_round_trip_is_bit_for_bit(saved):
    back = store.load(saved)
    assert isinstance(back, CosineHead)
    assert back.weights.dtype == torch.float64
    assert (back.logit_scale, back.logit_bias) == (12.5, -1.0)
    again = store.save(back, saved.parent / "again")
    assert torch.equal(store.load(again).weights, back.weights)
    assert json.loads((saved / "card.json").read_text())["about"] == {"k": 1}


def test_saving_over_an_old_value_leaves_one_tensor_file(saved):
    store.save(CosineHead(torch.zeros(2, 2), 1.0), saved)
    assert len(list(saved.glob("tensors-*"))) == 1
    assert torch.equal(store.load(saved).weights, torch.zeros(2, 2))
    assert sorted(p.name.split("-")[0] for p in saved.iterdir()) == ["card.json", "tensors"]


def test_a_save_killed_before_its_card_leaves_the_old_value(saved, monkeypatch):
    before = store.load(saved).weights
    real = os.replace

    def killed(source, target):
        if str(target).endswith("card.json"):
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        store.save(CosineHead(torch.zeros(2, 2), 1.0), saved)
    assert torch.equal(store.load(saved).weights, before)
    assert not list(saved.glob(".*")), "no staged file stays behind"


def edit_card(folder, **changes):
    path = folder / "card.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def flip_a_bit(folder):
    (path,) = folder.glob("tensors-*")
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


def cut_short(folder):
    (path,) = folder.glob("tensors-*")
    path.write_bytes(path.read_bytes()[:-5])


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (flip_a_bit, "not what was saved"),
        (cut_short, "not what was saved"),
        (lambda f: edit_card(f, version=99), "version 99; this program reads version 1"),
        (lambda f: next(f.glob("tensors-*")).unlink(), "is missing"),
        (lambda f: (f / "card.json").unlink(), "does not exist"),
        (lambda f: (f / "card.json").write_text("{"), "cannot be read"),
        (lambda f: (f / "card.json").write_text("[]"), "not written by calispan"),
        (lambda f: edit_card(f, value={"kind": "no-such", "fields": {}}), "no class is stored as 'no-such'"),
        (lambda f: edit_card(f, value={"kind": "cosine-head", "fields": {}}), "does not describe a value"),
        (lambda f: edit_card(f, tensors={}), "lacks"),
    ],
)
def test_damage_is_noticed_and_told(saved, harm, said):
    harm(saved)
    with pytest.raises(StoreError) as caught:
        store.load(saved)
    assert said in str(caught.value)
    assert saved.name in str(caught.value)


def test_what_cannot_be_saved_is_refused(tmp_path):
    with pytest.raises(StoreError, match="lacks @storable"):
        store.save(object(), tmp_path / "x")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="is a file"):
        store.save(CosineHead(torch.zeros(1, 1), 1.0), tmp_path / "file")


def test_one_tensor_in_two_places_is_written_once(tmp_path):
    shared = torch.randn(1000)
    folder = store.save((shared, {"again": shared, "none": None}), tmp_path / "pair")
    (file,) = folder.glob("tensors-*")
    assert file.stat().st_size < 5000
    first, rest = store.load(folder)
    assert torch.equal(first, rest["again"])
    assert rest["none"] is None


def test_two_classes_cannot_share_a_stored_name():
    with pytest.raises(ValueError, match="Two classes"):
        store.storable("cosine-head")(type("Other", (), {"__dataclass_fields__": {}}))
