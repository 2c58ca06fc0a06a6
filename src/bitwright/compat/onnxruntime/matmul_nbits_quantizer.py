"""Weights in 2, 4 or 8 bits, by the names of ONNX Runtime's module, and its command."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import onnx

from bitwright.api import quantize
from bitwright.compat.model_wrapper import ONNXModel
from bitwright.compat.neural_compressor import weight_only
from bitwright.compat.neural_compressor.settings import nearest_overrides
from bitwright.compat.neural_compressor.weight_only import gptq_quantize
from bitwright.compat.onnxruntime.commands import make_parser, read_boolean, run_command
from bitwright.compat.onnxruntime.enums import QuantFormat, as_member
from bitwright.compat.onnxruntime.errors import raises_builtins
from bitwright.compat.onnxruntime.nbits_configs import (
    DefaultWeightOnlyQuantConfig,
    GPTQWeightOnlyQuantConfig,
    HQQWeightOnlyQuantConfig,
    KQuantWeightOnlyQuantConfig,
    NVAWQWeightOnlyQuantConfig,
    RTNWeightOnlyQuantConfig,
    WeightOnlyQuantConfig,
)
from bitwright.compat.onnxruntime.nbits_names import name_as_peer
from bitwright.compat.onnxruntime.peer import hand_on
from bitwright.compat.onnxruntime.readers import CalibrationDataReader
from bitwright.compat.options import read_names
from bitwright.errors import DataError, NothingQuantizedError, RecipeError
from bitwright.recipe import GPTQ, HQQ, Nearest, Recipe, RoundingMethod, Selection, WeightOnly
from bitwright.support.wording import warn_user

__all__ = [
    "CalibrationDataReader",
    "DefaultWeightOnlyQuantConfig",
    "DefaultWeightOnlyQuantizer",
    "GPTQWeightOnlyQuantConfig",
    "HQQWeightOnlyQuantConfig",
    "HQQWeightOnlyQuantizer",
    "KQuantWeightOnlyQuantConfig",
    "MatMulNBitsQuantizer",
    "NVAWQWeightOnlyQuantConfig",
    "NVAWQWeightOnlyQuantizer",
    "ONNXModel",
    "QuantFormat",
    "RTNWeightOnlyQuantConfig",
    "WeightOnlyQuantConfig",
    "attribute_to_kwarg",
    "get_initializer",
    "gptq_quantize",
    "is_divisible",
    "main",
    "ort_convert_str_to_bool",
    "parse_args",
    "parse_key_value_pair",
    "rtn_quantize",
    "transpose_packed_int4_matrix",
]

__getattr__, __dir__ = hand_on(__name__)

logger = logging.getLogger(__name__)


class MatMulNBitsQuantizer:
    """Stores the constant weights of MatMul, and of Gemm and Gather on request, in 2 to 8 bits.

    Other than in ONNX Runtime's tool, the given model is not changed, `nodes_to_include` restricts,
    every algorithm takes the bits, blocks and symmetry that are asked for, and a model in which
    nothing is quantized stays as it is with a warning.
    """

    def __init__(
        self,
        model: str | Path | onnx.ModelProto,
        bits: int = 4,
        block_size: int = 128,
        is_symmetric: bool = False,
        accuracy_level: int | None = None,
        nodes_to_exclude: Sequence[str] | None = None,
        nodes_to_include: Sequence[str] | None = None,
        quant_format: Any = QuantFormat.QOperator,
        op_types_to_quantize: Sequence[str] | None = None,
        quant_axes: Any = None,
        channel_wised_quantize: bool = False,
        algo_config: WeightOnlyQuantConfig | None = None,
    ) -> None:
        if algo_config is None:
            algo_config = DefaultWeightOnlyQuantConfig(
                block_size=block_size,
                is_symmetric=is_symmetric,
                accuracy_level=accuracy_level,
                quant_format=quant_format,
                op_types_to_quantize=op_types_to_quantize,
                quant_axes=quant_axes,
                bits=bits,
                channel_wised_quantize=channel_wised_quantize,
            )
        elif not isinstance(algo_config, WeightOnlyQuantConfig):
            raise RecipeError(
                f"algo_config is a configuration of this module, not {type(algo_config).__name__}."
            )
        self.model = ONNXModel(model)
        self.bits = bits
        self.block_size = block_size
        self.is_symmetric = is_symmetric
        self.accuracy_level = accuracy_level
        self.nodes_to_exclude = set(read_names("nodes_to_exclude", nodes_to_exclude))
        self.nodes_to_include = None
        if nodes_to_include is not None:
            self.nodes_to_include = set(read_names("nodes_to_include", nodes_to_include))
        self.algo_config = algo_config
        self._recipe = self._as_recipe()

    @raises_builtins()
    def process(self) -> None:
        """Quantize, and prove that ONNX Runtime takes the result; `model` is then the new one."""
        data = None
        if isinstance(self.algo_config, GPTQWeightOnlyQuantConfig):
            data = self.algo_config.calibration_data_reader
            if data is None:
                raise DataError(
                    "GPTQ rounds for what each layer reads: give GPTQWeightOnlyQuantConfig a "
                    "calibration_data_reader, or any other data."
                )
        try:
            result = quantize(self.model.wrapped, data=data, recipe=self._recipe, holdout=False)
        except NothingQuantizedError as error:
            warn_user(f"the model stays as it is: {error}")
            return
        for name, node in result.plan.nodes.items():
            if not node.quantized:
                logger.debug("%s %r stays float: %s", node.op, name, node.reason)
        name_as_peer(result.model)
        self.model = ONNXModel(result.model, result.plan)

    def int4_quant_algo(self) -> None:
        """Quantize, by whichever algorithm: the same as `process`."""
        self.process()

    def _as_recipe(self) -> Recipe:
        config = self.algo_config
        bits, block_size = self.bits, self.block_size
        symmetric, level = self.is_symmetric, self.accuracy_level
        if isinstance(config, DefaultWeightOnlyQuantConfig):
            bits, symmetric = config.bits, config.is_symmetric
            block_size = -1 if config.channel_wised_quantize else config.block_size
            level = config.accuracy_level if level is None else level
        elif isinstance(config, HQQWeightOnlyQuantConfig):
            bits, block_size = config.bits, config.block_size
        included = self.nodes_to_include
        return Recipe(
            name=f"matmul-nbits-{config.algorithm.lower()}",
            mode="weight-only",
            select=Selection(
                op_types=config.op_types_to_quantize,
                nodes=None if included is None else tuple(sorted(included)),
                exclude=tuple(sorted(self.nodes_to_exclude)),
                unknown_names="warn",
                subgraphs=True,
            ),
            weights=WeightOnly(
                bits=bits,
                block_size=block_size,
                symmetric=symmetric,
                rounding=_rounding(config),
                output="qdq" if config.quant_format is QuantFormat.QDQ else "matmul-nbits",
                accuracy_level=level or None,
                embeddings="Gather" in config.op_types_to_quantize,
                overrides=nearest_overrides(
                    self.model.wrapped,
                    config.customized_weight_config,
                    getattr(config, "ratios", {}),
                ),
            ),
        )


_ROUNDING: dict[type[WeightOnlyQuantConfig], RoundingMethod] = {
    DefaultWeightOnlyQuantConfig: Nearest(clip=False),
    RTNWeightOnlyQuantConfig: Nearest(clip=False),
    KQuantWeightOnlyQuantConfig: Nearest(),
    HQQWeightOnlyQuantConfig: HQQ(),
}


def _rounding(config: WeightOnlyQuantConfig) -> RoundingMethod:
    if isinstance(config, GPTQWeightOnlyQuantConfig):
        return GPTQ(
            damping=config.percdamp,
            act_order=config.actorder,
            clip=config.mse,
            per_column=config.perchannel,
        )
    for kind, method in _ROUNDING.items():
        if isinstance(config, kind):
            return method
    raise RecipeError(f"there is no algorithm {config.algorithm!r}; use DEFAULT, RTN, GPTQ or HQQ.")


# The command ----------------------------------------------------------------------------------


# Defaults are the ones there, dicts and lists included; nothing here ever changes them.
def rtn_quantize(
    model: Any,
    weight_config: Mapping[str, Any] = {},
    num_bits: int = 4,
    group_size: int = 32,
    scheme: str = "asym",
    ratios: Mapping[str, float] = {},
    accuracy_level: int = 0,
    providers: Sequence[str] = ["CPUExecutionProvider"],
    algorithm: str = "k_quant",
) -> ONNXModel:
    """Return the model with weights rounded to the nearest of their groups' values.

    `algorithm="k_quant"` searches the range of each group and has zero points, whatever `scheme`
    says; any other gives what Neural Compressor's function of this name gives, with the same
    arguments.

    >>> import bitwright
    >>> model = rtn_quantize(bitwright.load_demo().model_path, algorithm="rtn")
    >>> model.plan.weights["classify_weight"].bits
    4
    """
    if algorithm != "k_quant":
        return weight_only.rtn_quantize(
            model, weight_config, num_bits, group_size, scheme, ratios, accuracy_level, providers
        )
    quantizer = MatMulNBitsQuantizer(
        model,
        bits=num_bits,
        block_size=group_size,
        accuracy_level=accuracy_level,
        nodes_to_exclude=[name for name, given in weight_config.items() if given == "fp32"],
        algo_config=KQuantWeightOnlyQuantConfig(
            customized_weight_config={k: v for k, v in weight_config.items() if v != "fp32"}
        ),
    )
    quantizer.process()
    return quantizer.model


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = parse_args(arguments)
    return run_command(options, partial(_make_quantizer, options), logger)


def _make_quantizer(options: argparse.Namespace) -> MatMulNBitsQuantizer:
    return MatMulNBitsQuantizer(
        options.input_model,
        bits=options.bits,
        block_size=options.block_size,
        is_symmetric=options.symmetric and options.quant_method != "hqq",
        accuracy_level=options.accuracy_level,
        nodes_to_exclude=options.nodes_to_exclude,
        nodes_to_include=options.nodes_to_include,
        algo_config=_config(options),
    )


def _config(options: argparse.Namespace) -> WeightOnlyQuantConfig:
    common: dict[str, Any] = {
        "quant_format": as_member(QuantFormat, options.quant_format, "quant_format"),
        "op_types_to_quantize": options.op_types_to_quantize,
    }
    makers: dict[str, Callable[[], WeightOnlyQuantConfig]] = {
        "default": lambda: DefaultWeightOnlyQuantConfig(
            options.block_size,
            options.symmetric,
            options.accuracy_level,
            quant_axes=options.quant_axes,
            bits=options.bits,
            **common,
        ),
        "hqq": lambda: HQQWeightOnlyQuantConfig(
            options.block_size, options.bits, quant_axes=options.quant_axes, **common
        ),
        "rtn": lambda: RTNWeightOnlyQuantConfig(**common),
        "k_quant": lambda: KQuantWeightOnlyQuantConfig(**common),
        "gptq": lambda: GPTQWeightOnlyQuantConfig(options.calibration_data, **common),
        "nvidia_awq": lambda: NVAWQWeightOnlyQuantConfig(options.tokenizer_dir),
    }
    return makers[options.quant_method]()


def parse_args(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the flags of a command line, by default of this process."""
    parser = make_parser(
        "matmul_nbits_quantizer", "Store the constant weights of products as low-bit integers."
    )
    add = parser.add_argument
    add("--block_size", type=int, default=32, help="how many weights share a scale")
    ways = ["default", "hqq", "rtn", "k_quant", "gptq", "nvidia_awq"]
    add("--quant_method", default="default", choices=ways, help="how weights are rounded")
    add("--bits", type=int, default=4, help="bits of a weight")
    text = "without zero points; hqq always has them"
    add("--symmetric", type=read_boolean, nargs="?", const=True, default=True, help=text)
    add("--accuracy_level", type=int, help="what products compute in: 0 or 1 float, 4 int8")
    add("--nodes_to_include", nargs="+", help="the only nodes that are quantized")
    add("--quant_format", default="QOperator", choices=["QOperator", "QDQ"], help="n-bit or DQ")
    ops = ["MatMul", "Gemm", "Gather"]
    add("--op_types_to_quantize", nargs="+", choices=ops, help="MatMul if not given")
    add("--quant_axes", type=_as_axis, nargs="+", help="op_type:axis, as in MatMul:0 Gather:1")
    add("--calibration_data", help="for gptq: a file or a folder of arrays")
    for name in ("--calib_dataset_name", "--tokenizer_dir", "--calibration_method", "--cache_dir"):
        add(name, help="for nvidia_awq, which is refused")
    return parser.parse_args(arguments)


def _as_axis(text: str) -> tuple[str, int]:
    op_type, _, axis = text.partition(":")
    if not axis.lstrip("-").isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not op_type:axis")
    return op_type, int(axis)


if __name__ == "__main__":
    raise SystemExit(main())
