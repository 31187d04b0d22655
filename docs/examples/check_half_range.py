"""Run the laws over a calibrator from outside the tree."""

import half_range  # noqa: F401 - importing the file registers it

from calispan.testing import check_calibrator

check_calibrator("half-range")
