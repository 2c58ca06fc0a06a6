"""The steps in a configuration of Quark that make a model easier to quantize, as options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from bitwright.errors import RecipeError, did_you_mean
from bitwright.recipe.emulate import LEARNING_OPS

__all__ = [
    "AdaQuantConfig",
    "AdaRoundConfig",
    "AlgoConfig",
    "AutoMixprecisionConfig",
    "BiasCorrectionConfig",
    "CLEConfig",
    "GPTQConfig",
    "QuarotConfig",
    "SmoothQuantConfig",
]


@dataclass(kw_only=True)
class AlgoConfig:
    """A step that makes a model easier to quantize; its settings can be changed later.

    >>> step = CLEConfig()
    >>> step.cle_steps = 3
    >>> step.cle_step = 3
    Traceback (most recent call last):
    AttributeError: CLEConfig has no setting 'cle_step'. Did you mean 'cle_steps'?
    """

    def __setattr__(self, name: str, value: Any) -> None:
        known = [each.name for each in fields(self)]
        if name not in known:
            hint = did_you_mean(name, known)
            raise AttributeError(f"{type(self).__name__} has no setting {name!r}.{hint}")
        object.__setattr__(self, name, value)

    def options(self) -> dict[str, Any]:
        """Return the same as `extra_options`."""
        return self._options()

    def _options(self) -> dict[str, Any]:
        raise RecipeError(f"{type(self).__name__} in algo_config is not supported.")

    def _by_key(self) -> dict[str, Any]:
        """Return the settings that are given, by the names that options have for them."""
        given = {option_of(each.name): getattr(self, each.name) for each in fields(self)}
        return {key: value for key, value in given.items() if value is not None}


@dataclass(kw_only=True)
class CLEConfig(AlgoConfig):
    """Equalize the channels of consecutive weights."""

    cle_balance_method: str = "max"
    cle_steps: int = 1
    cle_weight_threshold: float = 0.5
    cle_scale_append_bias: bool = True
    cle_scale_use_threshold: bool = True
    cle_total_layer_diff_threshold: float = 1.9e-7

    def _options(self) -> dict[str, Any]:
        return self._by_key()


@dataclass(kw_only=True)
class BiasCorrectionConfig(AlgoConfig):
    """Shift biases by the mean error of their layers' outputs."""

    def _options(self) -> dict[str, Any]:
        return {"BiasCorrection": True}


@dataclass(kw_only=True)
class SmoothQuantConfig(AlgoConfig):
    """Move outliers of activations into the weights that multiply them."""

    alpha: float = 0.5

    def _options(self) -> dict[str, Any]:
        return {"SmoothAlpha": self.alpha}


@dataclass(kw_only=True)
class _FineTuningConfig(AlgoConfig):
    """Settings that both ways of fine-tuning have; each is passed on, or refused."""

    optim_device: str = "cpu"
    infer_device: str = "cpu"
    fixed_seed: int = 1705472343
    data_size: int = 1000000000
    batch_size: int = 1
    num_batches: int = 1
    num_iterations: int = 1000
    learning_rate: float = 0.1
    early_stop: bool = False
    output_index: int = 0
    lr_adjust: tuple[float, float] | None = None
    target_op_type: Sequence[str] = LEARNING_OPS
    selective_update: bool | None = None
    """None: keep what helps on samples that were not learned from, which costs nothing here."""
    update_bias: bool = False
    output_qdq: bool = False
    drop_ratio: float = 1.0
    mem_opt_level: int = 1
    cache_dir: str | None = None
    log_period: int | None = None
    ref_model_path: str | None = None
    dynamic_batch: bool = False
    parallel: bool = False
    reg_param: float | None = None
    beta_range: tuple[float, float] | None = None
    warm_start: float | None = None
    select_max_mem_layer: bool = False
    num_workers: int = 1
    pin_memory: bool = False
    use_gds: bool = False

    def _options(self) -> dict[str, Any]:
        algorithm = "adaquant" if isinstance(self, AdaQuantConfig) else "adaround"
        return {"FastFinetune": {"OptimAlgorithm": algorithm, **self._by_key()}}


_ABBREVIATIONS = "cle lr qdq gds mse npu fp16 fp32 nchw nhwc".split()


def option_of(name: str) -> str:
    """Return the option that an argument stands for: output_qdq -> OutputQDQ."""
    return "".join(
        word.upper() if word in _ABBREVIATIONS else word.capitalize() for word in name.split("_")
    )


@dataclass(kw_only=True)
class AdaRoundConfig(_FineTuningConfig):
    """Learn which weights to round up and which down."""


@dataclass(kw_only=True)
class AdaQuantConfig(_FineTuningConfig):
    """Learn float weights that round well, and biases with `update_bias`."""

    num_iterations: int = 3000
    learning_rate: float = 1e-5


@dataclass(kw_only=True)
class GPTQConfig(AlgoConfig):
    """Round weights by GPTQ: integers beside quantized activations, or low-bit weights alone.

    The latter with `UseMatMulNBits` in `extra_options`. Otherwise types and scales are those of the
    configuration, as they are there.
    """

    bits: int = 8
    block_size: int = 128
    group_size: int = -1
    perc_damp: float = 0.01
    act_order: bool = False
    per_channel: bool = False
    mse: bool = False
    weight_symmetric: bool = True

    def _options(self) -> dict[str, Any]:
        found = self._by_key()
        del found["PerChannel"]  # an argument of the whole model
        return {"UseGPTQ": True, "GPTQParams": found}

    def weight_only_options(self) -> dict[str, Any]:
        """Return the same as `extra_options`, for low-bit weights alone."""
        found = self._by_key()
        stored = {
            "Algorithm": "GPTQ",
            "Bits": found.pop("Bits"),
            "GroupSize": found.pop("GroupSize"),
            "Symmetric": found.pop("WeightSymmetric"),
        }
        return {"MatMulNBitsParams": stored, "GPTQParams": found}


@dataclass(kw_only=True)
class QuarotConfig(AlgoConfig):
    """Rotates weights there; here a configuration with it is refused.

    >>> QuarotConfig().options()
    Traceback (most recent call last):
    bitwright.errors.RecipeError: QuarotConfig is not supported: there is no rotation of weights.
    """

    r_matrix_dim: int = 4096
    use_random_had: bool = False
    r_config_path: str = ""

    def _options(self) -> dict[str, Any]:
        raise RecipeError("QuarotConfig is not supported: there is no rotation of weights.")


_MIXED_OP_TYPES = ("Conv", "ConvTranspose", "Gemm", "MatMul")


@dataclass
class AutoMixprecisionConfig(AlgoConfig):
    """Other types for some layers, as many as a metric allows; all candidates without a threshold.

    `target_layer_config` is one configuration for all of them, one for lists of names (an empty
    list for those in no other), or a list, of which each layer gets the one that loses least.
    `metric_threshold` is 0 for all candidates, None for none, and else what the distance of the
    outputs from float's may be: with `metric_optimize_object` "speed", the default, layers are
    added as long as it is within that, with "quality" until it is.

    >>> AutoMixprecisionConfig(metric_threshold=0.1).options()
    Traceback (most recent call last):
    bitwright.errors.RecipeError: AutoMixprecisionConfig needs target_layer_config: the other types.
    """

    settings: dict[str, Any] = field(default_factory=dict)

    def __init__(self, target_layer_config: Any = None, **settings: Any) -> None:
        given = {} if target_layer_config is None else {"target_layer_config": target_layer_config}
        self.settings = {**given, **settings.get("settings", settings)}

    @property
    def searches(self) -> bool:
        """Whether the layers take a search: not all candidates get the one configuration."""
        several = isinstance(self.settings.get("target_layer_config"), list | tuple)
        return several or self.settings.get("metric_threshold", 0) != 0

    def _options(self) -> dict[str, Any]:
        # Layers need no options.
        if self.settings.get("target_layer_config") in (None, [], ()):
            raise RecipeError("AutoMixprecisionConfig needs target_layer_config: the other types.")
        for name, usual in _NOT_HERE.items():
            if self.settings.get(name, usual) != usual:
                raise RecipeError(
                    f"AutoMixprecisionConfig has no {name} here; leave it out, and name the layers "
                    "in include_layers."
                )
        return {}

    def choices(self, candidates: Mapping[str, str]) -> dict[str, list[Any]]:
        """Return the configurations for each layer; `candidates` are names and op types."""
        target = self.settings["target_layer_config"]
        if isinstance(target, list | tuple):
            return {name: list(target) for name in self._names(candidates)}
        return {name: [layer] for layer, names in self.layers(candidates).items() for name in names}

    def only(self, layers: Mapping[Any, Sequence[str]]) -> AutoMixprecisionConfig:
        """Return the step that gives these layers their configurations, without a search."""
        names = [name for chosen in layers.values() for name in chosen]
        settings = {k: v for k, v in self.settings.items() if not k.startswith("metric_")}
        return AutoMixprecisionConfig(
            **{**settings, "target_layer_config": dict(layers), "include_layers": names}
        )

    def layers(self, candidates: Mapping[str, str]) -> dict[Any, list[str]]:
        """Return the layers of each configuration; `candidates` are names and op types of nodes."""
        names = self._names(candidates)
        target = self.settings["target_layer_config"]
        if not isinstance(target, Mapping):
            return {target: names}
        listed = {name for given in target.values() for name in given}
        return {
            layer: [name for name in names if (name in given if given else name not in listed)]
            for layer, given in target.items()
        }

    def _names(self, candidates: Mapping[str, str]) -> list[str]:
        types = self.settings.get("target_op_type", _MIXED_OP_TYPES)
        include = self.settings.get("include_layers") or list(candidates)
        exclude = self.settings.get("exclude_layers") or ()
        return [
            name
            for name, op_type in candidates.items()
            if op_type in types and name in include and name not in exclude
        ]


_NOT_HERE = {
    "subgraph_json": None,
    "sensitivity_cache_file": None,
    "dual_quant_nodes": False,
    "no_input_qdq_shared": False,
    "shared_param_mode": "propagate",
}
"""Settings that change what comes out there, and their defaults."""
