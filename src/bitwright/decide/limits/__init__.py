"""Keep the scales of a plan within what the NPU's shifters can do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec
import numpy as np
import onnx_ir as ir

from bitwright.decide.limits.positions import PlanPositions
from bitwright.decide.limits.solver import solve_positions
from bitwright.decide.limits.weights import StoredConstant, fit_weight_and_bias
from bitwright.errors import PlanError, RecipeError
from bitwright.graph import constant_of, iter_values
from bitwright.plan import QuantPlan
from bitwright.recipe import LimitDetails
from bitwright.support.wording import counted
from bitwright.targets import NPU_CNN
from bitwright.targets.npu_limits import Bound, LimitRule, NpuOperation, Ref, bounds_of
from bitwright.targets.npu_operations import find_npu_operations


def apply_limits(model: ir.Model, plan: QuantPlan) -> QuantPlan:
    """Return the plan with every position moved that a limit of the recipe forbids.

    No integer exists yet: weights and biases are rounded later, from float, at their final
    position. The rules are gone through in the order of their table until nothing moves. Where
    they conflict, a Concat that would clip what it joins falls back to float.
    """
    if plan.recipe.limits is None:
        return plan
    details = plan.recipe.emulate.limits
    fit = _PositionFit(model, plan, details)
    fit.run()
    while (concat := fit.conflicting_concat()) is not None:
        plan = _fall_back_to_float(plan, concat)
        fit = _PositionFit(model, plan, details)
        fit.run()
    moved = fit.positions.moved
    if not moved:
        return plan
    counts = Counter(moved.values())
    rules = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in counts.items())
    scales = counted(len(moved), "scale")
    notes = [f"moved {scales} to what the NPU's shifters can do ({rules})"]
    changed = msgspec.structs.replace(plan, tensors=fit.positions.tensors())
    return changed.with_notes([*notes, *fit.notes])


def check_limits(model: ir.Model, plan: QuantPlan) -> None:
    """Raise a `PlanError` for the first limit of its recipe that a plan breaks."""
    if plan.recipe.limits is None:
        return
    try:
        positions = PlanPositions(plan)
    except RecipeError as error:
        raise PlanError(str(error)) from error
    for node, operation in _planned_operations(model, plan, positions):
        for rule in _chosen_rules(plan.recipe.emulate.limits):
            for bound in rule.bounds(operation, positions.now):
                if not bound.holds(positions.now):
                    raise PlanError(
                        f"node {node.name!r} breaks the limit {rule.name}: {bound.label} is "
                        f"{bound.value(positions.now)} and {bound.allowed}; change its scales, "
                        "or switch the limit off in the plan's recipe."
                    )


def _chosen_rules(details: LimitDetails) -> list[LimitRule]:
    return [rule for rule in NPU_CNN.limits if getattr(details, rule.name)]


def _planned_operations(
    model: ir.Model, plan: QuantPlan, positions: PlanPositions
) -> list[tuple[ir.Node, NpuOperation]]:
    return [
        (node, operation)
        for node, operation in find_npu_operations(model.graph.all_nodes(), positions)
        if (planned := plan.nodes.get(node.name or "")) is not None and planned.quantized
    ]


class _PositionFit:
    def __init__(self, model: ir.Model, plan: QuantPlan, details: LimitDetails) -> None:
        self.positions = PlanPositions(plan)
        self.notes: list[str] = []
        self._model, self._plan, self._details = model, plan, details
        self._rules = _chosen_rules(details)
        self._nodes = _planned_operations(model, plan, self.positions)
        self._operations = [operation for _, operation in self._nodes]
        self._conflicting = False
        self._stored = _own_constants(model, plan, self._operations)
        self._zeros = _all_zero(model, plan)

    def run(self) -> None:
        for _ in range(self._details.max_rounds):
            before = dict(self.positions.now)
            for rule in self._rules:
                self._apply(rule)
            if self.positions.now == before:
                break
        now = self.positions.now
        bounds = bounds_of(self._operations, self._rules, now)
        self._conflicting = not all(bound.holds(now) for bound in bounds)
        if self._conflicting:
            self._solve_together(before)

    def conflicting_concat(self) -> str | None:
        """Return a Concat that has to clip what it joins, if limits conflict."""
        if not self._conflicting or not self._details.align_concat:
            return None
        others = msgspec.structs.replace(self._details, align_concat=False)
        without = _PositionFit(self._model, self._plan, others)
        without.run()
        return _find_conflicting_concat(self._nodes, self.positions.now, without.positions.now)

    def _apply(self, rule: LimitRule) -> None:
        """Apply one rule until it moves nothing more: a chain of Concats takes several sweeps."""
        operations = [operation for operation in self._operations if operation.op in rule.ops]
        for _ in range(len(operations) + 1):
            before = dict(self.positions.now)
            for operation in operations:
                for bound in rule.bounds(operation, self.positions.now):
                    if not bound.holds(self.positions.now):
                        self._correct(rule, operation, bound)
            if self.positions.now == before:
                return

    def _correct(self, rule: LimitRule, operation: NpuOperation, bound: Bound) -> None:
        now = self.positions.now
        value = bound.value(now)
        if rule.name == "shift_cut" and value < 0 and operation.output is not None:
            # The accumulator has no finer steps than its own: a result in these loses nothing,
            # while a weight moved up to the result would saturate.
            self.positions.move(operation.output, now[operation.output] + value, rule.name)
            return
        if rule.name in ("shift_cut", "shift_bias"):
            rules = [rule for rule in self._rules if rule.name in ("shift_cut", "shift_bias")]
            fitted = fit_weight_and_bias(
                operation, rules, now, self.positions.start, self._stored.get
            )
            if fitted is not None:
                for ref, position in fitted.items():
                    self.positions.move(ref, position, rule.name)
                return
        # Zero is zero at any position: what holds nothing else gives way before what does.
        movers = [ref for ref in bound.moves if ref in self._zeros] or bound.moves
        mover = max(movers, key=lambda ref: now[ref])
        sign = sum(s for ref, s in bound.terms if ref == mover)
        if abs(sign) == 1:
            self.positions.move(mover, now[mover] - sign * bound.excess(now), rule.name)

    def _solve_together(self, before: dict[str, int]) -> None:
        """Choose all positions together, those that still moved from where they started."""
        now, start = self.positions.now, self.positions.start
        wanted = {key: now[key] if now[key] == before[key] else start[key] for key in now}
        # Weights and biases last: they adapt to activations, which others read too.
        order = sorted(wanted, key=lambda key: key in self._stored)
        found = solve_positions(self._operations, self._rules, {key: wanted[key] for key in order})
        changed = 0
        for key in order:
            if found[key] != now[key]:
                self.positions.move(key, found[key], "limits taken together")
                changed += 1
        self.notes.append(
            f"the NPU's limits conflict in this model; {changed} scales were "
            f"chosen together after {self._details.max_rounds} rounds"
        )


def _all_zero(model: ir.Model, plan: QuantPlan) -> set[Ref]:
    """Return the entries of constants that are zero, and of tensors that were never seen else."""
    values = dict(iter_values(model))
    found = set()
    for key, entry in plan.tensors.items():
        array = constant_of(values[entry.tensor])
        seen = entry.range if array is None else array
        if seen is not None and not np.any(seen):
            found.add(key)
    return found


def _own_constants(
    model: ir.Model, plan: QuantPlan, operations: Iterable[NpuOperation]
) -> dict[Ref, StoredConstant]:
    """Return the constants that one operation has for itself: their positions are its own."""
    values = dict(iter_values(model))
    users = Counter(ref for o in operations for ref in {*o.inputs, o.weight, o.bias, o.output})
    readers = Counter(key for node in plan.nodes.values() for key in {*node.inputs})
    shared = {entry.same_as for entry in plan.tensors.values()}
    found: dict[Ref, StoredConstant] = {}
    for key, entry in plan.tensors.items():
        array = constant_of(values[entry.tensor])
        if entry.role != "weight" or array is None or entry.scale is None or key in shared:
            continue
        if readers[key] == 1 and users[key] <= 1 and entry.qtype.is_integer:
            found[key] = StoredConstant(array, entry.qtype)
    return found


def _find_conflicting_concat(
    operations: Iterable[tuple[ir.Node, NpuOperation]],
    found: Mapping[Ref, int],
    without: Mapping[Ref, int],
) -> str | None:
    """Return the Concat whose inputs' positions lie furthest apart, of those that clip an input.

    `found` has the positions that hold all limits, `without` those of all limits but the Concats'.

    The NPU joins tensors at one position. A box of 300 pixels needs position -1 and a hard sigmoid
    takes no position below 7, so a detector that joins the two has none for both: at 7, boxes would
    end at 1. Computed in float, such a Concat keeps what it joins, and no limit is broken.
    """
    conflicts = {
        node.name or "": max(wanted) - min(wanted)
        for node, operation in operations
        if operation.op == "Concat" and operation.output is not None and operation.known
        if (wanted := [without[ref] for ref in operation.known])
        if found[operation.output] > min(wanted)
    }
    return max(conflicts, key=lambda name: conflicts[name], default=None)


def _fall_back_to_float(plan: QuantPlan, name: str) -> QuantPlan:
    """Return the plan with a Concat computed in float, on what its producers write in integers."""
    written = {key for node in plan.nodes.values() for key in node.outputs}
    node = plan.nodes[name]
    float_node = msgspec.structs.replace(
        node,
        action="float",
        reason="the NPU's limits have no scale for all that it joins",
        # Integers that a float node would only turn back gain nothing.
        inputs=tuple(key if key in written else None for key in node.inputs),
        outputs=(None,) * len(node.outputs),
    )
    changed = msgspec.structs.replace(plan, nodes={**plan.nodes, name: float_node})
    return _without_unused(changed, {key for key in (*node.inputs, *node.outputs) if key})


def _without_unused(plan: QuantPlan, keys: set[str]) -> QuantPlan:
    """Return the plan without those of these entries that no node has any more."""
    uses = Counter(key for node in plan.nodes.values() for key in (*node.inputs, *node.outputs))
    uses.update(key for entry in plan.tensors.values() for key in entry.depends_on)
    gone = {key for key in keys if not uses[key]}
    return msgspec.structs.replace(
        plan,
        tensors={key: entry for key, entry in plan.tensors.items() if key not in gone},
        outputs={name: None if key in gone else key for name, key in plan.outputs.items()},
    )
