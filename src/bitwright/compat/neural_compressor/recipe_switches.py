"""`recipes`: switches of `fit`, one function for each kind of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import onnx_ir as ir

from bitwright.compat.neural_compressor.op_settings import as_pattern
from bitwright.compat.options import Read, ignore_unknown, read_mapping, read_op_types, read_switch
from bitwright.recipe import Recipe, SmoothQuant
from bitwright.support.notices import warn_user

__all__ = ["apply_switches"]

_CHANGE = Callable[[Recipe, ir.Model, Mapping[str, Any]], Recipe]
_ARGUMENTS = ("rtn_args", "awq_args", "gptq_args")
"""Options of weight-only algorithms, which say nothing of static models."""
_OF_SMOOTHING = ("alpha", "folding")
_LAYERS = ("Conv", "MatMul", "Attention")


def apply_switches(recipe: Recipe, model: ir.Model, given: Any) -> Recipe:
    """Return a static recipe with what the switches ask for; some name nodes of the model.

    >>> import bitwright
    >>> from bitwright.graph import load_model
    >>> model = load_model(bitwright.load_demo().model_path)
    >>> apply_switches(Recipe(), model, {"last_conv_or_matmul_quantization": False}).select.exclude
    ('re:deep_b_conv',)
    """
    known = (*_SWITCHES, *_NOT_HERE, "smooth_quant_args", *_ARGUMENTS)
    switches = ignore_unknown(read_mapping("recipes", given, "switches"), known, " in recipes")
    for name, (usual, why) in _NOT_HERE.items():
        if switches.get(name) not in (None, usual):
            warn_user(f"{name} of recipes is ignored: {why}.")
    for name, change in _SWITCHES.items():
        if switches.get(name) is not None:
            recipe = change(recipe, model, switches)
    return recipe


def _smooth(recipe: Recipe, model: ir.Model, given: Mapping[str, Any]) -> Recipe:
    if not read_switch("smooth_quant", given["smooth_quant"]):
        return recipe
    arguments = read_mapping("smooth_quant_args", given.get("smooth_quant_args"), "arguments")
    for name in arguments:
        if name not in _OF_SMOOTHING:
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
    return recipe.replace(smooth=SmoothQuant(alpha=alpha, folding=folding))


def _correct_biases(recipe: Recipe, model: ir.Model, given: Mapping[str, Any]) -> Recipe:
    on = read_switch("fast_bias_correction", given["fast_bias_correction"])
    return recipe.replace(bias_correction="fast") if on else recipe


def _optimize(recipe: Recipe, model: ir.Model, given: Mapping[str, Any]) -> Recipe:
    level = given["graph_optimization_level"]
    if level in ("ENABLE_EXTENDED", "ENABLE_ALL"):
        warn_user(
            f"graph_optimization_level {level!r} of recipes is ignored: the runtime fuses "
            "operators when it opens the result."
        )
    return recipe.replace(optimize=level != "DISABLE_ALL")


def _placed(option: str, field: str, read: Read = read_switch) -> _CHANGE:
    """Return what sets a field about pairs, which integer operators do without."""

    def change(recipe: Recipe, model: ir.Model, given: Mapping[str, Any]) -> Recipe:
        value = read(option, given[option])
        if value and recipe.output_format.integer_ops:
            warn_user(f"{option} of recipes is ignored: operators in integers have no pairs.")
            return recipe
        return recipe.replace(place={field: value})

    return change


def _without(option: str, nodes: Callable[[ir.Model], Iterable[str]]) -> _CHANGE:
    """Return what leaves nodes out where a switch is off."""

    def change(recipe: Recipe, model: ir.Model, given: Mapping[str, Any]) -> Recipe:
        if read_switch(option, given[option]):
            return recipe
        names = as_pattern(nodes(model))
        return recipe.replace(select={"exclude": (*recipe.select.exclude, *names)})

    return change


def _layers(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph if node.op_type in _LAYERS]


def _first(model: ir.Model) -> list[str]:
    return [node.name or "" for node in _layers(model)[:1]]


def _last(model: ir.Model) -> list[str]:
    return [node.name or "" for node in _layers(model)[-1:]]


def _around(model: ir.Model) -> list[str]:
    """Return the nodes in front of the first layer, and those that no layer lies behind."""
    layers = _layers(model)
    if len(layers) < 2:
        return []
    between = _upstream(layers, until=layers[0])
    return [node.name or "" for node in model.graph if node not in between]


def _upstream(nodes: Iterable[ir.Node], until: ir.Node) -> set[ir.Node]:
    """Return the nodes that lead to some, those included, no further up than to one."""
    found: set[ir.Node] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        found.add(node)
        if node is not until:
            makers = (value.producer() for value in node.inputs if value is not None)
            waiting.extend(maker for maker in makers if maker is not None)
    return found


_SWITCHES: dict[str, _CHANGE] = {
    "smooth_quant": _smooth,
    "fast_bias_correction": _correct_biases,
    "graph_optimization_level": _optimize,
    "first_conv_or_matmul_quantization": _without("first_conv_or_matmul_quantization", _first),
    "last_conv_or_matmul_quantization": _without("last_conv_or_matmul_quantization", _last),
    "pre_post_process_quantization": _without("pre_post_process_quantization", _around),
    "add_qdq_pair_to_weight": _placed("add_qdq_pair_to_weight", "weight_pairs"),
    "dedicated_qdq_pair": _placed("dedicated_qdq_pair", "dedicated_pairs"),
    "optypes_to_exclude_output_quant": _placed(
        "optypes_to_exclude_output_quant", "unquantized_outputs", read_op_types
    ),
}
# What does nothing here, the value with which it asks for nothing, and why.
_NOT_HERE: dict[str, tuple[Any, str]] = {
    "weight_correction": (False, "fast_bias_correction makes up for what rounding adds"),
    "gemm_to_matmul": (False, "the runtime has integer kernels for a Gemm"),
    "layer_wise_quant": (False, "weights are read one after the other in any case"),
    "layer_wise_quant_args": ({}, "weights are read one after the other in any case"),
    "teq_args": ({}, "no ONNX model is quantized by it there, either"),
    "autoround_args": ({}, "no ONNX model is quantized by it there, either"),
}
