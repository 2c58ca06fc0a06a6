"""Stand-ins for what the NPU computes instead of an operator, written in operators of ONNX.

The quantized model then computes on a CPU what the hardware will, and ranges are observed on it.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from bitwright.graph.subgraphs import iter_graphs
from bitwright.prepare.building import without_notes
from bitwright.prepare.simulation.activations import (
    harden_sigmoids,
    round_clip_bounds,
    round_leaky_slopes,
    scale_hard_sigmoids,
)
from bitwright.prepare.simulation.bfloat16 import STEP
from bitwright.prepare.simulation.instance_norm import simulate_instance_norm
from bitwright.prepare.simulation.pools import scale_average_pools, scale_means
from bitwright.prepare.simulation.softmax import simulate_softmax
from bitwright.recipe import Simulation

__all__ = ["simulate_npu", "simulation_steps"]

_Change = Callable[[ir.Model, list[str]], int]

# Sigmoids come before hard sigmoids, which they become.
_STEPS: tuple[tuple[str, _Change, str], ...] = (
    ("leaky_relu", without_notes(round_leaky_slopes), "the slope of {} LeakyRelu"),
    ("sigmoid", without_notes(harden_sigmoids), "{} Sigmoid by HardSigmoid"),
    ("hard_sigmoid", without_notes(scale_hard_sigmoids), "the slope of {} HardSigmoid"),
    ("average_pool", scale_average_pools, "the divisor of {} average pool"),
    ("reduce_mean", scale_means, "the divisor of {} ReduceMean"),
    ("softmax", simulate_softmax, "{} Softmax in bfloat16"),
    ("instance_norm", simulate_instance_norm, "{} InstanceNormalization in bfloat16"),
    ("clip", round_clip_bounds, "the bounds of {} Clip"),
)


def simulate_npu(model: ir.Model, wanted: Simulation) -> list[str]:
    """Replace ops by what the NPU computes in their place, in place; return what was done, and not.

    >>> graph = ir.Graph([], [], nodes=[], opset_imports={"": 21})
    >>> simulate_npu(ir.Model(graph, ir_version=10), Simulation())
    []
    """
    told: list[str] = []
    for field, change, sentence in _STEPS:
        if getattr(wanted, field):
            left: list[str] = []
            count = change(model, left)
            if count:
                told.append(f"simulated {sentence.format(count)}{'' if count == 1 else 's'}")
            told += left
    return told


def simulation_steps(model: ir.Model) -> dict[str, str]:
    """Return the nodes that compute in bfloat16 and so take no quantizers, each with its reason.

    >>> graph = ir.Graph([], [], nodes=[], opset_imports={"": 21})
    >>> simulation_steps(ir.Model(graph, ir_version=10))
    {}
    """
    return {
        node.name: "it is a bfloat16 step of the simulated NPU"
        for _, graph in iter_graphs(model)
        for node in graph
        if node.name and node.metadata_props.get("bitwright.role") == STEP
    }
