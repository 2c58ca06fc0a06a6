"""`quark.onnx.calibration`: readers and methods."""

from bitwright.compat.quark.auto_search import (
    create_calibrator_float_scale as create_calibrator_float_scale,
)
from bitwright.compat.quark.auto_search import (
    create_calibrator_power_of_two as create_calibrator_power_of_two,
)
from bitwright.compat.quark.data_readers import *  # noqa: F403
from bitwright.compat.quark.shared_types import *  # noqa: F403
