"""What single quantized tensors have to be beside their type: scales, readers, form, opset."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bitwright.decide.ops import OPERATORS
from bitwright.decide.ops.quantized_view import Breach, QuantizedView, readers_of
from bitwright.graph import QUANTIZERS, Quantizer, constant_of, input_at, name_of
from bitwright.recipe import Recipe, writes_signed
from bitwright.support.array_types import Array
from bitwright.targets.target import TypeName
from bitwright.verification.rules.encodings import shares_weight_type
from bitwright.verification.rules.rule import Ask, Breaches, Changes, Rule


class Tensors(Rule, frozen=True, kw_only=True):
    """What quantized tensors, of some types or of any, have to be.

    * `positive_scales`: scales of constants are above zero, as those of activations are everywhere;
    * `channel_axis`: scales of channels lie along the output channels of who reads the weight;
    * `written_axis`: pairs with several scales say their axis, also where it is ONNX's default;
    * `stored_weights`: weights of these types are stored as such, not quantized in the model;
    * `transposed_weights`: weights of these types are stored as (outputs, inputs);
    * `whole_units`: weights of these types are read beside quantized activations only;
    * `unmixed_types`: a model has activations of one of these types, and not of several;
    * `no_output_type`: quantizers of these types have no attribute `output_dtype`;
    * `one_reader`: quantized activations of these types have just one reader;
    * `opset_of_types`: a model with values of these types has this `opset` at least;
    * `opset_range`: the opset of the model lies between `low` and `high`.
    """

    types: tuple[TypeName, ...] = ()
    opset: int | None = None
    low: int | None = None
    high: int | None = None


def _negative_scales(rule: Tensors, view: QuantizedView) -> Iterator[Breach]:
    allowed = "scales above zero"
    for quantizer in view.found.values():
        if quantizer.scale is None or not view.is_of_constant(quantizer):
            continue
        if np.any(quantizer.scale < 0):
            yield view.breach(quantizer, _negative(quantizer.scale), allowed)
    for node in view.of_types(("MatMulNBits",)):
        scale = constant_of(input_at(node, 2))
        if scale is not None and np.any(scale < 0):
            yield Breach(name_of(node), _negative(scale), allowed)


def _negative(scale: Array) -> str:
    return f"{np.count_nonzero(scale < 0)} of {scale.size} scales are negative"


def _other_axes(rule: Tensors, view: QuantizedView, quantizer: Quantizer) -> Breaches:
    blocks, value = quantizer.node.attributes.get_int("block_size", 0), quantizer.node.inputs[0]
    if blocks or quantizer.scale is None or quantizer.scale.size < 2:
        return
    if value is None or value.shape is None:
        return
    axis, rank = quantizer.node.attributes.get_int("axis", 1), len(value.shape)
    for use in (use for result in quantizer.node.outputs for use in result.uses()):
        operator = OPERATORS.get(use.node.op_type)
        axis_of = None if operator is None else operator.channel_axis
        wanted = None if axis_of is None else axis_of(use.node, use.idx)
        if wanted is not None and wanted % rank != axis % rank:
            yield f"scales along axis {axis % rank} of the weight", f"axis {wanted % rank}"


def _unwritten_axes(rule: Tensors, view: QuantizedView, quantizer: Quantizer) -> Breaches:
    several = quantizer.scale is not None and quantizer.scale.size > 1
    if several and "axis" not in quantizer.node.attributes:
        yield "several scales, and no attribute axis", "a written axis"


def _unstored(rule: Tensors, view: QuantizedView, quantizer: Quantizer) -> Breaches:
    if quantizer.node.op_type in QUANTIZERS and quantizer.type_name in rule.types:
        found = f"a float weight behind a quantizer of {quantizer.type_name}"
        yield found, "stored values, and a dequantizer"


def _untransposed(rule: Tensors, view: QuantizedView, quantizer: Quantizer) -> Breaches:
    for reader in readers_of(quantizer.node):
        plain = reader.op_type == "Gemm" and not reader.attributes.get_int("transB", 0)
        if plain or reader.op_type == "MatMul":
            found = f"a weight of {quantizer.type_name} as (inputs, outputs)"
            yield found, "(outputs, inputs), and a Transpose behind it"


def _write_transposed(rule: Tensors, recipe: Recipe) -> Changes:
    plain = recipe.weights.output in ("matmul-nbits", "qdq")
    asked = plain and shares_weight_type(recipe, rule.types)
    return {"weights": {"output": "qdq-transposed"}} if asked else {}


def _beside_floats(rule: Tensors, view: QuantizedView, quantizer: Quantizer) -> Breaches:
    if any(not view.activations(reader) for reader in readers_of(quantizer.node)):
        yield f"a weight of {quantizer.type_name} beside float activations", "pairs on all sides"


def _mixed_types(rule: Tensors, view: QuantizedView) -> Iterator[Breach]:
    """Find the first activation of another type than the one before it."""
    first = None
    for quantizer in view.of_role("activation"):
        stored = quantizer.type_name
        if stored not in rule.types:
            continue
        first = first or stored
        if stored != first:
            yield view.breach(quantizer, f"{stored} beside {first}", "one of them in all the model")
            return


def _output_types(rule: Tensors, view: QuantizedView, quantizer: Quantizer) -> Breaches:
    if "output_dtype" in quantizer.node.attributes and quantizer.type_name in rule.types:
        found = f"output_dtype on a quantizer of {quantizer.type_name}"
        yield found, "a zero point that says the type"


def _several_readers(rule: Tensors, view: QuantizedView, quantizer: Quantizer) -> Breaches:
    if quantizer.node.op_type not in QUANTIZERS or quantizer.type_name not in rule.types:
        return
    dequantizers = readers_of(quantizer.node)
    count = sum(len(readers_of(dequantizer)) for dequantizer in dequantizers)
    if count > 1:
        yield f"{count} readers of one {quantizer.type_name} tensor", "one reader, or uint8"


def _write_unsigned(rule: Tensors, recipe: Recipe) -> Changes:
    """Write int8 activations as uint8 where more than one reader would make them float."""
    asked = writes_signed(recipe) and "int8" in rule.types
    return {"place": {"unsigned_activations": True}} if asked else {}


def _old_opset(rule: Tensors, view: QuantizedView) -> Iterator[Breach]:
    assert rule.opset is not None
    opset = view.model.opset_imports.get("", 1)
    if opset >= rule.opset:
        return
    for quantizer in view.found.values():
        standard = quantizer.node.domain in ("", "ai.onnx")
        if standard and quantizer.type_name in rule.types:
            found = f"{quantizer.type_name} at opset {opset}"
            yield view.breach(quantizer, found, f"opset {rule.opset} or com.microsoft")
            return


def _foreign_opset(rule: Tensors, view: QuantizedView) -> Iterator[Breach]:
    assert rule.low is not None and rule.high is not None
    opset = view.model.opset_imports.get("", 1)
    if rule.low <= opset <= rule.high:
        return
    for quantizer in view.found.values():
        yield view.breach(quantizer, f"opset {opset}", f"{rule.low} to {rule.high}")
        return


def _stored(rule: Tensors, view: QuantizedView) -> Iterator[Quantizer]:
    return view.stored_weights(rule.types)


Tensors.ASKS = {
    "positive_scales": Ask(
        model=_negative_scales,
        change_weights=lambda rule, recipe: {"weights": {"positive_scales": True}},
    ),
    "channel_axis": Ask(tensor=_other_axes, tensors=_stored),
    "written_axis": Ask(tensor=_unwritten_axes),
    "stored_weights": Ask(
        tensor=_unstored, tensors=lambda rule, view: view.of_role("weight"), needs=("types",)
    ),
    "transposed_weights": Ask(
        tensor=_untransposed, tensors=_stored, needs=("types",), change_weights=_write_transposed
    ),
    "whole_units": Ask(tensor=_beside_floats, tensors=_stored, needs=("types",)),
    "unmixed_types": Ask(model=_mixed_types, needs=("types",)),
    "no_output_type": Ask(tensor=_output_types, needs=("types",)),
    "one_reader": Ask(
        tensor=_several_readers,
        tensors=lambda rule, view: view.of_role("activation"),
        needs=("types",),
        change=_write_unsigned,
    ),
    "opset_of_types": Ask(model=_old_opset, needs=("types", "opset")),
    "opset_range": Ask(model=_foreign_opset, needs=("low", "high")),
}
