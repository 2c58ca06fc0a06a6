"""`quantize`, on `bitwright.quantize`."""

from __future__ import annotations

from typing import Any

import onnx
import onnx_ir as ir

from bitwright.compat.nncf.dataset import Dataset, first_inputs
from bitwright.compat.nncf.parameters import (
    ModelType,
    QuantizationMode,
    QuantizationPreset,
    TargetDevice,
)
from bitwright.compat.nncf.quantization.accuracy_control import quantize_with_accuracy_control
from bitwright.compat.nncf.quantization.advanced_parameters import AdvancedQuantizationParameters
from bitwright.compat.nncf.quantization.translation import Options
from bitwright.compat.nncf.quantization.weight_compression import compress_weights
from bitwright.compat.nncf.scopes import IgnoredScope, naming_the_scope
from bitwright.errors import NothingQuantizedError
from bitwright.graph import load_model
from bitwright.support.wording import warn_user

__all__ = ["compress_weights", "quantize", "quantize_with_accuracy_control"]


def quantize(
    model: Any,
    calibration_dataset: Dataset,
    *,
    mode: QuantizationMode | None = None,
    preset: QuantizationPreset | None = None,
    target_device: TargetDevice = TargetDevice.ANY,
    subset_size: int = 300,
    fast_bias_correction: bool = True,
    model_type: ModelType | None = None,
    ignored_scope: IgnoredScope | None = None,
    advanced_parameters: AdvancedQuantizationParameters | None = None,
) -> onnx.ModelProto:
    """Quantize a model to eight bits with the first items of a dataset, and return it.

    >>> import bitwright, onnx
    >>> from bitwright.compat import nncf
    >>> demo = bitwright.load_demo()
    >>> dataset = nncf.Dataset(demo.calibration[:16], lambda image: {"image": image[None]})
    >>> small = nncf.quantize(onnx.load(demo.model_path), dataset)
    >>> sum(node.op_type == "QuantizeLinear" for node in small.graph.node) > 0
    True
    """
    from bitwright import api

    options = Options.of(locals(), advanced_parameters)
    source = options.source(model)
    try:
        with naming_the_scope(ignored_scope, source):
            result = api.quantize(
                source,
                data=list(first_inputs(calibration_dataset, subset_size)),
                recipe=options.recipe(source),
                holdout=False,  # all items calibrate, as there
                progress=False,
            )
    except NothingQuantizedError as error:
        warn_user(f"the model stays as it is: {error}")
        return ir.to_proto(load_model(source))
    return ir.to_proto(result.model)
