"""`ModelQuantizer`: quantizes models as a configuration says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx

from bitwright.api import quantize
from bitwright.compat.quark.config import Config, QConfig, QuantizationConfig
from bitwright.compat.quark.layers import flatten
from bitwright.compat.vai_q_onnx.enums import read_type
from bitwright.compat.vai_q_onnx.static import quantize_static, read_subgraphs
from bitwright.errors import DataError, RecipeError
from bitwright.recipe import Recipe, Selection

__all__ = ["ModelQuantizer"]


class ModelQuantizer:
    """Quantizes models as a configuration of Quark says.

    >>> import bitwright
    >>> from bitwright.compat.quark import ModelQuantizer, QConfig
    >>> demo = bitwright.load_demo()
    >>> quantizer = ModelQuantizer(QConfig.get_default_config("U8S8_AAWS"))
    >>> quantizer.config.print_summary = False
    >>> model = quantizer.quantize_model(
    ...     demo.model_path, calibration_data_reader=demo.calibration[:8]
    ... )
    >>> bitwright.inspect(model).is_quantized
    True
    """

    def __init__(self, config: Config | QConfig) -> None:
        if not isinstance(config, Config | QConfig):
            raise RecipeError(
                f"a configuration is a Config or a QConfig, not a {type(config).__name__}; "
                "wrap a QuantizationConfig as Config(global_quant_config=...)."
            )
        self._layered = config if isinstance(config, QConfig) else None
        self.config = (
            config.global_quant_config if isinstance(config, Config) else QuantizationConfig()
        )

    def quantize_model(
        self,
        model_input: str | Path | onnx.ModelProto,
        model_output: str | Path | None = None,
        calibration_data_reader: Any = None,
        calibration_data_path: str | Path | None = None,
    ) -> onnx.ModelProto | None:
        """Quantize a model; it is written to `model_output`, or returned where there is none."""
        config = self.config
        if self._layered is not None:
            config = flatten(self._layered, _skeleton(model_input))
        if config.use_dynamic_quant:
            return _quantize_dynamic(config, model_input, model_output)
        has_data = calibration_data_reader is not None or calibration_data_path is not None
        if _needs_data(config) and not has_data and not config.extra_options.get("UseRandomData"):
            raise DataError(
                "quantize_model needs a calibration_data_reader or a calibration_data_path; set "
                "extra_options['UseRandomData'] to try things out with random data."
            )
        return quantize_static(
            model_input,
            model_output,
            calibration_data_reader,
            calibration_data_path=calibration_data_path,
            **config.arguments(),
        )


def _needs_data(config: QuantizationConfig) -> bool:
    if config.extra_options.get("UseMatMulNBits"):  # of which only GPTQ looks at data
        return (config.extra_options.get("MatMulNBitsParams") or {}).get("Algorithm") == "GPTQ"
    return read_type(config.activation_type, "activation type").needs_range


def _skeleton(model: str | Path | onnx.ModelProto) -> onnx.ModelProto:
    if isinstance(model, onnx.ModelProto):
        return model
    return onnx.load(str(model), load_external_data=False)


def _quantize_dynamic(
    config: QuantizationConfig,
    model: str | Path | onnx.ModelProto,
    output: str | Path | None,
) -> onnx.ModelProto | None:
    """Store weights as integers; what is about activations has no meaning here."""
    if config.extra_options:
        raise RecipeError(
            f"option {next(iter(config.extra_options))!r} has no effect in a dynamic model; "
            "leave it out."
        )
    result = quantize(
        model,
        output,
        recipe=Recipe(
            name="quark-dynamic",
            mode="dynamic",
            weight=read_type(config.weight_type, "weight type"),
            per_channel=config.per_channel,
            reduce_range=config.reduce_range,
            optimize=config.optimize_model,
            select=Selection(
                op_types=tuple(config.op_types_to_quantize) or None,
                nodes=tuple(config.nodes_to_quantize) or None,
                exclude=tuple(config.nodes_to_exclude),
                exclude_between=read_subgraphs(config.subgraphs_to_exclude),
            ),
        ),
        external_data=True if config.use_external_data_format else None,
        providers=config.execution_providers,
    )
    if config.print_summary:
        print(result.summary())
    return result.to_proto() if output is None else None
