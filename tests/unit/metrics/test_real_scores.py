"""Real classifiers' outputs give the accuracy and the calibration error they are known for."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from calispan.core.evaluation import evaluate

FOLDER = Path(os.environ.get("CALISPAN_REAL_DATA", Path(__file__).resolve().parents[4] / "shared" / "data"))


def read(name):
    path = FOLDER / name
    if not path.is_file():
        pytest.skip(f"{path} is missing; set CALISPAN_REAL_DATA to the folder of real model outputs")
    return np.load(path)


def percent(logits, labels, error):
    return [100 * value for value in evaluate(logits, labels, metrics=["accuracy", error]).values()]


def near(wanted):
    return pytest.approx(wanted, abs=0.06)  # known to one digit, and not always rounded to the nearest


def test_densenet_on_cifar100():
    data = read("cifar100_densenet.npz")
    logits = torch.from_numpy(data["probabilities"]).double().clamp_min(1e-12).log()
    assert percent(logits, data["labels"], "ece-15") == near([75.4, 14.2])


@pytest.mark.parametrize(("split", "wanted"), [("val", [96.2, 3.1]), ("test", [85.7, 12.4])])
def test_pathmnist_at_home_and_in_another_hospital(split, wanted):
    data = read("pathmnist_shift.npz")
    assert percent(data[f"{split}_logits"], data[f"{split}_labels"], "ece-15") == near(wanted)


@pytest.mark.parametrize(("split", "wanted"), [("heldout", [61.05, 3.22]), ("pets", [67.65, 8.16])])
def test_zero_shot_clip(split, wanted):
    data = read("clip_vitb32_imagenet.npz")
    features, text = (torch.from_numpy(data[name]).float() for name in (f"{split}_x", "text"))
    logits = 100 * torch.nn.functional.normalize(features, dim=1) @ torch.nn.functional.normalize(text, dim=1).T
    assert percent(logits, data[f"{split}_y"], "ece-10") == pytest.approx(wanted, abs=0.006)
