"""What each unit costs in each state: milliseconds of the runtime's own profile, or bytes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import onnx_ir as ir

from bitwright.assess.bench.profile import Profile, profile_models
from bitwright.assess.comparison.units import Units
from bitwright.data import Sample
from bitwright.graph import iter_values, written_size
from bitwright.jobs.improve.states import Unit
from bitwright.jobs.opening import Prepared
from bitwright.jobs.sensitivity import NodeVariants
from bitwright.plan import QuantPlan

__all__ = ["UnitCosts", "conversion_times", "measure_bytes", "measure_times"]

_SECONDS = 0.3
"""How long each model is profiled, in three runs at least."""
_MAX_RUNS = 15
"""And at most: the file that the runtime writes grows with each."""
_SIZES = (1 << 14, 1 << 16, 1 << 18)
"""Elements of the tensors that conversions are timed on."""
MIN_GAIN = 0.1
"""The share of its time that a unit must save in float to count as faster there."""
_SCALE_BYTES = 4


class UnitCosts(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of each unit in each state, and of all that is in no unit."""

    costs: dict[str, dict[str, float]]
    """State -> unit -> milliseconds or bytes."""
    fixed: float
    """What everything else costs."""
    float_cost: float
    """What the float model costs."""
    conversion: float = 0.0
    """What it costs to convert one element of a tensor between integers and float."""
    conversion_start: float = 0.0
    """What it costs to convert a tensor, however small."""


def measure_times(variants: NodeVariants, wanted: Sequence[Unit], sample: Sample) -> UnitCosts:
    """Profile the float and the quantized model, and add up the times of the nodes of each unit."""
    prepared, units = variants.prepared, variants.units
    models = [units.float_model, units.quantized]
    before, after = profile_models(
        models,
        [[sample], [sample]],
        providers=prepared.providers,
        seconds=_SECONDS,
        most=_MAX_RUNS,
    )
    times: dict[str, dict[str, float]] = {"int8": {}, "float": {}}
    for unit, (float_nodes, nodes) in _nodes_of(units, wanted).items():
        times["float"][unit] = _sum_of(before, float_nodes)
        times["int8"][unit] = _sum_of(after, nodes)
    fixed = before.milliseconds - sum(times["float"].values())
    times["int8"] = _with_rest(times["int8"], after.milliseconds - fixed)
    start, rate = conversion_times(prepared.providers)
    return UnitCosts(
        costs={**times, "float": _surely_faster(times)},
        fixed=max(fixed, 0.0),
        float_cost=before.milliseconds,
        conversion=rate,
        conversion_start=start,
    )


def _nodes_of(units: Units, wanted: Sequence[Unit]) -> dict[str, tuple[set[str], set[str]]]:
    """Return the names of each unit's nodes, in the float and in the quantized model.

    What is float in both and only follows a unit is the unit's: between float ones, the runtime
    computes many an activation with the product before it, and between integers it runs it apart.
    """
    owner = {node: unit.node for unit in wanted for node in unit.nodes}
    found: dict[str, tuple[set[str], set[str]]] = {unit.node: (set(), set()) for unit in wanted}
    makers: dict[ir.Value, str] = {}
    for cut in units.cuts:
        float_nodes = {node.name or "" for node in cut.float_nodes}
        nodes = {node.name or "" for node in cut.nodes}
        names = [owner[name] for name in sorted(float_nodes | nodes) if name in owner]
        read = {makers[value] for value in cut.float_inputs if value in makers}
        if not names and len(read) == 1:
            names = list(read)
        if names:
            makers[cut.float_value] = names[0]
            found[names[0]][0].update(float_nodes)
            found[names[0]][1].update(nodes)
    return found


def _sum_of(profile: Profile, names: set[str]) -> float:
    return sum(node.milliseconds for node in profile.nodes if (node.behind or node.name) in names)


def _with_rest(times: Mapping[str, float], whole: float) -> dict[str, float]:
    """Return the times of units in integers, with what they take besides in the quantized model.

    What the float model has not and no unit is known to need goes where they are float.
    """
    summed = sum(times.values())
    share = max(whole / summed, 1.0) if summed else 1.0
    return {name: share * time for name, time in times.items()}


def _surely_faster(times: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the times in float; one that is hardly shorter than in integers is no shorter."""
    found = {}
    for name, time in times["float"].items():
        planned = times["int8"][name]
        found[name] = time if time < (1 - MIN_GAIN) * planned else max(time, planned)
    return found


def conversion_times(providers: Sequence[str] | None = None) -> tuple[float, float]:
    """Return the milliseconds that converting a tensor takes, and those for each element.

    That is the mean of quantizing and dequantizing, fitted on tensors of three sizes.
    """
    model = _conversions()
    sample = {f"x{size}": np.linspace(-1, 1, size, dtype=np.float32) for size in _SIZES}
    [profile] = profile_models([model], [[sample]], providers=providers, most=_MAX_RUNS)
    times: defaultdict[int, list[float]] = defaultdict(list)
    for node in profile.nodes:
        size = node.name.partition("_")[2]
        if size.isdigit():
            times[int(size)].append(node.milliseconds)
    sizes = np.array(sorted(times), np.float64)
    means = np.array([np.mean(times[int(size)]) for size in sizes])
    if sizes.size < 2:
        return 0.0, 0.0
    slope, start = np.polyfit(sizes, means, 1)
    return max(float(start), 0.0), max(float(slope), 0.0)


def _conversions() -> ir.Model:
    import onnx
    from onnx import TensorProto, helper

    nodes, inputs, outputs = [], [], []
    for size in _SIZES:
        nodes += [
            helper.make_node("QuantizeLinear", [f"x{size}", "s", "z"], [f"q{size}"], f"q_{size}"),
            helper.make_node("DequantizeLinear", [f"q{size}", "s", "z"], [f"y{size}"], f"d_{size}"),
        ]
        inputs.append(helper.make_tensor_value_info(f"x{size}", TensorProto.FLOAT, [size]))
        outputs += [
            helper.make_tensor_value_info(f"y{size}", TensorProto.FLOAT, [size]),
            # An output in between keeps the runtime from taking both away.
            helper.make_tensor_value_info(f"q{size}", TensorProto.UINT8, [size]),
        ]
    constants = [
        helper.make_tensor("s", TensorProto.FLOAT, [], [0.01]),
        helper.make_tensor("z", TensorProto.UINT8, [], [128]),
    ]
    graph = helper.make_graph(nodes, "conversions", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.checker.check_model(model)
    return ir.from_proto(model)


def measure_bytes(
    prepared: Prepared, plan: QuantPlan, quantized: ir.Model, units: Sequence[Unit]
) -> UnitCosts:
    """Return the bytes of each unit's weights in each state; all else is fixed."""
    values = dict(iter_values(prepared.model))
    costs: dict[str, dict[str, float]] = {state: {} for state in ("w4", "int8", "a16", "float")}
    for unit in units:
        weights = {
            key
            for node in unit.nodes
            for key in plan.nodes[node].inputs
            if key is not None and plan.tensors[key].role == "weight"
        }
        sizes = [_elements(values.get(plan.tensors[key].tensor)) for key in weights]
        scales = [np.size(plan.parameters(key).scale) for key in weights]
        stored = [max(plan.tensors[key].qtype.bits, 8) / 8 for key in weights]
        planned = sum(n * size for n, size in zip(sizes, stored, strict=True))
        extra = _SCALE_BYTES * sum(scales)
        costs["int8"][unit.node] = costs["a16"][unit.node] = planned + extra
        costs["w4"][unit.node] = sum(math.ceil(n / 2) for n in sizes) + extra
        costs["float"][unit.node] = 4.0 * sum(sizes)
    size = float(written_size(quantized))
    return UnitCosts(
        costs=costs,
        fixed=size - sum(costs["int8"].values()),
        float_cost=float(prepared.float_size),
    )


def _elements(value: ir.Value | None) -> int:
    if value is None or value.const_value is None:
        return 0
    return int(np.prod(value.const_value.shape.numpy(), dtype=np.int64))
