"""Simulate the NPU: rewrite operators to compute what it computes, in operators of ONNX.

The quantized model then computes on a CPU what the hardware will, and ranges are observed on it.
"""

from __future__ import annotations

import onnx_ir as ir

from bitwright.graph.subgraphs import iter_graphs
from bitwright.prepare.passes import Pass, run_passes
from bitwright.prepare.simulation.activations import (
    harden_sigmoids,
    round_clip_bounds,
    round_leaky_slopes,
    scale_hard_sigmoids,
)
from bitwright.prepare.simulation.bfloat16 import STEP, simulate_instance_norm, simulate_softmax
from bitwright.prepare.simulation.pools import scale_average_pools, scale_means
from bitwright.recipe import Simulation, SimulationSwitches

__all__ = ["simulate_npu", "simulation_steps"]

# Sigmoids come before hard sigmoids, which they become.
_ALWAYS = (
    Pass(round_leaky_slopes, "simulated the slope of {} LeakyRelu", "leaky_relu"),
    Pass(harden_sigmoids, "simulated {} Sigmoid by HardSigmoid", "sigmoid"),
    Pass(scale_hard_sigmoids, "simulated the slope of {} HardSigmoid", "hard_sigmoid"),
    Pass(scale_average_pools, "simulated the divisor of {} average pool", "average_pool"),
    Pass(scale_means, "simulated the divisor of {} ReduceMean", "reduce_mean"),
)
_ASKED_FOR = (
    Pass(simulate_softmax, "simulated {} Softmax in bfloat16", "softmax"),
    Pass(simulate_instance_norm, "simulated {} InstanceNormalization in bfloat16", "instance_norm"),
    Pass(round_clip_bounds, "simulated the bounds of {} Clip", "clip"),
)


def simulate_npu(
    model: ir.Model,
    wanted: Simulation,
    switches: SimulationSwitches = SimulationSwitches(),  # noqa: B008 (frozen)
) -> list[str]:
    """Replace ops, in place, by what the NPU computes instead; return what was done, and not."""
    return run_passes(model, _ALWAYS, switches) + run_passes(model, _ASKED_FOR, wanted)


def simulation_steps(model: ir.Model) -> dict[str, str]:
    """Return the nodes that compute in bfloat16 and so take no quantizers, each with its reason."""
    return {
        node.name: "it is a bfloat16 step of the simulated NPU"
        for _, graph in iter_graphs(model)
        for node in graph
        if node.name and node.metadata_props.get("bitwright.role") == STEP
    }
