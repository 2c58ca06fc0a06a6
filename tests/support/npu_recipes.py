"""The recipe that tests about NPU placement and limits start from, spelled out."""

from __future__ import annotations

from bitwright.numerics.types import INT8
from bitwright.recipe import Limits, MinMSE, Placement, Recipe, Selection
from bitwright.targets import NPU_CNN


def npu_recipe(*, op_types=NPU_CNN.op_types, place=None, emulate=None, **fields):
    """Return a recipe as the NPU wants it; `place` and `emulate` change single fields."""
    placement = {
        "isolated": True,
        "force_shared": True,
        "float_bias_add": False,
        "fuse_activations": ("Relu", "Clip", "LeakyRelu", "PRelu"),
        **(place or {}),
    }
    return Recipe(
        **{
            "name": "npu test",
            "activation": INT8,
            "activation_symmetric": True,
            "ranges": MinMSE(),
            "weight_ranges": MinMSE(),
            "scales": "power-of-two",
            "bias": "weight",
            "limits": Limits(),
            "select": Selection(op_types=op_types),
            "place": Placement(**placement),
            "emulate": {"keep_activations": True, **(emulate or {})},
            **fields,
        }
    )
