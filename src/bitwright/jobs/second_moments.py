"""Rounding by second moments as a step of a job: layer after layer, behind those rounded already.

Each layer reads what the quantized layers before it give. A weight is rounded once for all that
read it, by what the first of them reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

import msgspec
import numpy as np
import onnx_ir as ir

from bitwright.decide.ops import LINEAR_OPS
from bitwright.jobs.calibration import Calibration, Evaluation, require_data
from bitwright.jobs.fine_tuning.constants import (
    Constant,
    find_constants,
    with_quantized_activations,
)
from bitwright.jobs.opening import Prepared
from bitwright.jobs.output import Planned
from bitwright.numerics.windows import unfold_windows
from bitwright.plan import QuantPlan
from bitwright.rounding.bias_correction import find_biased_layers, window_pads
from bitwright.rounding.second_moments import (
    MatrixGrid,
    round_by_moment,
    round_each_by_moment,
    trusted_moment,
)
from bitwright.run import LayerwiseRun, cut_model
from bitwright.support import F64, Array, counted

SAMPLES = 256
"""How many samples moments are taken over."""
MAX_WINDOWS = 1024
"""How many windows of a convolution count for each sample."""

LARGEST_BIAS = 2.0**29
"""Steps of an int32 bias up to which the scale of its weight may be divided by two."""


def round_by_second_moments(
    prepared: Prepared, plan: QuantPlan, calibration: Calibration
) -> Planned:
    """Return the plan with fitted scales, and the weights that its integers are made from."""
    require_data(plan.recipe, calibration)
    model = prepared.model
    constants = find_constants(model, plan)
    layers, left = _find_layers(model, plan, constants)
    split = calibration.split(model)
    tensors = dict(plan.tensors)
    rounded: dict[str, Array] = {}
    gains: list[float] = []
    names = list(layers)
    with LayerwiseRun(
        with_quantized_activations(model, plan, constants),
        names,
        islice(split, SAMPLES),
        providers=prepared.providers,
        parts=cut_model(model, names),
    ) as run:
        for name, constant in constants.items():
            run.put_weight(name, constant.stored(plan.parameters(constant.key)))
        for inputs in run:
            layer = layers[inputs.node]
            moments = layer.moments(inputs.values(layer.source))
            if moments is None:
                left[inputs.node] = "no sample reached it"
                continue
            array, scale, gain = layer.round(moments, plan)
            name, key = layer.constant.name, layer.constant.key
            rounded[name] = array
            tensors[key] = msgspec.structs.replace(
                tensors[key], scale=scale.tolist(), rounding="nearest"
            )
            gains.append(gain)
            inputs.put_weight(name, array)
    plan = msgspec.structs.replace(plan, tensors=tensors).with_notes(_notes(gains, left))
    return Planned(plan, rounded, Evaluation.of(split))


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """A product with a weight of its own, as groups of matrices [K, N]."""

    node: ir.Node
    constant: Constant
    bias: Array | None

    @property
    def source(self) -> str:
        value = self.node.inputs[0]
        assert value is not None
        return value.name or ""

    @property
    def groups(self) -> int:
        is_conv = self.node.op_type == "Conv"
        return int(self.node.attributes.get_int("group", 1)) if is_conv else 1

    def _as_matrices(self, array: Array) -> Array:
        """Return a weight as (groups, K, N)."""
        if self.node.op_type == "Conv":
            by_group = array.reshape(self.groups, array.shape[0] // self.groups, -1)
            return by_group.transpose(0, 2, 1)
        return (array.T if self.node.attributes.get_int("transB", 0) else array)[None]

    def _as_stored(self, matrices: Array) -> Array:
        shape = self.constant.array.shape
        if self.node.op_type == "Conv":
            return matrices.transpose(0, 2, 1).reshape(shape)
        matrix: Array = matrices[0]
        return matrix.T if self.node.attributes.get_int("transB", 0) else matrix

    def _rows(self, array: Array) -> Array:
        """Return what is multiplied with the weight, one row for each output of a channel."""
        attributes = self.node.attributes
        if self.node.op_type != "Conv":
            turned = array.T if attributes.get_int("transA", 0) else array
            return turned.reshape(-1, turned.shape[-1])
        kernel = self.constant.array.shape[2:]
        strides = attributes.get_ints("strides", [1] * len(kernel))
        dilations = attributes.get_ints("dilations", [1] * len(kernel))
        pads = [
            window_pads(self.node, axis, array.shape[2 + axis], k, s, d)
            for axis, (k, s, d) in enumerate(zip(kernel, strides, dilations, strict=True))
        ]
        return unfold_windows(
            array, kernel, strides=strides, dilations=dilations, pads=pads, most=MAX_WINDOWS
        )

    def moments(self, arrays: Iterable[Array]) -> F64 | None:
        """Return E[x x'] of each group (groups, K, K), as far as there are rows to trust it."""
        total: F64 | None = None
        count = 0
        for array in arrays:
            rows = self._rows(array).astype(np.float32)
            if not rows.size:
                continue
            by_group = rows.reshape(len(rows), self.groups, -1).transpose(1, 2, 0)
            products = (by_group @ by_group.transpose(0, 2, 1)).astype(np.float64)
            total = products if total is None else total + products
            count += len(rows)
        if total is None or not np.all(np.isfinite(total)):
            return None
        return np.stack([trusted_moment(moment / count, count) for moment in total])

    def round(self, moments: F64, plan: QuantPlan) -> tuple[Array, F64, float]:
        """Return the weight that integers are made from, its scale, and the error saved in dB."""
        parameters = plan.parameters(self.constant.key)
        qtype, scale = parameters.qtype, np.asarray(parameters.scale, np.float64)
        weights = self._as_matrices(self.constant.array.astype(np.float64))
        groups, _, columns = weights.shape
        # A channel's scale is its own to choose; one for all outputs stays as it was decided.
        fit = scale.ndim == 1 and plan.recipe.scales == "float" and not self._fills_bias(plan)
        scales = np.broadcast_to(scale, groups * columns).reshape(groups, columns)
        zeros = np.asarray(parameters.zero_point) - int(qtype.lowest)
        zeros = np.broadcast_to(zeros, groups * columns).reshape(groups, columns)
        result, found = np.empty_like(weights), scales.copy()
        if columns == 1:  # depthwise
            grid = MatrixGrid(qtype.bits, scales[:, 0], zeros[:, 0])
            values, fitted = round_each_by_moment(weights[:, :, 0].T, moments, grid, fit=fit)
            result[:, :, 0], found[:, 0] = values.T, fitted.scales
            nearest = grid.round(weights[:, :, 0].T).T[:, :, None]
        else:
            nearest = np.empty_like(weights)
            for index, (weight, moment) in enumerate(zip(weights, moments, strict=True)):
                grid = MatrixGrid(qtype.bits, scales[index], zeros[index])
                result[index], fitted = round_by_moment(weight, moment, grid, fit=fit)
                found[index], nearest[index] = fitted.scales, grid.round(weight)
        before, after = (
            float(((moments @ change) * change).sum())
            for change in (weights - nearest, weights - result)
        )
        gain = 10 * float(np.log10(before / after)) if 0 < after < before else 0.0
        array = np.ascontiguousarray(self._as_stored(result)).astype(self.constant.array.dtype)
        return array, found.reshape(-1) if fit else scale, gain

    def _fills_bias(self, plan: QuantPlan) -> bool:
        """Whether a smaller scale might be too small for the int32 bias."""
        key = plan.nodes[self.node.name or ""].inputs[0]
        if self.bias is None or key is None:
            return False
        steps = np.min(plan.parameters(key).scale) * plan.parameters(self.constant.key).scale
        return bool(np.max(np.abs(self.bias), initial=0.0) > LARGEST_BIAS * np.min(steps))


def _find_layers(
    model: ir.Model, plan: QuantPlan, constants: Mapping[str, Constant]
) -> tuple[dict[str, _Layer], dict[str, str]]:
    """Return the layers to round by the node that reads each first, and why others are left."""
    by_key = {constant.key: constant for constant in constants.values()}
    biased, _ = find_biased_layers(model, plan.nodes)
    biases = {layer.node.name or "": layer.bias.const_value for layer in biased}
    layers: dict[str, _Layer] = {}
    left: dict[str, str] = {}
    seen: set[str] = set()
    for node in model.graph:
        planned = plan.nodes.get(node.name or "")
        if planned is None or planned.action != "quantize" or len(planned.inputs) < 2:
            continue
        constant = by_key.get(planned.inputs[1] or "")
        if constant is None or constant.role != "weight" or constant.name in seen:
            continue
        seen.add(constant.name)
        entry, parameters = plan.tensors[constant.key], plan.parameters(constant.key)
        axis = None if parameters.axis is None else parameters.axis % constant.array.ndim
        if node.op_type not in LINEAR_OPS or node.op_type == "ConvTranspose":
            left[node.name or ""] = f"it is a {node.op_type}"
        elif node.op_type != "Conv" and constant.array.ndim != 2:
            left[node.name or ""] = "its weight is not one matrix"
        elif entry.block_size or entry.same_as is not None:
            left[node.name or ""] = "its weight has blocks, or scales of another tensor"
        elif not parameters.qtype.is_integer or parameters.qtype.bits > 8:
            left[node.name or ""] = f"its weight is {parameters.qtype}"
        elif axis is not None and axis != (
            0 if node.op_type == "Conv" or node.attributes.get_int("transB", 0) == 1 else 1
        ):
            left[node.name or ""] = "its scales are not those of outputs"
        else:
            tensor = biases.get(node.name or "")
            bias = None if tensor is None else tensor.numpy()
            layers[node.name or ""] = _Layer(node, constant, bias)
    return layers, left


def _notes(gains: list[float], left: Mapping[str, str]) -> list[str]:
    notes = [f"rounded the weights of {counted(len(gains), 'layer')} by second moments"]
    if gains:
        mean = float(np.mean(gains))
        notes[0] += f": the error of their outputs falls by {mean:.2g} dB on average"
    for reason, count in Counter(left.values()).items():
        notes.append(f"second moments left {counted(count, 'weight')}: {reason}")
    return notes
