"""The options of quantization as a recipe: preset, kind of model, and advanced parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import onnx
import onnx_ir as ir

from bitwright.compat.nncf.errors import ParameterNotSupportedError, ValidationError
from bitwright.compat.nncf.parameters import (
    BackendParameters,
    ModelType,
    QuantizationMode,
    QuantizationPreset,
    QuantizationScheme,
    TargetDevice,
)
from bitwright.compat.nncf.quantization.advanced_parameters import (
    AdvancedQuantizationParameters,
    FP8QuantizationParameters,
    OverflowFix,
    QuantizationParameters,
)
from bitwright.compat.nncf.quantization.range_estimator import (
    UNREAD_THERE,
    RangeEstimatorParametersSet,
    Role,
    range_method,
)
from bitwright.compat.nncf.scopes import IgnoredScope, selection_of
from bitwright.graph import load_model, normalize
from bitwright.graph.constants import input_at
from bitwright.recipe import Emulation, Override, Recipe, SmoothQuant
from bitwright.support.wording import warn_user

_DEFAULT_DEVICES = (TargetDevice.ANY, TargetDevice.CPU, TargetDevice.CPU_SPR)
_FLOATS = "for eight-bit floats take bitwright.quantize with target='nvidia-tensorrt:fp8'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options that quantization has with accuracy control and without."""

    mode: QuantizationMode | None = None
    preset: QuantizationPreset | None = None
    target_device: TargetDevice = TargetDevice.ANY
    subset_size: int = 300
    fast_bias_correction: bool = True
    model_type: ModelType | None = None
    ignored_scope: IgnoredScope | None = None
    advanced: AdvancedQuantizationParameters = field(default_factory=AdvancedQuantizationParameters)

    @classmethod
    def of(cls, given: Mapping[str, Any], advanced: Any) -> Options:
        """Return the options among the arguments of a function."""
        named = {each.name: given[each.name] for each in fields(cls) if each.name in given}
        return cls(**named, advanced=advanced or AdvancedQuantizationParameters())

    def __post_init__(self) -> None:
        if self.subset_size < 1:
            raise ValidationError(f"subset_size is at least 1, not {self.subset_size}.")
        if self.mode is not None:
            raise ParameterNotSupportedError(
                f"mode {str(self.mode)!r} has no form here; {_FLOATS}."
            )

    def recipe(self, model: Any) -> Recipe:
        """Return the recipe that the options stand for; some of them look at the model."""
        self._warn_of_differences()
        given, fast = self.advanced, self.fast_bias_correction
        off, backend = given.disable_bias_correction, given.backend_params or {}
        symmetric, unsigned = self._activations()
        weight_symmetric, per_channel = self._weights()
        of_activations = Role(
            "activations_range_estimator_params", RangeEstimatorParametersSet.MEAN_MINMAX, symmetric
        )
        option, usual = "weights_range_estimator_params", RangeEstimatorParametersSet.MINMAX
        of_weights = Role(option, usual, weight_symmetric is None, True, per_channel)
        return Recipe(
            name="nncf",
            per_channel=per_channel,
            weight_symmetric=weight_symmetric,
            # Symmetric there is unsigned where nothing is negative.
            activation_symmetric=symmetric and not unsigned,
            ranges=range_method(given.activations_range_estimator_params, of_activations),
            weight_ranges=range_method(given.weights_range_estimator_params, of_weights),
            reduce_range=given.overflow_fix == OverflowFix.ENABLE,
            overrides=self._first_layers(model),
            smooth=self._smooth(),
            bias_correction="off" if off else "fast" if fast else "sequential",
            emulate=Emulation(
                restricted_asymmetric=symmetric and unsigned,
                weight_pairs=not backend.get(BackendParameters.COMPRESS_WEIGHTS, True),
            ),
            select=selection_of(self.ignored_scope),
        )

    def source(self, model: Any) -> Any:
        """Return the model, in a copy with the tensors that it was loaded without."""
        return whole_model(model, self.advanced.backend_params)

    @property
    def _is_transformer(self) -> bool:
        return self.model_type is not None and ModelType(self.model_type) is ModelType.TRANSFORMER

    def _warn_of_differences(self) -> None:
        """Warn of options that do nothing here, or something else."""
        if TargetDevice(self.target_device) not in _DEFAULT_DEVICES:
            _warn_of(
                f"target_device {str(self.target_device)!r}",
                "the model is made for ONNX Runtime, whose kernels are what is measured",
            )
        plain = AdvancedQuantizationParameters()
        for name, why in _WITHOUT_EFFECT.items():
            given = getattr(self.advanced, name)
            if given != getattr(plain, name):
                _warn_of(f"{name} {given}", why)
        if self.advanced.batchwise_statistics is False:
            _warn_of(
                "batchwise_statistics False",
                "what the dataset gives at once counts once; give single items",
            )

    def _activations(self) -> tuple[bool, bool]:
        """Return whether activations are symmetric, and whether what a Relu gives is not."""
        given = _integers("activations", self.advanced.activations_quantization_params)
        where = "of activations_quantization_params"
        if given.per_channel:
            _warn_of(
                f"per_channel {where}",
                "ONNX Runtime's integer kernels take one scale for an activation",
            )
        if given.narrow_range:
            _warn_of(f"narrow_range {where}", _ALL_LEVELS)
        if given.signedness_to_force is False:
            _warn_of(f"signedness_to_force False {where}", _SIGNS)
        usual = "mixed" if self._is_transformer else "performance"
        symmetric = QuantizationPreset(self.preset or usual) is QuantizationPreset.PERFORMANCE
        if given.mode is not None:
            symmetric = _is_symmetric(given)
        return symmetric, given.signedness_to_force is not True

    def _weights(self) -> tuple[bool | None, bool]:
        """Return whether weights are symmetric, None as usual, and whether by channel."""
        given = _integers("weights", self.advanced.weights_quantization_params)
        where = "of weights_quantization_params"
        if given.signedness_to_force is False:
            _warn_of(f"signedness_to_force False {where}", _SIGNS)
        asymmetric = not _is_symmetric(given)
        # Symmetric weights have the same scale in a narrow range, and never the lowest level.
        if asymmetric and given.narrow_range:
            _warn_of(f"narrow_range {where}", _ALL_LEVELS)
        if asymmetric and self.advanced.overflow_fix == OverflowFix.ENABLE:
            raise ValidationError(
                "overflow_fix ENABLE is for symmetric weights; leave out it, or their mode."
            )
        per_channel = given.per_channel is not False
        if asymmetric and per_channel:
            warn_user(
                f"mode ASYMMETRIC {where} leaves weights symmetric: ONNX Runtime's integer kernels "
                "take one zero point for a weight: give per_channel=False, too."
            )
        return (False if asymmetric and not per_channel else None), per_channel

    def _smooth(self) -> SmoothQuant | None:
        alphas, alone = self.advanced.smooth_quant_alphas, self.advanced.smooth_quant_alpha
        if not self._is_transformer:
            return None
        if alphas.convolution >= 0:
            _warn_of(
                "convolution of smooth_quant_alphas", "inputs of matrix products alone are smoothed"
            )
        alpha = alphas.matmul if alone is None else alone
        return SmoothQuant(alpha=alpha) if alpha >= 0 else None

    def _first_layers(self, model: Any) -> dict[str, Override]:
        """Return overrides for the weights that have seven bits where others have eight."""
        if self.advanced.overflow_fix != OverflowFix.FIRST_LAYER:
            return {}
        work = load_model(model)
        normalize(work)
        return {name: Override(reduce_range=True) for name in _first_weights(work)}


def whole_model(model: Any, backend_params: Mapping[str, Any] | None) -> Any:
    """Return a model, in a copy with the tensors that it was loaded without."""
    folder = (backend_params or {}).get(BackendParameters.EXTERNAL_DATA_DIR)
    if folder is None:
        return model
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    onnx.load_external_data_for_model(whole, str(folder))
    return whole


_WITHOUT_EFFECT = {
    "inplace_statistics": UNREAD_THERE,
    "disable_channel_alignment": UNREAD_THERE,
    "quantize_outputs": "outputs are quantized where the kernel that computes them is faster so, "
    "as that of a convolution, and float elsewhere",
    "quantizer_propagation_rule": "a tensor has one quantizer for all its readers",
    "bias_correction_params": "a correction is kept where it lowers the error on samples that it "
    "was not computed from, and all layers but products without a bias are corrected",
}
"""Fields of the advanced parameters that do nothing here, and why."""
_ALL_LEVELS = "zero lies where the range puts it, and all levels are used"
_SIGNS = "weights are int8, and activations uint8 where they can be"


def _warn_of(option: str, why: str) -> None:
    warn_user(f"{option} has no effect: {why}.")


def _integers(what: str, given: Any) -> QuantizationParameters:
    """Return the parameters of eight-bit integers; others have no form here."""
    option = f"{what}_quantization_params"
    if isinstance(given, FP8QuantizationParameters):
        raise ParameterNotSupportedError(
            f"{option} with eight-bit floats has no form here; {_FLOATS}."
        )
    found: QuantizationParameters = given or QuantizationParameters()
    if found.num_bits not in (None, 8):
        raise ParameterNotSupportedError(
            f"num_bits of {option} is 8 for ONNX models, not {found.num_bits}; for others take "
            "bitwright.quantize with the recipe a16w8 or a8w4."
        )
    return found


def _is_symmetric(given: QuantizationParameters) -> bool:
    return QuantizationScheme(given.mode or "symmetric") is QuantizationScheme.SYMMETRIC


def _first_weights(model: ir.Model) -> list[str]:
    """Return the weights of the convolutions that an input reaches through no other one."""
    found: list[str] = []
    seen: set[ir.Node] = set()
    waiting = list(model.graph.inputs)
    while waiting:
        for node, _ in waiting.pop().uses():
            if node in seen:
                continue
            seen.add(node)
            weight = input_at(node, 1) if node.op_type == "Conv" else None
            if weight is not None and weight.is_initializer():
                found.append(weight.name or "")
            else:
                waiting.extend(node.outputs)
    return found
