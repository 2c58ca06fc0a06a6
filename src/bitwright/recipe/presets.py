"""The presets of AMD's tools: recipes for its NPU, and in its number formats."""

from __future__ import annotations

from bitwright import targets
from bitwright.numerics.types import INT8, INT16, QTYPES, UINT8, UINT16, QType
from bitwright.recipe.finetuning import AdaRound
from bitwright.recipe.hardware import (
    CrossLayerEqualization,
    Limits,
    Rewrites,
    Simulation,
)
from bitwright.recipe.methods import MinMSE, Percentile
from bitwright.recipe.options import Placement, Selection
from bitwright.recipe.value import Recipe
from bitwright.recipe.weights import Nearest, WeightOnly

__all__ = ["PRESETS", "PRESET_ALIASES", "why_no_preset"]

# Placement as the vendor's compilers expect it: every op of a listed type has its pairs.
_PLACE = Placement(isolated=True, float_bias_add=False)

NPU_CNN = Recipe(
    name="npu-cnn",
    activation=UINT8,
    activation_symmetric=True,
    ranges=MinMSE(symmetric=True),
    weight_ranges=MinMSE(),
    scales="power-of-two",
    bias="weight",
    rewrite=Rewrites(
        batch_norm_to_conv=True,
        reduce_mean_to_pool=True,
        split_large_pools=True,
        split_to_slice=True,
        swish_to_mul=True,
    ),
    simulate=Simulation(),
    limits=Limits(),
    select=Selection(op_types=targets.NPU_CNN.op_types),
    place=Placement(isolated=True, float_bias_add=False, fuse_activations=("Relu", "Clip")),
)


def _integers(
    name: str,
    activation: QType,
    weight: QType,
    *,
    symmetric: bool = False,
) -> Recipe:
    return Recipe(
        name=name,
        activation=activation,
        weight=weight,
        activation_symmetric=symmetric,
        equalize=CrossLayerEqualization(),
        place=_PLACE,
    )


def _accurate(name: str, activation: QType, weight: QType, select: Selection) -> Recipe:
    return Recipe(
        name=name,
        activation=activation,
        weight=weight,
        ranges=Percentile(percentile=99.9999),
        equalize=CrossLayerEqualization(),
        select=select,
        place=_PLACE,
        fine_tune=AdaRound(),
    )


def _floats(name: str, qtype: str) -> Recipe:
    """Float and block types: nothing is calibrated, and a bias is stored like a weight."""
    kind = QTYPES[qtype]
    return Recipe(
        name=name,
        format="extended",
        activation=kind,
        weight=kind,
        bias="weight",
        select=Selection(op_types=targets.NPU_CNN.op_types),
        place=_PLACE,
    )


# Name of the preset -> number type of its weights and activations.
_FLOAT_PRESETS = {
    "fp16": "float16",
    "bf16": "bfloat16",
    "bfp16": "bfp16",
    "mxint8": "mxint8",
    "mxfp8e5m2": "mxfp8e5m2",
    "mxfp8e4m3": "mxfp8e4m3",
    "mxfp6e3m2": "mxfp6e3m2",
    "mxfp6e2m3": "mxfp6e2m3",
    "mxfp4e2m1": "mxfp4e2m1",
    "mx4": "mx4",
    "mx6": "mx6",
    "mx9": "mx9",
}

PRESETS = (
    NPU_CNN,
    Recipe(name="npu-transformer", activation=INT8, place=_PLACE),
    Recipe(name="cpu-cnn", place=_PLACE),
    NPU_CNN.replace(name="xint8", equalize=CrossLayerEqualization()),
    _integers("a8w8", INT8, INT8, symmetric=True),
    _integers("s8s8-aaws", INT8, INT8),
    _integers("u8s8-aaws", UINT8, INT8),
    _integers("u8u8-aawa", UINT8, UINT8),
    _integers("s16s8-asws", INT16, INT8, symmetric=True),
    _integers("u16s8-aaws", UINT16, INT8),
    Recipe(
        name="int16-cnn-default",
        activation=INT16,
        weight=INT16,
        activation_symmetric=True,
        ranges=MinMSE(symmetric=True),
        weight_ranges=MinMSE(),
        scales="power-of-two",
        place=_PLACE,
    ),
    Recipe(
        name="int16-transformer-default",
        activation=INT16,
        weight=INT16,
        activation_symmetric=True,
        place=_PLACE,
    ),
    *(
        _accurate(f"int{weight.bits}-{kind}-accurate", activation, weight, select)
        for activation, weight in ((UINT8, INT8), (UINT16, INT16))
        for kind, select in (
            ("cnn", Selection()),
            ("transformer", Selection(op_types=("Gemm", "MatMul"), constant_weights_only=True)),
        )
    ),
    Recipe(name="uint8-dynamic-quant", mode="dynamic", weight=UINT8),
    Recipe(
        name="matmul-nbits",
        mode="weight-only",
        select=Selection(op_types=("MatMul",)),
        weights=WeightOnly(
            block_size=128, symmetric=True, rounding=Nearest(clip=False), accuracy_level=1
        ),
    ),
    *(_floats(name, qtype) for name, qtype in _FLOAT_PRESETS.items() if qtype in QTYPES),
)

# Other names of the same.
PRESET_ALIASES = {
    "int8-cnn-default": "npu-cnn",
    "int8-transformer-default": "npu-transformer",
}

# What the rest of a preset's name asks for, which no recipe has.
_NOT_YET = {
    "mixed": "give the type of single tensors in `overrides`",
    "weightsonly": "weight-only quantization has recipes of its own",
    "adaround": "only integer weights learn",
    "adaquant": "only integer weights learn",
    "vint8": "use xint8, or a8w8 for float scales",
}


def why_no_preset(name: str) -> str | None:
    """Return why a preset of AMD's tools has no recipe here, or None for an unknown name.

    >>> why_no_preset("bf16-adaquant")
    'only integer weights learn'
    """
    return next((reason for part, reason in _NOT_YET.items() if part in name), None)
