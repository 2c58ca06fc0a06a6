"""What layers give in the float model and in its quantized form."""

import numpy as np
import onnx_ir as ir
import pytest
from support.models import build, node, normal, weight

from bitwright.graph import infer_shapes
from bitwright.jobs.layer_outputs import FloatOutputs, Line
from bitwright.rounding.bias_correction import find_biased_layers
from bitwright.run import LayerwiseRun


def make_layers():
    constants = {
        **{f"w{index}": weight(4, 4, 3, 3, seed=index) for index in range(3)},
        **{f"b{index}": normal(4, seed=9 + index) for index in range(3)},
        "lowest": np.float32(0),
        "highest": np.float32(6),
    }
    steps, source = [], "x"
    for index, behind in enumerate(("Relu", "Clip", "Relu")):
        steps.append(
            node(
                "Conv",
                [source, f"w{index}", f"b{index}"],
                [f"c{index}"],
                name=f"conv{index}",
                pads=[1, 1, 1, 1],
            )
        )
        source = f"r{index}"
        bounds = ["lowest", "highest"] if behind == "Clip" else []
        steps.append(node(behind, [f"c{index}", *bounds], [source], name=f"act{index}"))
    model = ir.from_proto(build(steps, {"x": [1, 4, 8, 8]}, {"r2": [1, 4, 8, 8]}, constants))
    infer_shapes(model)
    layers, _ = find_biased_layers(model, {f"conv{index}" for index in range(3)})
    return model, layers


def test_outputs_are_compared_behind_the_function_that_follows_each_layer():
    model, layers = make_layers()
    samples = [{"x": normal(1, 4, 8, 8, seed=seed)} for seed in range(4)]
    with (
        LayerwiseRun(model, (), samples) as run,
        FloatOutputs(model, layers, run, group_bytes=1 << 20) as outputs,
    ):
        kernel, bias = (value.const_value.numpy() for value in layers[0].node.inputs[1:])
        padded = [np.pad(s["x"], ((0, 0), (0, 0), (1, 1), (1, 1))) for s in samples]
        windows = [
            np.lib.stride_tricks.sliding_window_view(one, (3, 3), axis=(2, 3)) for one in padded
        ]
        given = [
            np.einsum("nihwkl,oikl->nohw", one, kernel) + bias[:, None, None] for one in windows
        ]
        shifted = [array.astype(np.float32) + 0.25 for array in given]
        found = outputs.beside(layers[0], shifted, {})
        moved = Line(np.full(4, -0.25))
        test = found.test([moved, moved])
    assert sum(count for half in found.halves for *_, count in half) == 4
    assert test.before > 1
    assert test.after == pytest.approx(0, abs=1e-6)


def test_functions_that_compute_the_same_are_opened_once():
    model, layers = make_layers()
    samples = [{"x": normal(1, 4, 8, 8)}]
    with (
        LayerwiseRun(model, (), samples) as run,
        FloatOutputs(model, layers, run, group_bytes=1 << 20) as outputs,
    ):
        relu, clip, again = (outputs._function(one, {}) for one in layers)
    assert relu is again
    assert relu is not clip
    assert clip(np.float32([[[[7]]]])).max() == 6
    assert relu(np.float32([[[[7]]]])).max() == 7
