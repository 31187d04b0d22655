"""calispan: adapt a CLIP-like model to few labelled images and keep its confidence honest under shift.

import calispan as cs
model = cs.fit(problem, "task-res", during=["zs-norm"], after=["sals"], seed=0)
scores = model(cs.Embeddings(test_features))
cs.evaluate(scores, test_labels)
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

if _TYPE_CHECKING:
    from calispan.core.contracts import Backbone as Backbone
    from calispan.core.contracts import Calibrator as Calibrator
    from calispan.core.contracts import Dataset as Dataset
    from calispan.core.contracts import Evidence as Evidence
    from calispan.core.contracts import Given as Given
    from calispan.core.contracts import Head as Head
    from calispan.core.contracts import Method as Method
    from calispan.core.contracts import Metric as Metric
    from calispan.core.contracts import MetricState as MetricState
    from calispan.core.contracts import Needs as Needs
    from calispan.core.contracts import ScoreMap as ScoreMap
    from calispan.core.contracts import TextTower as TextTower
    from calispan.core.contracts import TrainCalibration as TrainCalibration
    from calispan.core.errors import CalispanError as CalispanError
    from calispan.core.errors import CalispanWarning as CalispanWarning
    from calispan.core.errors import InputError as InputError
    from calispan.core.errors import MissingExtraError as MissingExtraError
    from calispan.core.errors import NeedsError as NeedsError
    from calispan.core.errors import RecipeError as RecipeError
    from calispan.core.errors import StoreError as StoreError
    from calispan.core.errors import UnknownNameError as UnknownNameError
    from calispan.core.evaluation import Evaluation as Evaluation
    from calispan.core.evaluation import evaluate as evaluate
    from calispan.core.fingerprint import fingerprint as fingerprint
    from calispan.core.heads import CosineHead as CosineHead
    from calispan.core.objective import Objective as Objective
    from calispan.core.registry import calibrator as calibrator
    from calispan.core.registry import method as method
    from calispan.core.registry import metric as metric
    from calispan.core.registry import recipe as recipe
    from calispan.core.registry import train_calibration as train_calibration
    from calispan.core.resampling import compare as compare
    from calispan.core.resampling import confidence_interval as confidence_interval
    from calispan.core.rows import Rows as Rows
    from calispan.core.sampling import few_shot as few_shot
    from calispan.core.score_maps import keep_argmax as keep_argmax
    from calispan.core.store import save as save
    from calispan.core.store import storable as storable
    from calispan.core.training import Training as Training
    from calispan.core.types import Embeddings as Embeddings
    from calispan.core.types import Problem as Problem
    from calispan.core.types import Scores as Scores
    from calispan.pipeline import Model as Model
    from calispan.pipeline import calibrate as calibrate
    from calispan.pipeline import fit as fit
    from calispan.pipeline import load as load

__version__ = "0.1.0"

# A name is imported when it is first asked for, so that `calispan --help` need not wait for torch.
_HOMES = {
    "calispan.core.contracts": "Backbone Calibrator Dataset Evidence Given Head Method "
    "Metric MetricState Needs ScoreMap TextTower TrainCalibration",
    "calispan.core.errors": "CalispanError CalispanWarning InputError "
    "MissingExtraError NeedsError RecipeError StoreError UnknownNameError",
    "calispan.core.evaluation": "Evaluation evaluate",
    "calispan.core.fingerprint": "fingerprint",
    "calispan.core.heads": "CosineHead",
    "calispan.core.objective": "Objective",
    "calispan.core.registry": "calibrator method metric recipe train_calibration",
    "calispan.core.resampling": "compare confidence_interval",
    "calispan.core.rows": "Rows",
    "calispan.core.sampling": "few_shot",
    "calispan.core.score_maps": "keep_argmax",
    "calispan.core.store": "save storable",
    "calispan.core.training": "Training",
    "calispan.core.types": "Embeddings Problem Scores",
    "calispan.pipeline": "Model calibrate fit load",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}
__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> _Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'calispan' has no attribute '{name}'")
    value = getattr(_import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
