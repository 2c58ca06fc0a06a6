"""`MatMulNBitsQuantizer` and `MatMul4BitsQuantizer` as ONNX Neural Compressor has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from bitwright.compat.neural_compressor.inputs import source_of
from bitwright.compat.neural_compressor.quantization.weight_only_configs import (
    AWQConfig,
    GPTQConfig,
    RTNConfig,
)
from bitwright.errors import RecipeError


@dataclass
class RTNWeightOnlyQuantConfig:
    """Rounding to the nearest."""

    algorithm: ClassVar[str] = "RTN"
    ratios: Mapping[str, float] | None = None
    layer_wise_quant: bool = False


@dataclass
class GPTQWeightOnlyQuantConfig:
    """GPTQ, which needs data."""

    algorithm: ClassVar[str] = "GPTQ"
    calibration_data_reader: Any
    percdamp: float = 0.01
    block_size: int = 128
    actorder: bool = False
    mse: bool = False
    perchannel: bool = True
    layer_wise_quant: bool = False


@dataclass
class AWQWeightOnlyQuantConfig:
    """AWQ, which needs data."""

    algorithm: ClassVar[str] = "AWQ"
    calibration_data_reader: Any
    enable_auto_scale: bool = True
    enable_mse_search: bool = True


_CONFIGS: dict[str, Any] = {"RTN": RTNConfig, "GPTQ": GPTQConfig, "AWQ": AWQConfig}


class MatMulNBitsQuantizer:
    """Stores the constant weights of MatMul in few bits; `model` is then the message.

    >>> import bitwright
    >>> quantizer = MatMulNBitsQuantizer(bitwright.load_demo().model_path, block_size=32)
    >>> quantizer.process()
    >>> quantizer.model.graph.node[-1].op_type
    'MatMulNBits'
    """

    def __init__(
        self,
        model: Any,
        block_size: int = 128,
        is_symmetric: bool = False,
        accuracy_level: int = 0,
        nodes_to_exclude: Sequence[str] | None = None,
        algo_config: Any = None,
        n_bits: int = 4,
        providers: Sequence[str] = ("CPUExecutionProvider",),
        optimization_level: Any = None,  # weights are those of the model, as it is prepared here
    ) -> None:
        self.model = source_of(model)
        self.algo_config = algo_config or RTNWeightOnlyQuantConfig()
        if self.algo_config.algorithm not in _CONFIGS:
            raise RecipeError(
                "Only RTN, GPTQ and AWQ algorithms are supported, but get "
                f"{self.algo_config.algorithm} algorithm; others are recipes of bitwright.quantize."
            )
        given = dict(vars(self.algo_config))
        self._data = given.pop("calibration_data_reader", None)
        self._config = _CONFIGS[self.algo_config.algorithm](
            weight_bits=n_bits,
            weight_group_size=block_size,
            weight_sym=is_symmetric,
            accuracy_level=accuracy_level,
            providers=providers,
            **{name: value for name, value in given.items() if value is not None},
        )
        for name in nodes_to_exclude or ():
            self._config.set_local(name, RTNConfig(weight_dtype="fp32"))

    def process(self) -> None:
        """Quantize."""
        self.model = self._config.quantize(self.model, self._data).model


MatMul4BitsQuantizer = MatMulNBitsQuantizer  # 4 bits are the default
