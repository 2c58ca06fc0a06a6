"""Numbers of ONNX Runtime's own quantization tool, beside ours."""

import contextlib
import io

import numpy as np
import onnx
from onnx import TensorProto

from support.models import Reader

INTEGERS = [getattr(TensorProto, n) for n in ("INT8", "UINT8", "INT16", "UINT16", "INT4", "UINT4")]


def same(mine, theirs):
    mine, theirs = np.asarray(mine), np.asarray(theirs)
    assert mine.dtype == theirs.dtype
    assert mine.shape == theirs.shape
    np.testing.assert_array_equal(mine.astype(np.float64), theirs.astype(np.float64))


def calibrate(module, folder, model, method, parts, op_types=None, **options):
    path = folder / "model.onnx"
    onnx.save(model, path)
    with contextlib.redirect_stdout(io.StringIO()):
        calibrator = module.create_calibrator(
            path,
            op_types,
            augmented_model_path=str(folder / "augmented.onnx"),
            calibrate_method=module.CalibrationMethod[method],
            extra_options=options,
        )
        for part in parts:
            calibrator.collect_data(Reader(part))
        return calibrator.compute_data()
