"""`onnxruntime.quantization.quant_utils`: what is not here is the peer's own.

Models are loaded and raised to an opset by Bitwright's functions, since the peer's write files
beside a model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from bitwright import graph
from bitwright.api import preprocess
from bitwright.compat.onnxruntime.cache import CalibrationCacheEncoder
from bitwright.compat.onnxruntime.enums import QuantFormat as QuantFormat
from bitwright.compat.onnxruntime.enums import QuantizationMode as QuantizationMode
from bitwright.compat.onnxruntime.enums import QuantizedValueType as QuantizedValueType
from bitwright.compat.onnxruntime.enums import QuantType as QuantType
from bitwright.compat.onnxruntime.enums import as_quant_type
from bitwright.compat.onnxruntime.options import translate_options
from bitwright.compat.onnxruntime.peer import hand_on, peer
from bitwright.jobs.opening import upgrade_for
from bitwright.recipe import Recipe
from bitwright.support.files import write_file
from bitwright.support.scratch import ScratchFolder

__getattr__, __dir__ = hand_on(__name__)


def load_model_with_shape_infer(model_path: str | Path | onnx.ModelProto) -> onnx.ModelProto:
    """Return a model, its external data loaded and its shapes inferred; no file is written."""
    model = graph.load_model(model_path)
    graph.infer_shapes(model)
    proto = ir.to_proto(ir.external_data.load_to_model(model))
    peer("quant_utils").add_infer_metadata(proto)
    return proto


def save_and_reload_model_with_shape_infer(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model with its shapes inferred; nothing is saved."""
    return load_model_with_shape_infer(model)


def update_opset_version(
    model: onnx.ModelProto,
    weight_type: Any,
    activation_type: Any = None,
    tensor_quant_overrides: Mapping[str, Any] | None = None,
    block_size: int = 0,
) -> onnx.ModelProto:
    """Return the model at an opset that has these types, converted and not just stamped."""
    options = {"TensorQuantOverrides": tensor_quant_overrides or {}, "BlockSize": block_size}
    parts = translate_options(options)
    parts.recipe["weight"] = as_quant_type(weight_type, "weight type").qtype
    if activation_type is not None:
        kind = as_quant_type(activation_type, "activation type")
        parts.recipe["activation"] = kind.qtype
    loaded = graph.load_model(model)
    return ir.to_proto(upgrade_for(loaded, Recipe(**parts.build()), []))


def get_qrange_for_qType(  # noqa: N802
    qType: int,  # noqa: N803
    reduce_range: bool = False,
    symmetric: bool = False,
) -> int:
    """Return the largest integer of a type minus the least; the peer's difference overflows."""
    low, high = peer("quant_utils").get_qmin_qmax_for_qType(qType, reduce_range, symmetric)
    return int(high) - int(low)


def optimize_model(model_path: str | Path, opt_model_path: str | Path) -> None:
    """Write a model with its constants and batch norms folded, which newer releases lack."""
    preprocess(model_path, opt_model_path, onnx_shapes=False, symbolic_shapes=False)


def write_calibration_table(calibration_cache: Any, dir: str | Path = ".") -> None:
    """Write calibration.json, calibration.flatbuffers and calibration.cache into a folder.

    The last two hold, for TensorRT, the largest magnitude of each tensor, where the peer has the
    larger end: 1 for a range from -5 to 1. `calibration_cache` is a `TensorsData` or its `data`.

    >>> import tempfile
    >>> from bitwright.compat.onnxruntime import CalibrationMethod, TensorsData
    >>> ends = np.array(-8, np.float32), np.array(6, np.float32)
    >>> found = TensorsData(CalibrationMethod.MinMax, {"x": ends})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_calibration_table(found, folder)
    ...     (Path(folder) / "calibration.cache").read_text()
    'x 8.0\\n'
    """
    data = getattr(calibration_cache, "data", calibration_cache)
    mirrored = {}
    for name, found in data.items():
        magnitude = np.array([max(np.max(np.abs(end)) for end in found.range_value)])
        mirrored[name] = peer("calibrate").TensorData(lowest=-magnitude, highest=magnitude)
    with ScratchFolder("table") as scratch:
        peer("quant_utils").write_calibration_table(mirrored, str(scratch.path))
        for name in ("calibration.flatbuffers", "calibration.cache"):
            write_file(Path(dir) / name, (scratch.path / name).read_bytes())
    table = json.dumps(data, cls=CalibrationCacheEncoder)
    write_file(Path(dir) / "calibration.json", table)
