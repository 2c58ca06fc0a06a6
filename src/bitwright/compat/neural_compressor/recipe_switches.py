"""`recipes`: switches of `fit`, in a table for each kind of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import onnx_ir as ir

from bitwright.compat.neural_compressor.op_settings import as_pattern
from bitwright.compat.options import Read, ignore_unknown, read_mapping, read_op_types, read_switch
from bitwright.graph import reach
from bitwright.recipe import Recipe, SmoothQuant
from bitwright.support.wording import warn_user

_ARGUMENTS = ("rtn_args", "awq_args", "gptq_args")
"""Options of weight-only algorithms, which say nothing of static models."""
_LAYERS = ("Conv", "MatMul", "Attention")


def apply_switches(recipe: Recipe, model: ir.Model, given: Any) -> Recipe:
    """Return a static recipe with what the switches ask for; some name nodes of the model."""
    known = (*_CHANGES, *_LEFT_OUT, *_PLACED, *_NOT_HERE, "smooth_quant_args", *_ARGUMENTS)
    switches = ignore_unknown(read_mapping("recipes", given, "switches"), known, " in recipes")
    asked = {name: value for name, value in switches.items() if value is not None}
    for name, (usual, why) in _NOT_HERE.items():
        if asked.get(name, usual) != usual:
            warn_user(f"{name} of recipes is ignored: {why}.")
    for name, change in _CHANGES.items():
        if name in asked:
            recipe = recipe.replace(**change(asked))
    for name, nodes in _LEFT_OUT.items():
        if name in asked and not read_switch(name, asked[name]):
            exclude = (*recipe.select.exclude, *as_pattern(nodes(model)))
            recipe = recipe.replace(select={"exclude": exclude})
    for name, (field, read) in _PLACED.items():
        value = read(name, asked[name]) if name in asked else None
        if value and recipe.output_format.integer_ops:
            warn_user(f"{name} of recipes is ignored: operators in integers have no pairs.")
        elif name in asked:
            section, _, place = field.partition(".")
            recipe = recipe.replace(**{section: {place: value}})
    return recipe


def _smooth(given: Mapping[str, Any]) -> dict[str, Any]:
    if not read_switch("smooth_quant", given["smooth_quant"]):
        return {}
    arguments = read_mapping("smooth_quant_args", given.get("smooth_quant_args"), "arguments")
    for name in arguments:
        if name not in ("alpha", "folding"):
            warn_user(
                f"{name} of smooth_quant_args is ignored: SmoothQuant has no such option here."
            )
    alpha = arguments.get("alpha", 0.5)
    if isinstance(alpha, list | tuple):
        if len(alpha) > 1:
            warn_user(
                "a list of alphas is taken as 'auto': each layer gets the alpha with the least "
                "error."
            )
        alpha = alpha[0] if len(alpha) == 1 else "auto"
    folding = read_switch("folding", arguments.get("folding", True))
    return {"smooth": SmoothQuant(alpha=alpha), "emulate": {"smooth_folding": folding}}


def _correct_biases(given: Mapping[str, Any]) -> dict[str, Any]:
    on = read_switch("fast_bias_correction", given["fast_bias_correction"])
    return {"bias_correction": "fast"} if on else {}


def _optimize(given: Mapping[str, Any]) -> dict[str, Any]:
    level = given["graph_optimization_level"]
    if level in ("ENABLE_EXTENDED", "ENABLE_ALL"):
        warn_user(
            f"graph_optimization_level {level!r} of recipes is ignored: the runtime fuses "
            "operators when it opens the result."
        )
    return {"optimize": level != "DISABLE_ALL"}


def _layers(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph if node.op_type in _LAYERS]


def _around(model: ir.Model) -> list[str]:
    """Return the nodes in front of the first layer, and those that no layer lies behind."""
    layers = _layers(model)
    if len(layers) < 2:
        return []

    def makers(node: ir.Node) -> Iterable[ir.Node]:
        read = () if node is layers[0] else node.inputs
        found = (value.producer() for value in read if value is not None)
        return (maker for maker in found if maker is not None)

    between = reach(layers, makers)
    return [node.name or "" for node in model.graph if node not in between]


_CHANGES: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "smooth_quant": _smooth,
    "fast_bias_correction": _correct_biases,
    "graph_optimization_level": _optimize,
}
"""Switches that change fields of a recipe, and how."""
_LEFT_OUT: dict[str, Callable[[ir.Model], Iterable[str]]] = {
    "first_conv_or_matmul_quantization": lambda model: [n.name or "" for n in _layers(model)[:1]],
    "last_conv_or_matmul_quantization": lambda model: [n.name or "" for n in _layers(model)[-1:]],
    "pre_post_process_quantization": _around,
}
"""Switches that leave nodes out where they are off, and which ones."""
_PLACED: dict[str, tuple[str, Read]] = {
    "add_qdq_pair_to_weight": ("emulate.weight_pairs", read_switch),
    "dedicated_qdq_pair": ("emulate.dedicated_pairs", read_switch),
    "optypes_to_exclude_output_quant": ("place.unquantized_outputs", read_op_types),
}
"""Switches about pairs, which integer operators do without: a field, and how its value is read."""
# What does nothing here, the value with which it asks for nothing, and why.
_NOT_HERE: dict[str, tuple[Any, str]] = {
    "weight_correction": (False, "fast_bias_correction makes up for what rounding adds"),
    "gemm_to_matmul": (False, "the runtime has integer kernels for a Gemm"),
    "layer_wise_quant": (False, "weights are read one after the other in any case"),
    "layer_wise_quant_args": ({}, "weights are read one after the other in any case"),
    "teq_args": ({}, "no ONNX model is quantized by it there, either"),
    "autoround_args": ({}, "no ONNX model is quantized by it there, either"),
}
