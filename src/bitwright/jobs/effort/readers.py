"""Ranges of each activation by the error behind what reads it.

What a range costs is not what it does to the tensor: a value that a Relu cuts off, or that a small
weight multiplies, may be clipped for nothing. So each product runs by itself on inputs quantized
over the range of every method, and the outputs are compared behind its activation function.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from bitwright.data import Sample
from bitwright.decide.function_behind import function_behind
from bitwright.decide.ops import LINEAR_OPS
from bitwright.graph import is_constant
from bitwright.jobs.opening import Prepared
from bitwright.numerics.quantize import fake_quantize
from bitwright.plan import QuantPlan
from bitwright.run import LayerwiseRun, open_piece

__all__ = ["MIN_SAVED", "better_methods"]

MIN_SAVED = 0.1
"""The share of the error behind its readers that a range must save to be another than the rest."""


def better_methods(
    prepared: Prepared, plans: Sequence[QuantPlan], samples: Sequence[Sample]
) -> dict[str, int]:
    """Return for which tensors another plan than the first has a range of less error, and which.

    The plans are for the same layout, and differ in the ranges of activations alone.
    """
    first, *_ = plans
    layers = _products(prepared, first)
    errors: defaultdict[str, npt.NDArray[np.float64]] = defaultdict(lambda: np.zeros(len(plans)))
    if not layers:
        return {}
    with LayerwiseRun(prepared.model, list(layers), samples, providers=prepared.providers) as run:
        for inputs in run:
            source, result, key = layers[inputs.node]
            product = open_piece(
                prepared.model,
                source,
                result,
                assumed_type=ir.TensorType(ir.DataType.FLOAT),
                providers=prepared.providers,
            )
            size, lost = 0.0, np.zeros(len(plans))
            for array in inputs.values(source):
                wanted = product(array)
                size += float(np.vdot(wanted, wanted))
                for index, plan in enumerate(plans):
                    found = plan.parameters(key)
                    seen = fake_quantize(array, found.scale, found.zero_point, found.qtype)
                    change = product(seen) - wanted
                    lost[index] += float(np.vdot(change, change))
            if size > 0:
                errors[first.root(key)] += lost / size
    chosen = {key: int(np.argmin(lost)) for key, lost in errors.items()}
    return {
        key: best
        for key, best in chosen.items()
        if errors[key][best] < (1 - MIN_SAVED) * errors[key][0]
    }


def _products(prepared: Prepared, plan: QuantPlan) -> dict[str, tuple[str, str, str]]:
    """Return what each product reads and gives, and the entry of what it reads, by its name."""
    found = {}
    for node in prepared.model.graph:
        planned = plan.nodes.get(node.name or "")
        if planned is None or planned.action != "quantize" or node.op_type not in LINEAR_OPS:
            continue
        source, key = node.inputs[0], planned.inputs[0]
        if (
            source is None
            or key is None
            or not all(map(is_constant, filter(None, node.inputs[1:])))
        ):
            continue
        entry = plan.tensors[plan.root(key)]
        if entry.role != "activation" or entry.scale is None or np.ndim(entry.scale):
            continue
        end = function_behind(node.outputs[0])
        found[node.name or ""] = source.name or "", end.name or "", key
    return found
