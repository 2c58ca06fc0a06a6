"""`onnx_neural_compressor.quantization.config`: configurations of weight-only algorithms."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self

from bitwright.compat.model_wrapper import ONNXModel
from bitwright.compat.neural_compressor.products import ARGUMENTS, WeightConfig, quantize_products
from bitwright.support.notices import warn_user

__all__ = ["AWQConfig", "GPTQConfig", "RTNConfig", "WeightOnlyConfig", "get_woq_tuning_config"]

_PRODUCTS = ("MatMul",)
_NEVER_EXPANDED = ("providers", "white_list")
_FIELDS = {"blocksize": "block_size"}
"""Arguments of algorithms that a configuration has by another name."""


@dataclass
class WeightOnlyConfig:
    """What the configurations of all algorithms have.

    An argument may be a list of values: the configuration then stands for one with each of them.
    """

    name: ClassVar[str]

    weight_dtype: Any = "int"
    weight_bits: Any = 4
    weight_group_size: Any = 32
    weight_sym: Any = True
    act_dtype: Any = "fp32"
    accuracy_level: Any = 0

    def __post_init__(self) -> None:
        self._local: dict[str, WeightOnlyConfig] = {}

    def set_local(self, operator_name: str, config: WeightOnlyConfig) -> Self:
        """Give the products of a name, or of names that a pattern fits, another configuration."""
        self._local[operator_name] = config
        return self

    def expand(self) -> list[Self]:
        """Return a configuration for each combination of the values in lists, once each."""
        lists = {
            one.name: value if isinstance(value, list) else [value]
            for one in fields(self)
            if one.name not in _NEVER_EXPANDED
            for value in [getattr(self, one.name)]
        }
        made: list[Self] = []
        for values in itertools.product(*lists.values()):
            config = replace(self, **dict(zip(lists, values, strict=True)))
            config._local = dict(self._local)
            if config not in made:
                made.append(config)
        return made

    def quantize(
        self, model: Any, products: Mapping[str, str], data: Any, samples: int = -1
    ) -> ONNXModel:
        """Return a model quantized by it; `products` has op types of products by their names."""
        if getattr(self, "layer_wise_quant", False):
            warn_user(
                "layer_wise_quant is ignored: weights are read one after the other in any case."
            )
        config = {name: self._entry(name, op_type) for name, op_type in products.items()}
        algorithm = self.name.upper()
        given = {name: getattr(self, _FIELDS.get(name, name)) for name in ARGUMENTS[algorithm]}
        return quantize_products(
            model, self._without_last(config), {algorithm: given}, data, samples
        )

    def over(self, config: WeightConfig) -> WeightConfig:
        """Return a `weight_config` in which all that is quantized has this algorithm and groups."""
        own = self._own_entry()
        del own["bits"]
        changed = {name: one if one == "fp32" else {**one, **own} for name, one in config.items()}
        return self._without_last(changed)

    def _entry(self, name: str, op_type: str) -> Any:
        chosen: Sequence[Any] = getattr(self, "white_list", None) or _PRODUCTS
        if tuple(chosen) != _PRODUCTS and not {name, op_type}.intersection(map(str, chosen)):
            return "fp32"
        config: WeightOnlyConfig = self
        for pattern, other in self._local.items():
            if pattern in (name, op_type) or re.fullmatch(pattern, name):
                config = other
        return "fp32" if str(config.weight_dtype).startswith("fp") else config._own_entry()

    def _own_entry(self) -> dict[str, Any]:
        return {
            "bits": self.weight_bits,
            "group_size": self.weight_group_size,
            "scheme": "sym" if self.weight_sym else "asym",
            "algorithm": self.name.upper(),
        }

    def _without_last(self, config: WeightConfig) -> WeightConfig:
        if config and not getattr(self, "quant_last_matmul", True):
            return {**config, [*config][-1]: "fp32"}
        return config


@dataclass
class RTNConfig(WeightOnlyConfig):
    """Rounding to the nearest.

    >>> [config.weight_bits for config in RTNConfig(weight_bits=[4, 8]).expand()]
    [4, 8]
    """

    name: ClassVar[str] = "rtn"
    ratios: Any = field(default_factory=dict)
    providers: Sequence[str] = ("CPUExecutionProvider",)
    layer_wise_quant: Any = False
    quant_last_matmul: Any = True
    white_list: Sequence[Any] = _PRODUCTS


@dataclass
class GPTQConfig(WeightOnlyConfig):
    """GPTQ, which needs data."""

    name: ClassVar[str] = "gptq"
    percdamp: Any = 0.01
    block_size: Any = 128
    actorder: Any = False
    mse: Any = False
    perchannel: Any = True
    providers: Sequence[str] = ("CPUExecutionProvider",)
    layer_wise_quant: Any = False
    quant_last_matmul: Any = True
    white_list: Sequence[Any] = _PRODUCTS


@dataclass
class AWQConfig(WeightOnlyConfig):
    """AWQ, which needs data."""

    name: ClassVar[str] = "awq"
    enable_auto_scale: Any = True
    enable_mse_search: Any = True
    providers: Sequence[str] = ("CPUExecutionProvider",)
    quant_last_matmul: Any = True
    white_list: Sequence[Any] = _PRODUCTS


def get_woq_tuning_config() -> list[WeightOnlyConfig]:
    """Return the configurations that are tried one after the other for language models."""
    return [
        RTNConfig(weight_sym=False),
        GPTQConfig(weight_sym=False),
        GPTQConfig(weight_sym=False, quant_last_matmul=False),
        GPTQConfig(weight_group_size=128, weight_sym=False),
        AWQConfig(weight_sym=False),
    ]
