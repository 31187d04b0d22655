"""The laws every plug-in must keep, public so that plug-ins from outside can be held to them too."""

from calispan.testing.calibrations import check_calibrator as check_calibrator
from calispan.testing.calibrations import check_train_calibration as check_train_calibration
from calispan.testing.methods import check_method as check_method
from calispan.testing.methods import check_pair as check_pair
from calispan.testing.metrics import check_metric as check_metric
from calispan.testing.world import FeatureWorld as FeatureWorld
from calispan.testing.world import feature_world as feature_world
