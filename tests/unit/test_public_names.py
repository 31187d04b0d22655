import ast
import subprocess
import sys
from pathlib import Path

import pytest

import calispan

NAMES = set(
    """
    Backbone CalispanError CalispanWarning Calibrator CosineHead Dataset Embeddings Evaluation Evidence Given Head
    InputError Method Metric MetricState MissingExtraError Model Needs NeedsError Objective Problem RecipeError Rows
    ScoreMap Scores StoreError TextTower TrainCalibration Training UnknownNameError calibrate calibrator compare
    confidence_interval evaluate few_shot fingerprint fit keep_argmax load method metric recipe save storable
    train_calibration
    """.split()  # noqa: SIM905
)


def test_the_public_names_are_these():
    assert set(calispan.__all__) == NAMES
    assert set(dir(calispan)) == NAMES | {"__version__"}
    for name in NAMES:
        assert getattr(calispan, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Absent'"):
        _ = calispan.Absent


def test_type_checkers_see_the_same_names():
    tree = ast.parse(Path(calispan.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {(node.module, alias.name, alias.asname) for node in block.body for alias in node.names}
    assert seen == {(home, name, name) for name, home in calispan._HOME_OF.items()}


def test_import_stays_light():
    """Nothing heavy on import; torch and numpy when a name is used, and none of what is heavy or optional."""
    heavy = (
        "matplotlib open_clip torchvision pyarrow transformers ray sklearn scipy pydantic typer rich jinja2 safetensors"
    )
    code = (
        "import sys, calispan; bare = 'torch' in sys.modules; calispan.fit, calispan.evaluate, calispan.compare; "
        f"print(bare, sorted(set('{heavy}'.split()) & set(sys.modules)), 'torch' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "False [] True"


def test_version_is_that_of_the_package():
    assert calispan.__version__.count(".") == 2
