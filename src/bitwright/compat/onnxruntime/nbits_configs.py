"""The configurations of `MatMulNBitsQuantizer`, by ONNX Runtime's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bitwright.compat.onnxruntime.enums import QuantFormat, as_member
from bitwright.compat.options import read_op_types
from bitwright.errors import RecipeError, did_you_mean

_AXES = {"MatMul": 0, "Gemm": 0, "Gather": 1}
Axes = Sequence[tuple[str, int]] | Mapping[str, int]


class WeightOnlyQuantConfig:
    """What every configuration has: the algorithm, the format, and which ops are quantized."""

    quant_format: Any
    op_types_to_quantize: Any
    quant_axes: Any = None
    customized_weight_config: Any = None

    def __init__(
        self,
        algorithm: str,
        quant_format: Any,
        op_types_to_quantize: Sequence[str] | None = None,
        quant_axes: Axes | None = None,
        customized_weight_config: Mapping[str, Any] | None = None,
    ) -> None:
        self.quant_format = quant_format
        self.op_types_to_quantize = op_types_to_quantize
        self.quant_axes = quant_axes
        self.customized_weight_config = customized_weight_config
        self._check(algorithm)

    def _check(self, algorithm: str) -> None:
        self.algorithm = algorithm
        self.quant_format = as_member(QuantFormat, self.quant_format, "quant_format")
        op_types = read_op_types("op_types_to_quantize", self.op_types_to_quantize)
        self.op_types_to_quantize = op_types or ("MatMul",)
        for op_type in self.op_types_to_quantize:
            if op_type not in _AXES:
                raise RecipeError(
                    f"op_types_to_quantize: no n-bit form of {op_type!r}."
                    f"{did_you_mean(op_type, _AXES)}"
                )
        self.quant_axes = dict(self.quant_axes or {"MatMul": 0, "Gather": 1})
        for op_type, axis in self.quant_axes.items():
            if _AXES.get(op_type) != axis:
                raise RecipeError(
                    f"quant_axes: blocks of {op_type} run along axis "
                    f"{_AXES.get(op_type, '0 of a MatMul')}, not {axis}."
                )
        self.customized_weight_config = dict(self.customized_weight_config or {})


@dataclass(eq=False, repr=False)
class DefaultWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """Rounding to nearest; what is given here goes before the quantizer's own arguments.

    >>> DefaultWeightOnlyQuantConfig(block_size=32).bits
    4
    """

    block_size: int = 128
    is_symmetric: bool = False
    accuracy_level: int | None = None
    quant_format: Any = QuantFormat.QOperator
    op_types_to_quantize: Sequence[str] | None = None
    quant_axes: Axes | None = None
    bits: int = 4
    channel_wised_quantize: bool = False

    def __post_init__(self) -> None:
        self._check("DEFAULT")


@dataclass(eq=False, repr=False)
class RTNWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """Rounding to nearest, with the bits, blocks and symmetry of the quantizer.

    `ratios` has the part of its range that each weight keeps, by name.
    """

    ratios: Mapping[str, float] | None = None
    quant_format: Any = QuantFormat.QOperator
    op_types_to_quantize: Sequence[str] | None = None
    customized_weight_config: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        self._check("RTN")
        self.ratios = dict(self.ratios or {})


@dataclass(eq=False, repr=False)
class KQuantWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """Rounding to nearest, in ranges that are searched for the least error of each block."""

    ratios: Mapping[str, float] | None = None
    quant_format: Any = QuantFormat.QOperator
    op_types_to_quantize: Sequence[str] | None = None
    customized_weight_config: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        self._check("k_quant")
        if self.ratios:
            raise RecipeError("k_quant searches ranges itself; leave ratios out.")
        self.ratios = {}


@dataclass(eq=False, repr=False)
class GPTQWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """GPTQ, with the bits, blocks and symmetry of the quantizer.

    `block_size` is how many rows are corrected together; the result does not depend on it.
    """

    calibration_data_reader: Any = None
    percdamp: float = 0.01
    block_size: int = 128
    actorder: bool = False
    mse: bool = False
    perchannel: bool = True
    quant_format: Any = QuantFormat.QOperator
    op_types_to_quantize: Sequence[str] | None = None

    def __post_init__(self) -> None:
        self._check("GPTQ")
        if self.block_size < 1:
            raise RecipeError(f"block_size of GPTQ must be at least 1, not {self.block_size}.")


@dataclass(eq=False, repr=False)
class HQQWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """Half-quadratic search for each block's grid; zero points are integers, which are fast.

    `axis` is the one that blocks run along in the transposed weight: 1.
    """

    block_size: int = 128
    bits: int = 4
    axis: int = 1
    quant_format: Any = QuantFormat.QOperator
    op_types_to_quantize: Sequence[str] | None = None
    quant_axes: Axes | None = None

    def __post_init__(self) -> None:
        self._check("HQQ")
        if self.axis != 1:
            raise RecipeError(
                f"blocks of n-bit products run along the inputs: axis 1, not {self.axis}."
            )


class NVAWQWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """NVIDIA's AWQ, which downloads datasets: refused, with what to use instead."""

    def __init__(
        self,
        tokenizer_dir: Any,
        dataset_name: str = "cnn",
        cache_dir: str = "./cache",
        calibration_method: str = "awq_lite",
    ) -> None:
        raise RecipeError(
            "nvidia_awq belongs to NVIDIA's ModelOpt and downloads its data; for AWQ with data of "
            "your own use bitwright.quantize with the recipe 'int4-awq'."
        )

    def get_calib_inputs(self, *arguments: Any, **options: Any) -> Any:
        """Download and return text for calibration; no such configuration can be made here."""
        raise NotImplementedError

    def make_model_input(self, *arguments: Any, **options: Any) -> Any:
        """Return the inputs of a model for tokens; no such configuration can be made here."""
        raise NotImplementedError
