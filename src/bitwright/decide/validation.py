"""Whether a plan, perhaps edited by hand, still fits its model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from bitwright.decide.limits import check_limits
from bitwright.decide.ops import RULES, bounds_of
from bitwright.decide.ops.conventions import conventions_of
from bitwright.errors import PlanError, did_you_mean
from bitwright.graph import constant_of, iter_values, sizes_of, weight_of
from bitwright.numerics.quantize import quantize
from bitwright.plan import NodePlan, QuantPlan, TensorPlan


def check_plan(model: ir.Model, plan: QuantPlan, *, fingerprint: str) -> None:
    """Raise a `PlanError` for the first thing in the plan that the model contradicts."""
    if plan.fingerprint != fingerprint:
        raise PlanError(
            "this plan was made for another model (or with other preparation); make a new one "
            "with `bitwright plan`."
        )
    nodes = {node.name or "": node for node in model.graph.all_nodes()}
    values = dict(iter_values(model))
    names: dict[ir.Value | None, str] = {value: name for name, value in values.items()}
    clipped = _clipped_tensors(nodes.values(), names)
    for key, entry in plan.tensors.items():
        if entry.tensor not in values:
            hint = did_you_mean(entry.tensor, values)
            raise PlanError(f"the plan names tensor {entry.tensor!r}, which the model lacks.{hint}")
        _check_entry(key, entry, values[entry.tensor], plan)
    for name, planned in plan.nodes.items():
        if name not in nodes:
            hint = did_you_mean(name, nodes)
            raise PlanError(f"the plan names node {name!r}, which the model lacks.{hint}")
        _check_node(nodes[name], planned, plan, names, clipped)
    forgotten = [node.name for node in model.graph if node.name not in plan.nodes]
    if plan.recipe.mode == "static" and forgotten:
        raise PlanError(
            f"the plan does not say what becomes of node {forgotten[0]!r}; add it, with the action "
            "'float' if it stays so."
        )
    outputs = {value.name or "" for value in model.graph.outputs}
    # What leaves the bodies of If, Loop and Scan may be named, too.
    known = {names.get(value) for graph in model.graphs() for value in graph.outputs}
    odd_names = (outputs - plan.outputs.keys()) | (plan.outputs.keys() - known)
    if plan.recipe.mode == "static" and odd_names:
        odd = min(odd_names)
        raise PlanError(
            f"the plan's outputs are not those of the model: {odd!r} is among one and not among "
            "the other; name each, with null where it stays float."
        )
    for name, used in plan.outputs.items():
        if used is not None and used not in plan.tensors:
            raise PlanError(f"graph output {name!r} refers to {used!r}, which has no entry.")
    for name, shift in plan.bias_shifts.items():
        _check_shift(name, shift, values)
    for entry in plan.tensors.values():
        if entry.tensor in plan.weight_gains:
            _check_gain(entry, plan.weight_gains[entry.tensor])
    unknown = sorted(plan.weight_gains.keys() - {e.tensor for e in plan.tensors.values()})
    if unknown:
        raise PlanError(f"the plan has gains for {unknown[0]!r}, of which it has no entry.")
    check_limits(model, plan)


def _check_node(
    node: ir.Node,
    planned: NodePlan,
    plan: QuantPlan,
    names: Mapping[ir.Value | None, str],
    clipped: Mapping[str | None, str | None],
) -> None:
    """Refuse a node whose tensors are not those that it has, or that cannot be absorbed."""
    name = node.name or ""
    inputs = [{names.get(value)} for value in node.inputs]
    weight = weight_of(node) if planned.per_token else None
    if weight is not None:  # a Transpose in between is the node's own
        inputs[node.op_type != "Gather"].add(names.get(weight.value))
    outputs = [_with_clipped(names.get(value), clipped) for value in node.outputs]
    if planned.action != "float" and plan.recipe.mode in ("static", "dynamic"):
        _check_counts(name, planned, node)
    _check_uses(f"input of node {name!r}", planned.inputs, inputs, plan)
    _check_uses(f"output of node {name!r}", planned.outputs, outputs, plan)
    if planned.action == "absorb":
        result = planned.outputs[0]
        if result is None or not may_absorb(node, plan, result):
            raise PlanError(
                f"node {name!r} ({node.op_type}) is to be absorbed, but the scale of its "
                "output no longer clips as it does; set its action to 'quantize'."
            )


def _check_counts(name: str, planned: NodePlan, node: ir.Node) -> None:
    for side, keys, values in (
        ("inputs", planned.inputs, node.inputs),
        ("outputs", planned.outputs, node.outputs),
    ):
        if len(keys) != len(values):
            raise PlanError(
                f"node {name!r} has {len(values)} {side}, of which the plan lists {len(keys)}; "
                "list each, with null where it stays float."
            )


def _check_shift(name: str, shift: list[float], values: Mapping[str, ir.Value]) -> None:
    array = constant_of(values.get(name))
    if array is None:
        raise PlanError(
            f"the plan shifts bias {name!r}, which is no constant of the model."
            f"{did_you_mean(name, values)}"
        )
    if array.ndim < 1 or array.shape[-1] != len(shift) or not np.all(np.isfinite(shift)):
        raise PlanError(
            f"the plan shifts bias {name!r} of shape {array.shape} by {len(shift)} numbers; give "
            "a finite one for each channel."
        )


def _check_gain(entry: TensorPlan, gain: list[float]) -> None:
    fits = (
        entry.axis is not None
        and not entry.block_size
        and np.asarray(entry.scale).size == len(gain)
    )
    if not fits or not np.all(np.isfinite(gain)) or min(gain, default=0.0) <= 0:
        raise PlanError(
            f"the plan multiplies weight {entry.tensor!r} with {len(gain)} gains; give a positive "
            "one for each channel that has a scale."
        )


def _clipped_tensors(
    nodes: Iterable[ir.Node], names: Mapping[ir.Value | None, str]
) -> dict[str | None, str | None]:
    """Return, for what a Relu or Clip reads, what it writes.

    The writer of the one is planned with the entry of the other where the quantizer clips.
    """
    return {
        names.get(node.inputs[0]): names.get(node.outputs[0])
        for node in nodes
        if (rule := RULES.get(node.op_type)) is not None and rule.bounds is not None
    }


def _with_clipped(tensor: str | None, clipped: Mapping[str | None, str | None]) -> set[str | None]:
    allowed = {tensor}
    while (tensor := clipped.get(tensor)) is not None:
        allowed.add(tensor)
    return allowed


def may_absorb(node: ir.Node, plan: QuantPlan, key: str) -> bool:
    """Return whether a Relu or Clip may go, by the recipe's conventions.

    By ONNX Runtime's it always may. But where the quantizer lets more than a step pass, as one of
    a symmetric range behind a Relu does, the model would compute something else.
    """
    if not conventions_of(plan.recipe).absorbs_any_clip:
        return clips_exactly(node, plan, key)
    bounds, parameters = bounds_of(node), plan.parameters(key)
    if bounds is None or not parameters.qtype.is_integer or np.ndim(parameters.scale):
        return False
    low, high = (
        (end - parameters.zero_point) * parameters.scale
        for end in (parameters.qtype.lowest, parameters.qtype.highest)
    )
    step = parameters.scale
    return bool(low >= bounds[0] - step and high <= bounds[1] + step)


def clips_exactly(node: ir.Node, plan: QuantPlan, key: str) -> bool:
    """Return whether quantizing under `key` gives the same integers with and without the node.

    Both are monotone, so it is enough that the node's bounds quantize to the ends of the type.
    """
    bounds, parameters = bounds_of(node), plan.parameters(key)
    if bounds is None or not parameters.qtype.is_integer or np.ndim(parameters.scale):
        return False
    ends = quantize(
        np.array(bounds, np.float32), parameters.scale, parameters.zero_point, parameters.qtype
    )
    return bool(ends[0] == parameters.qtype.lowest and ends[1] == parameters.qtype.highest)


def _check_entry(key: str, entry: TensorPlan, value: ir.Value, plan: QuantPlan) -> None:
    parameters = plan.parameters(key)
    if entry.source is not None and (
        (before := plan.tensors.get(entry.source)) is None
        or before.tensor != entry.tensor
        or before.source is not None
        or before.role != "activation"
    ):
        raise PlanError(
            f"tensor {key!r} stands behind {entry.source!r}, which is no pair of its tensor."
        )
    array = constant_of(value)
    if entry.role != "activation" and array is None:
        raise PlanError(f"tensor {key!r} is planned as a {entry.role}, but it is not constant.")
    shape = sizes_of(value)
    if np.ndim(parameters.scale) == 0 or shape is None:
        return
    found, axis = np.shape(parameters.scale), parameters.axis
    if axis is None or not -len(shape) <= axis < len(shape):
        fits = False
    elif parameters.block_size:
        blocks = list(shape)
        length = shape[axis]
        blocks[axis] = None if length is None else -(-length // parameters.block_size)
        fits = len(found) == len(blocks) and all(
            there is None or here == there for here, there in zip(found, blocks, strict=True)
        )
    else:
        fits = len(found) == 1 and shape[axis] in (None, found[0])
    if not fits:
        shown = "x".join("?" if dim is None else str(dim) for dim in shape)
        raise PlanError(
            f"tensor {key!r} of shape {shown} cannot take {np.size(parameters.scale)} scales on "
            f"axis {axis}."
        )


def _check_uses(
    where: str, keys: Sequence[str | None], allowed: Sequence[set[str | None]], plan: QuantPlan
) -> None:
    for index, key in enumerate(keys):
        if key is None:
            continue
        if key not in plan.tensors:
            raise PlanError(f"an {where} refers to tensor {key!r}, which has no entry.")
        tensor = plan.tensors[key].tensor
        if index >= len(allowed) or tensor not in allowed[index]:
            raise PlanError(f"{where}, number {index}, is not tensor {tensor!r}.")
