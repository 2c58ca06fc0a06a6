"""`onnx_neural_compressor.quantization.config`: configurations of algorithms.

Those of static and dynamic models, which are in `post_training.py`, have the same base.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self

from bitwright.compat.model_wrapper import ONNXModel
from bitwright.compat.neural_compressor.products import (
    ARGUMENTS,
    WeightConfig,
    product_types,
    quantize_products,
)
from bitwright.support.wording import warn_user

_PRODUCTS = ("MatMul",)
_FIELDS = {"blocksize": "block_size"}
"""Arguments of algorithms that a configuration has by another name."""


class BaseConfig:
    """What the configurations of all algorithms have.

    An argument may be a list of values: the configuration then stands for one with each of them.
    """

    name: ClassVar[str]
    expanded: ClassVar[Sequence[str]]
    """The arguments that may be lists of values, the one that changes first first."""

    def __post_init__(self) -> None:
        self._local: dict[str, Any] = {}

    @property
    def local_config(self) -> dict[str, Any]:
        """What was set for op types and names."""
        return self._local

    def set_local(self, operator_name: str, config: Any) -> Self:
        """Give the operators of a name, or of names that a pattern fits, another configuration."""
        self._local[operator_name] = config
        return self

    def __add__(self, other: Self) -> Self:
        if type(other) is not type(self):
            return NotImplemented
        self._local.update(other._local)
        return self

    def expand(self) -> list[Self]:
        """Return a configuration for each combination of the values in lists, once each."""
        given = {name: getattr(self, name, None) for name in reversed(self.expanded)}
        lists = {name: value for name, value in given.items() if isinstance(value, list)}
        made: list[Self] = []
        for values in itertools.product(*lists.values()):
            config = replace(self, **dict(zip(lists, values, strict=True)))  # type: ignore[type-var]
            config._local = dict(self._local)
            if config not in made:
                made.append(config)
        return made

    def get_init_args(self) -> dict[str, Any]:
        """Return the arguments."""
        names = [one.name for one in fields(self)]  # type: ignore[arg-type]
        return {name: getattr(self, name) for name in names if name != "white_list"}

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments, and what was set for single operators, as plain data."""
        local = {name: config.to_dict() for name, config in self._local.items()}
        return {"local": local, "global": self.get_init_args()} if local else self.get_init_args()

    @classmethod
    def from_dict(cls, config_dict: Mapping[str, Any]) -> Self:
        """Return the configuration that `to_dict` wrote."""
        plain = not {"global", "local"} & config_dict.keys()
        made = cls(**(config_dict if plain else config_dict.get("global", {})))
        for name, given in ({} if plain else config_dict.get("local", {})).items():
            made.set_local(name, cls(**given))
        return made

    def quantize(self, model: Any, data: Any = None, samples: int = -1) -> ONNXModel:
        """Return a model quantized by it."""
        raise NotImplementedError


@dataclass
class WeightOnlyConfig(BaseConfig):
    """What the configurations of weight-only algorithms have."""

    expanded: ClassVar[Sequence[str]] = (
        *("weight_dtype", "weight_bits", "weight_group_size", "weight_sym", "act_dtype"),
        *("accuracy_level", "percdamp", "block_size", "actorder", "mse", "perchannel"),
        *("enable_auto_scale", "enable_mse_search", "layer_wise_quant", "quant_last_matmul"),
    )
    weight_dtype: Any = "int"
    weight_bits: Any = 4
    weight_group_size: Any = 32
    weight_sym: Any = True
    act_dtype: Any = "fp32"
    accuracy_level: Any = 0

    def quantize(self, model: Any, data: Any = None, samples: int = -1) -> ONNXModel:
        """Return a model with its products quantized by it."""
        if getattr(self, "layer_wise_quant", False):
            warn_user(
                "layer_wise_quant is ignored: weights are read one after the other in any case."
            )
        products = product_types(model)
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


get_default_rtn_config, get_default_gptq_config = RTNConfig, GPTQConfig
get_default_awq_config = AWQConfig


def get_woq_tuning_config() -> list[WeightOnlyConfig]:
    """Return the configurations that are tried one after the other for language models."""
    return [
        RTNConfig(weight_sym=False),
        GPTQConfig(weight_sym=False),
        GPTQConfig(weight_sym=False, quant_last_matmul=False),
        GPTQConfig(weight_group_size=128, weight_sym=False),
        AWQConfig(weight_sym=False),
    ]
