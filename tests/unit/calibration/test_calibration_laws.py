"""Every registered calibration, in every mode it has, meets the public laws."""

import pytest

from calispan.core.registry import calibrators, train_calibrations
from calispan.testing.calibrations import check_calibrator, check_train_calibration

MODES_AFTER = [
    "sals:span=0.25",
    "temperature:fit_on=support",
    "zero-shot-temperature:target=zero-shot",
    "zero-shot-temperature:target=both,fit_on=support",
    "vector:l2=0.01,fit_on=support",
    "histogram:spacing=mass",
    "histogram:mode=one-vs-rest",
    "histogram:mode=one-vs-rest,spacing=mass,bins=10",
    "histogram:bins=1,fit_on=support",
    "isotonic:mode=top-label",
    "isotonic:mode=one-vs-rest,fit_on=support",
]
MODES_DURING = [
    "zs-norm:detach=true",
    "penalty:reduction=sum",
    "ecp:reduction=mean",
    "logit-norm:temperature=1",
    "focal:gamma=0.5",
    "focal:gamma=0",
    "mbls:margin=0",
    "label-smoothing:smoothing=1",
]


@pytest.mark.parametrize("spec", [*calibrators.names(), *MODES_AFTER])
def test_calibrator_meets_the_laws(spec):
    check_calibrator(spec)


@pytest.mark.parametrize("spec", [*train_calibrations.names(), *MODES_DURING])
def test_train_calibration_meets_the_laws(spec):
    check_train_calibration(spec)
