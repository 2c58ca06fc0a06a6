"""Errors of the weights of a quantized model."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import onnx_ir as ir

from bitwright.assess.comparison.quantized_graph import QuantizedGraph, float_op_type
from bitwright.assess.comparison.units import Units
from bitwright.assess.noise import decibels, signal_and_noise
from bitwright.decide.ops import MATRIX_PRODUCTS
from bitwright.graph.constants import constant_of, float_constant_of
from bitwright.graph.quantized_ops import DEQUANTIZERS

__all__ = ["match_weights", "weight_errors"]

Array = npt.NDArray[Any]


def match_weights(
    float_model: ir.Model, quantized: ir.Model, *, suffix: str = "_quantized"
) -> dict[str, tuple[Array, Array]]:
    """Return name -> (float weight, what its dequantizer gives) for each stored integer weight.

    Weights are matched by name: the integers of `w` are called `w` and the suffix.
    """
    graph = QuantizedGraph(quantized)
    matched: dict[str, tuple[Array, Array]] = {}
    for node in quantized.graph.all_nodes():
        stored = node.inputs[0] if node.inputs else None
        if node.op_type not in DEQUANTIZERS or stored is None or stored.name is None:
            continue
        name = stored.name.removesuffix(suffix)
        original = constant_of(float_model.graph.initializers.get(name))
        restored = None if original is None else graph.weight(node.outputs[0])
        if original is not None and restored is not None and restored.shape == original.shape:
            matched[name] = original, restored
    return matched


def weight_errors(units: Units) -> dict[str, float]:
    """Return float weight -> SQNR in dB of what the quantized model has in its place."""
    errors: dict[str, float] = {}
    for cut in units.cuts:
        main, original = cut.main, cut.float_main
        if main is None or original is None or not _same_op(float_op_type(main), original.op_type):
            continue
        if any(node.op_type == "BatchNormalization" for node in cut.float_nodes):
            continue  # it may be folded into the weight, which then is another
        restored = units.graph.weights_of(main)
        if main.op_type == "MatMulNBits" and original.attributes.get_int("transB", 0) == 1:
            restored = [array.T if array.ndim == 2 else array for array in restored]
        for value in original.inputs:
            weight = float_constant_of(value)
            if value is None or weight is None or weight.ndim < 2 or value.name in errors:
                continue
            same = next((array for array in restored if array.shape == weight.shape), None)
            if same is not None:
                errors[value.name or ""] = decibels(*signal_and_noise([weight], [same]))
    return errors


def _same_op(one: str, other: str) -> bool:
    """Return whether two ops do the same; a Gemm may become a product with a bias of its own."""
    return one == other or {one, other} <= MATRIX_PRODUCTS
