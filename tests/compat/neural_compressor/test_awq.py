"""AWQ in steps."""

import numpy as np
import onnx
import pytest
from onnx import helper
from support.models import (
    info,
    run,
)
from support.neural_compressor import mlp, rows

from bitwright.compat.neural_compressor.weight_only import (
    apply_awq_clip,
    apply_awq_scale,
    rtn_quantize,
)
from bitwright.errors import ModelError


def observed(model, samples, names):
    twin = onnx.ModelProto()
    twin.CopyFrom(model)
    twin.graph.output.extend(info(name) for name in names)
    values = [dict(zip([*"y", *names], run(twin, {"x": x}), strict=True)) for x in samples]
    return {name: [value[name] for value in values] for name in names}


def test_awq_in_steps_changes_nothing_and_helps():
    model, samples = mlp(), rows()
    pairs = {"relu": [n for n in model.graph.node if n.name == "fc2"]}
    outputs = observed(model, samples, ["r"])
    outputs["r"][0][:, :4] *= 30  # a few channels stand out
    kept = model.SerializeToString(), {name: list(arrays) for name, arrays in outputs.items()}
    scaled, after = apply_awq_scale(model, {}, pairs, outputs, 3, 32, "asym")
    assert model.SerializeToString() == kept[0] and list(outputs) == list(kept[1])
    np.testing.assert_allclose(
        run(scaled.model, {"x": samples[0]})[0], run(model, {"x": samples[0]})[0], atol=1e-3
    )
    reads = next(n.input[0] for n in scaled.nodes() if n.name == "fc2")
    assert after[reads][0].shape == outputs["r"][0].shape
    assert (after[reads][0] != outputs["r"][0]).any()
    ratios = apply_awq_clip(scaled, {}, pairs, after, 3, 32, "asym")
    (name,) = ratios
    assert name in {n.input[1] for n in scaled.nodes() if n.name == "fc2"}
    assert 0.91 <= ratios[name] <= 1
    assert (
        rtn_quantize(scaled, num_bits=3, ratios=ratios).plan.weights[name].rounding.shrink
        == (ratios[name])
    )


def test_awq_in_steps_says_what_is_missing():
    model = mlp()
    pairs = {"relu": [n for n in model.graph.node if n.name == "fc2"]}
    with pytest.warns(UserWarning, match="output_dicts has no 'r'"):
        assert apply_awq_clip(model, {}, pairs, {}, 4, 32, "asym") == {}
    stray = {"x": [helper.make_node("MatMul", ["a", "b"], ["c"], name="nowhere")]}
    with pytest.raises(ModelError, match="no node 'nowhere'"):
        apply_awq_scale(model, {}, stray, {}, 4, 32, "asym")
