import subprocess
import sys

import calispan

NAMES = set(
    """
    Backbone CalispanError CalispanWarning Calibrator CosineHead Dataset Embeddings Evaluation Evidence Given Head
    InputError Method Metric MetricState MissingExtraError Model Needs NeedsError Objective Problem RecipeError Rows
    ScoreMap Scores StoreError TextTower TrainCalibration Training UnknownNameError calibrate calibrator compare
    confidence_interval evaluate few_shot fingerprint fit keep_argmax load method metric recipe save storable train_calibration
    """.split()  # noqa: SIM905
)


def test_the_public_names_are_these():
    modules = {
        "core",
        "methods",
        "calibration",
        "metrics",
        "pipeline",
        "testing",
        "cli",
        "report",
        "datasets",
        "backbones",
    }
    public = {name for name in vars(calispan) if not name.startswith("_")} - modules
    assert public == NAMES


def test_import_stays_light():
    """torch and numpy, and none of what is heavy or optional."""
    heavy = (
        "matplotlib open_clip torchvision pyarrow transformers ray sklearn scipy pydantic typer rich jinja2 safetensors"
    )
    code = f"import sys, calispan; print(sorted(set('{heavy}'.split()) & set(sys.modules)), 'torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[] True"


def test_version_is_that_of_the_package():
    assert calispan.__version__.count(".") == 2
