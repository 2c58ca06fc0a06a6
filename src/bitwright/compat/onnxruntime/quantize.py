"""Configurations, and `quantize` that takes one, as in `onnxruntime.quantization.quantize`.

The package has a function of this module's name, as ONNX Runtime's has:
`from bitwright.compat.onnxruntime import quantize` is the function, and
`from bitwright.compat.onnxruntime.quantize import ...` finds the module.
"""

from __future__ import annotations

import inspect
from functools import wraps
from pathlib import Path
from typing import Any

import onnx

from bitwright.compat.onnxruntime.dynamic import quantize_dynamic
from bitwright.compat.onnxruntime.enums import QuantFormat, as_member, with_own_members
from bitwright.compat.onnxruntime.errors import raises_builtins
from bitwright.compat.onnxruntime.matmul_nbits_quantizer import MatMulNBitsQuantizer
from bitwright.compat.onnxruntime.nbits_configs import WeightOnlyQuantConfig
from bitwright.compat.onnxruntime.peer import hand_on, peer
from bitwright.compat.onnxruntime.static import quantize_static
from bitwright.compat.onnxruntime.static_recipe import check_types
from bitwright.compat.options import ignore_unknown

__getattr__, __dir__ = hand_on(__name__)


@raises_builtins()
def quantize(
    model_input: str | Path | onnx.ModelProto, model_output: str | Path, quant_config: Any
) -> None:
    """Quantize a model as a configuration says.

    >>> import tempfile, bitwright
    >>> from bitwright.compat import onnxruntime
    >>> demo = bitwright.load_demo()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     config = onnxruntime.StaticQuantConfig(demo.calibration[:8], per_channel=True)
    ...     quantize(demo.model_path, f"{folder}/q.onnx", config)
    ...     bitwright.inspect(f"{folder}/q.onnx").is_quantized
    True
    """
    if isinstance(quant_config, WeightOnlyQuantConfig):
        quantizer = MatMulNBitsQuantizer(model_input, algo_config=quant_config)
        quantizer.process()
        quantizer.model.save_model_to_file(model_output, use_external_data_format=True)
        return
    configs = peer("quantize")
    is_static = isinstance(quant_config, configs.StaticQuantConfig)
    if not is_static and not isinstance(quant_config, configs.DynamicQuantConfig):
        raise TypeError(
            "Invalid quantization config type: a configuration is a StaticQuantConfig, a "
            "DynamicQuantConfig or a WeightOnlyQuantConfig, "
            f"not a {type(quant_config).__name__}."
        )
    arguments = dict(vars(quant_config))
    if is_static:
        quantize_static(model_input, model_output, **arguments)
    else:
        arguments.pop("activation_type", None)  # measured at run time, whatever it was set to
        quantize_dynamic(model_input, model_output, **arguments)


_CALIBRATION = "symmetric moving_average averaging_constant max_intermediate_outputs percentile"


@wraps(peer("quantize").get_qdq_config, assigned=())  # its signature
def get_qdq_config(*arguments: Any, **options: Any) -> Any:
    """Return a configuration that quantizes every operator of a model, in QDQ format.

    The peer ignores unknown `calibrate_args` in silence, and its lists are in another order in each
    process. `nodes_to_exclude` is a list of names, or a function of (model, node) that says which.

    >>> import bitwright
    >>> demo = bitwright.load_demo()
    >>> config = get_qdq_config(demo.model_path, demo.calibration[:8])
    >>> config.extra_options["ForceQuantizeNoInputCheck"], "Conv" in config.op_types_to_quantize
    (True, True)
    """
    make = peer("quantize").get_qdq_config
    given = inspect.signature(make).bind(*arguments, **options).arguments
    calibration = given.get("calibrate_args") or {}
    known = ignore_unknown(calibration, _CALIBRATION.split(), " in calibrate_args")
    config = make(**{**given, "calibrate_args": known})
    for name in ("op_types_to_quantize", "nodes_to_exclude"):
        if not isinstance(given.get(name), list):
            setattr(config, name, sorted(getattr(config, name)))
    return with_own_members(config)


@raises_builtins()
def check_static_quant_arguments(quant_format: Any, activation_type: Any, weight_type: Any) -> None:
    """Refuse types that do not go together, or not with the format."""
    written = as_member(QuantFormat, quant_format, "quantization format")
    check_types(written, activation_type, weight_type)
