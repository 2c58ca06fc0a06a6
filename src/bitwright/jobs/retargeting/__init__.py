"""A quantized model for another target, where only encodings differ: no data, the same numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import onnx_ir as ir

from bitwright import graph
from bitwright.decide.layout.static import lay_out
from bitwright.decide.ops.quantized_view import QuantizedView
from bitwright.decide.scales.parameters import weight_plan
from bitwright.errors import ModelError, TargetError
from bitwright.graph import add_initializer, graph_of, remove_nodes
from bitwright.jobs.calibration import Calibration
from bitwright.jobs.modes import apply_to_model
from bitwright.jobs.opening import ON_CPU
from bitwright.jobs.qat import open_for_plan, quantize_trained
from bitwright.jobs.retargeting.integer_operators import expand_integer_operators
from bitwright.jobs.retargeting.zero_points import Byte, move_zero_points
from bitwright.plan import QuantPlan
from bitwright.recipe import Recipe
from bitwright.run import IN_MEMORY_LIMIT, check_still_opens
from bitwright.support import counted, plain_fields
from bitwright.targets import Target, find_target
from bitwright.targets.host import on_host
from bitwright.verification import Verification, verify_model
from bitwright.verification.fitting import fit_recipe
from bitwright.verification.rules import read_rules
from bitwright.verification.rules.encodings import Encodings
from bitwright.verification.rules.scales import Scales
from bitwright.verification.rules.tensors import Tensors

__all__ = ["Retargeted", "apply_retargeted", "retarget_model", "retarget_plan"]

Format = Literal["qdq", "qoperator"]
# Rules about encodings, for which nothing can be done with the integers that are there.
_OF_ENCODINGS = frozenset({"types", "zero_points", "granularity", "biases"})


@dataclass(frozen=True, slots=True)
class Retargeted:
    """A model in the encoding of another target, and what its rules still say about it."""

    model: ir.Model = field(repr=False)
    target: str
    changes: tuple[str, ...]
    """What was done, in words; none: the model was as the target wants it."""
    verification: Verification

    def save(self, path: str | Path, *, external_data: bool | None = None) -> None:
        """Write the model: all of it, or nothing."""
        graph.save_model(self.model, path, external_data=external_data)

    def to_dict(self) -> dict[str, Any]:
        """Return what was done as plain data."""
        return plain_fields(self, "target", "changes", "verification")


def retarget_with_plan(
    source: Any,
    name: str,
    plan: QuantPlan | None,
    *,
    format: Format | None = None,
    block_size: int | None = None,
) -> Retargeted:
    """Re-encode a quantized model, or apply the plan of a float one anew for a target."""
    if plan is None:
        if block_size is not None:
            raise TargetError(
                "block_size needs plan: blocks are made anew, from the float model that it is of."
            )
        return retarget_model(source, name, format=format)
    if format is not None:
        raise TargetError("format is the plan's own; leave it out, or retarget the result.")
    return apply_retargeted(source, plan, name, block_size)


def retarget_model(source: Any, name: str, *, format: Format | None = None) -> Retargeted:
    """Re-encode a quantized model for a target, as far as its numbers stay the same."""
    target = on_host(find_target(name))
    model = graph.load_model(source)
    changes: list[str] = []
    # A format is written anew from pairs: integer operators may be next to pairs of float nodes.
    wants_pairs = format is not None or not target.takes_integer_operators
    if wants_pairs or _wanted_byte(model, target):
        count = expand_integer_operators(model)
        if count:
            changes.append(f"wrote {counted(count, 'integer operator')} as Q/DQ pairs")
    byte = _wanted_byte(model, target)
    if byte is not None:
        moved = move_zero_points(model, byte)
        changes.append(f"moved the zero points of {counted(moved, 'tensor')}, now {byte}")
    rules = read_rules(target).values()
    if any(isinstance(rule, Scales) and rule.form == "float" for rule in rules):
        count = _float_biases(model)
        if count:
            changes.append(f"wrote {counted(count, 'quantized bias vector')} in float")
    if format == "qoperator":
        # The integer operators that its own pairs make.
        model = quantize_trained(model, "qoperator", None, False, Calibration(None)).model
        changes.append("wrote integer operators")
    graph.remove_unused_initializers(model)
    graph.check_model(model)
    check_still_opens(model, graph.load_model(source), IN_MEMORY_LIMIT)
    found = verify_model(model, name)
    _refuse_unchangeable(found, target)
    return Retargeted(model, name, tuple(changes), found)


def _wanted_byte(model: ir.Model, target: Target) -> Byte | None:
    """Return the 8-bit type that activations have to be moved to; None: they stay as they are."""
    view = QuantizedView(model)
    used = {q.stored_type for q in view.of_role("activation") if q.stored_type is not None}
    read = (node.inputs[0] for node in model.graph if node.op_type.startswith("QLinear"))
    used |= {value.dtype for value in read if value is not None and value.dtype is not None}
    signed, unsigned = ir.DataType.INT8 in used, ir.DataType.UINT8 in used
    for rule in read_rules(target).values():
        if isinstance(rule, Tensors) and rule.asks == "one_reader" and "int8" in rule.types:
            if signed:
                return "uint8"
        elif isinstance(rule, Encodings) and (rule.asks, rule.role) == ("types", "activation"):
            if signed and "int8" not in rule.types and "uint8" in rule.types:
                return "uint8"
            if unsigned and "uint8" not in rule.types and "int8" in rule.types:
                return "int8"
    return None


def _float_biases(model: ir.Model) -> int:
    view, names = QuantizedView(model), graph.NameScope(model)
    gone = []
    for quantizer in view.of_role("bias"):
        node, integers = quantizer.node, quantizer.stored
        if integers is not None and quantizer.scale is not None:
            numbers = (integers.astype(np.float64) * quantizer.scale).astype(np.float32)
            result = node.outputs[0]
            value = add_initializer(graph_of(result), names, f"{result.name}_float", numbers)
            result.replace_all_uses_with(value)
            gone.append(node)
    remove_nodes(gone)
    return len(gone)


def _refuse_unchangeable(found: Verification, target: Target) -> None:
    rules = read_rules(target)
    for finding in found.errors:
        if finding.rule in rules and rules[finding.rule].asks in _OF_ENCODINGS:
            raise TargetError(
                f"the model cannot be re-encoded for {found.target}: {finding}; quantize the float "
                "model again with this target: kept sketches (--sketches) save the data, and a "
                "kept plan (--plan) the weights' scales."
            )


def apply_retargeted(source: Any, plan: QuantPlan, name: str, block_size: int | None) -> Retargeted:
    """Quantize the float model of a plan with the scales of weights that a target takes."""
    changed = retarget_plan(source, plan, name, block_size=block_size)
    result = apply_to_model(changed, source, Calibration(None), None, ON_CPU)
    same = [plan.tensors.get(key) == entry for key, entry in changed.tensors.items()]
    made = (
        len(same)
        - sum(same)
        + sum(plan.weights[key] != entry for key, entry in changed.weights.items())
    )
    changes = (f"made the scales of {counted(made, 'weight')} anew",) if made else ()
    found = verify_model(result.model, name)
    _refuse_unchangeable(found, on_host(find_target(name)))
    return Retargeted(result.model, name, changes, found)


def retarget_plan(
    source: Any, plan: QuantPlan, name: str, *, block_size: int | None = None
) -> QuantPlan:
    """Return a plan whose weights have the scales that a target takes: blocks, channels, tensors.

    Scales of activations stay; those of weights are made anew, from the float weights.
    `block_size` asks for blocks of this size, 0 for none.
    """
    target = on_host(find_target(name))
    recipe = plan.recipe
    if recipe.mode in ("dynamic", "cast"):
        raise TargetError(
            f"a plan of the mode {recipe.mode} has no blocks; quantize with --target."
        )
    allowed = _allowed_scales(target, recipe, asked=bool(block_size))
    if open_for_plan(source, plan).fingerprint != plan.fingerprint:
        raise ModelError("the plan was made for another model; give the float model that it is of.")
    if recipe.mode == "weight-only":
        return _retarget_weights(source, plan, target, allowed, block_size)
    size = recipe.block_size if block_size is None else block_size
    size = size if "block" in allowed else 0
    channels = "channel" in allowed and (recipe.per_channel or recipe.block_size > 0)
    changed = recipe.replace(block_size=size, per_channel=channels)
    per_tensor = dict.fromkeys(changed.place.per_tensor_ops)
    for rule in read_rules(target).values():
        if isinstance(rule, Encodings) and (rule.role, rule.per) == ("weight", ("tensor",)):
            per_tensor |= dict.fromkeys(rule.ops)
    changed = changed.replace(place={"per_tensor_ops": tuple(per_tensor)})
    # Types and blocks may need another opset, and so another hash.
    plan = msgspec.structs.replace(plan, recipe=changed)
    prepared = open_for_plan(source, plan)
    layout = lay_out(prepared.model, changed, keep_float=prepared.keep_float)
    tensors = dict(plan.tensors)
    for key, entry in layout.entries.items():
        if entry.role == "weight" and key in tensors and entry.same_as is None:
            tensors[key] = weight_plan(entry, changed)
    # A bias behind blocks has no scale of its products to be stored at.
    biases = {key for key, entry in plan.tensors.items() if entry.role == "bias"}
    for key in (gone := biases - layout.entries.keys()):
        del tensors[key]
    nodes = {
        name: msgspec.structs.replace(
            node, inputs=tuple(None if key in gone else key for key in node.inputs)
        )
        for name, node in plan.nodes.items()
    }
    return msgspec.structs.replace(
        plan, fingerprint=prepared.fingerprint, tensors=tensors, nodes=nodes
    )


def _allowed_scales(target: Target, recipe: Recipe, *, asked: bool) -> set[str]:
    """Return what scales of weights a target takes; blocks for some products if `asked` for."""
    stored = {recipe.weight.name}
    if recipe.mode == "weight-only":
        stored = {f"int{recipe.weights.bits}", f"uint{recipe.weights.bits}"}
    allowed = {"tensor", "channel", "block"}
    for rule in read_rules(target).values():
        if rule.asks == "blocked_products" and not asked:
            allowed -= {"block"}
        if not isinstance(rule, Encodings) or rule.asks != "granularity":
            continue
        if rule.role == "weight" and not rule.ops and (not rule.types or stored & {*rule.types}):
            allowed &= {*rule.per}
    return allowed


def _retarget_weights(
    source: Any, plan: QuantPlan, target: Target, allowed: set[str], block_size: int | None
) -> QuantPlan:
    """Return a plan of low-bit weights in the form and with the blocks that a target takes."""
    options = plan.recipe.weights
    size = options.block_size if block_size is None else block_size or -1
    size = size if "block" in allowed else -1
    recipe = fit_recipe(plan.recipe.replace(weights={"block_size": size}), target)
    weights = {
        key: msgspec.structs.replace(
            one,
            block_size=size,
            symmetric=one.symmetric or recipe.weights.symmetric,
            positive_scales=one.positive_scales or recipe.weights.positive_scales,
        )
        for key, one in plan.weights.items()
    }
    plan = msgspec.structs.replace(plan, recipe=recipe, weights=weights)
    # Another form may need another opset, and so another hash.
    return msgspec.structs.replace(plan, fingerprint=open_for_plan(source, plan).fingerprint)
