"""Every registered metric under the public laws."""

import pytest

from calispan.core.registry import metrics
from calispan.testing.metrics import check_metric


@pytest.mark.parametrize("name", metrics.names())
def test_laws_of_metrics(name: str) -> None:
    check_metric(name)
