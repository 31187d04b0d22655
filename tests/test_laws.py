"""Every registered plug-in meets the laws of its kind, and every method meets every calibration."""

import pytest

from calispan.core.registry import calibrators, methods, train_calibrations
from calispan.testing.methods import check_method, check_pair


@pytest.mark.parametrize("name", methods.names())
def test_method_laws(name):
    check_method(name)


@pytest.mark.parametrize("method", methods.names())
@pytest.mark.parametrize("during", train_calibrations.names())
def test_method_with_train_calibration(method, during):
    check_pair(method, during=[during])


@pytest.mark.parametrize("method", methods.names())
@pytest.mark.parametrize("after", calibrators.names())
def test_method_with_calibrator(method, after):
    check_pair(method, after=[after])
