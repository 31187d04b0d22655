from itertools import combinations

import pytest
import torch

from calispan.core.fingerprint import fingerprint
from calispan.core.registry import methods


def test_different_things_have_different_fingerprints(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "b").write_bytes(b"abd")
    things = [
        None, 0, 0.0, False, "", "0", b"0", [], [[]], ["a", "b"], ["ab"], {"a": 1}, {"a": 2}, {"b": 1},
        torch.zeros(2), torch.zeros(2, 1), torch.zeros(2).double(), torch.zeros(2, dtype=torch.int32),
        torch.tensor([0.0, -0.0]), torch.zeros(0), methods.build("zs-lp"), methods.build("zs-lp", lr=0.2),
        methods.build("task-res"), tmp_path / "a", tmp_path / "b",
    ]  # fmt: skip
    marks = [fingerprint(thing) for thing in things]
    for (i, left), (j, right) in combinations(enumerate(marks), 2):
        assert left != right, (things[i], things[j])
    assert fingerprint("a", "b") != fingerprint("ab")


def test_equal_content_has_equal_fingerprints(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "c").write_bytes(b"abc")
    assert fingerprint(tmp_path / "a") == fingerprint(tmp_path / "c")
    rows = torch.randn(3, 4)
    assert fingerprint(rows.T.contiguous().T) == fingerprint(rows)
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint(methods.build("zs-lp")) == fingerprint(methods.build("zs-lp"))


def test_a_fingerprint_is_the_same_on_every_machine():
    assert fingerprint("calispan", 1, torch.arange(3)) == fingerprint("calispan", 1, torch.tensor([0, 1, 2]))
    assert fingerprint("calispan", 1, [2.5, None]) == "9686488101a1fcb1060d05e844f70aff"


def test_objects_without_content_are_refused():
    with pytest.raises(TypeError, match="No fingerprint for a object"):
        fingerprint(object())
