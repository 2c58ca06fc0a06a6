"""Float16 models, computed in float32 inside or kept as they are: every op, both formats."""

from __future__ import annotations

import numpy as np
import pytest
from support.models import (
    FLOAT16,
    constants_of,
    make_cnn,
    make_mlp,
    make_samples,
    make_transformer,
    ops,
    quality,
    retype,
)
from support.op_models import OP_MODELS, op_samples

import bitwright
from bitwright.errors import ModelError, RecipeError
from bitwright.recipe import Recipe

# Their float16 twins are no models: an index or a size became float16, or the runtime has none.
NO_TWIN = {"ArgMax", "EmbedLayerNormalization", "Resize", "TopK"}
MODELS = {
    **{name: make for name, make in OP_MODELS.items() if name not in NO_TWIN},
    "cnn": make_cnn,
    "mlp": make_mlp,
    "transformer": make_transformer,
}
SETTINGS = {
    "uint8 qdq": {},
    "int8 qdq": {"activation": "int8"},
    "uint8 qoperator": {"format": "qoperator"},
}


def half(name):
    model = retype(MODELS[name](), np.float16, FLOAT16)
    samples = op_samples(MODELS[name](), 4) if name in OP_MODELS else make_samples(model, 4)
    return model, [
        {key: value.astype(np.float16) if value.dtype == np.float32 else value
         for key, value in sample.items()}
        for sample in samples
    ]  # fmt: skip


def float_types(result):
    """Return the float types of constants and of what goes in and out."""
    model = result.to_proto()
    ends = (*model.graph.input, *model.graph.output)
    outer = {value.type.tensor_type.elem_type for value in ends}
    inner = {array.dtype.name for array in constants_of(model).values() if array.dtype.kind == "f"}
    return inner, outer


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.sampled(46)
def test_kept_float16_runs_wherever_something_can_be_quantized(name, setting):
    model, samples = half(name)
    try:
        result = keep(model, samples, **SETTINGS[setting])
    except ModelError as error:
        assert "nothing in this model was quantized" in str(error)
        assert "float32 scales only" in str(error)
        return
    assert float_types(result)[0] <= {"float16"}
    assert "Cast" not in ops(result)
    assert quality(model, result, samples) > 20


def keep(model, samples, **fields):
    recipe = {"float16": "keep", **fields}
    return bitwright.quantize(model, recipe=recipe, data=samples, holdout=False)


@pytest.mark.parametrize("setting", SETTINGS)
def test_products_and_what_moves_their_values_are_quantized(setting):
    model, samples = half("transformer")
    every = {"select": {"constant_weights_only": False}}
    result = keep(model, samples, **SETTINGS[setting], **every)
    assert result.quantized["MatMul"] == 8 and result.quantized["Reshape"] == 1
    sums = [plan for plan in result.plan.nodes.values() if plan.op == "Add"]
    assert sums and all("float32 scales only" in plan.reason for plan in sums)
    assert float_types(result) == ({"float16"}, {FLOAT16})
    if "qoperator" in setting:
        assert ops(result)["QLinearMatMul"] == 8
    assert quality(model, result, samples) > 30


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", ["cnn", "transformer"])
def test_widened_models_have_all_ops_quantized_between_float16_inputs_and_outputs(name, setting):
    model, samples = half(name)
    recipe = Recipe.from_mapping(SETTINGS[setting])
    result = bitwright.quantize(model, recipe=recipe, data=samples, holdout=False)
    wide = bitwright.quantize(MODELS[name](), recipe=recipe, data=samples_of(name), holdout=False)
    assert result.quantized == wide.quantized
    assert float_types(result) == ({"float32"}, {FLOAT16})
    # Float32 needs no newer opset than the model's own.
    assert result.to_proto().opset_import[0].version == model.opset_import[0].version
    assert quality(model, result, samples) > 30


def samples_of(name):
    _, samples = half(name)
    return [{key: value.astype(np.float32) for key, value in s.items()} for s in samples]


def test_weights_of_a_convolution_alone_may_be_kept_too():
    """No result is quantized, so nothing is fused: a ConvTranspose has no integer kernel."""
    model, samples = half("ConvTranspose")
    result = keep(model, samples, per_channel=True)
    assert result.quantized == {"ConvTranspose": 1}
    assert constants_of(result.to_proto())["w_quantized"].dtype == np.int8


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"activation": "uint16"}, "float16 resolves 11 bits"),
        ({"format": "extended"}, "computes scales in float32"),
        ({"mode": "dynamic"}, "float16 has no effect in dynamic mode"),
    ],
)
def test_what_float16_cannot_hold_is_refused(fields, said):
    with pytest.raises(RecipeError, match=said):
        Recipe.from_mapping({"float16": "keep", **fields})
