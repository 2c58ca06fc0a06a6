"""Int8 rows for prompts beside 4-bit products for single tokens, in one model."""

import numpy as np
import onnx
import pytest
from support.language_models import make_block, make_decoder, make_samples
from support.models import build, node, run

import bitwright
from bitwright.data.token_inputs import fill_token_inputs
from bitwright.errors import RecipeError
from bitwright.graph import load_model

BOTH = {"base": "int4-rtn", "weights": {"output": "matmul-nbits-and-rows"}}


def test_single_tokens_are_computed_in_4_bits_and_prompts_in_rows_of_int8():
    model = make_decoder(width=64)
    result = bitwright.quantize(model, recipe=BOTH)
    four = bitwright.quantize(model, recipe="int4-rtn").to_proto()
    eight = bitwright.quantize(model, recipe="int8-dynamic", force_dynamic=True).to_proto()
    both = result.to_proto()
    onnx.checker.check_model(both)
    assert [n.op_type for n in both.graph.node] == ["Size", "Less", "If"]
    assert [v.name for v in both.graph.output] == [v.name for v in model.graph.output]
    for count, alone in ((1, four), (3, four), (4, eight), (9, eight)):
        tokens = np.arange(count)[None] % 48
        feeds = fill_token_inputs(tokens, bitwright.jobs.opening.input_specs(load_model(model)))
        for wanted, found in zip(run(alone, feeds), run(both, feeds), strict=True):
            np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert any("prompts of 4 tokens and more" in note for note in result.plan.notes)


def test_constants_lie_in_the_main_graph_and_those_of_both_only_once():
    both = bitwright.quantize(make_decoder(width=64), recipe=BOTH).to_proto()
    for attribute in both.graph.node[-1].attribute:
        assert not attribute.g.initializer
    names = [tensor.name for tensor in both.graph.initializer]
    assert names.count("embedding") == 1 and "many/embedding" not in names
    assert len(set(names)) == len(names)


def test_the_accuracy_is_that_of_4_bits():
    model, data = make_block(), make_samples(8)
    settings = {**BOTH, "weights": {**BOTH["weights"], "accuracy_level": 0}}
    both = bitwright.quantize(model, data=data, recipe=settings)
    four = bitwright.quantize(
        model, data=data, recipe={"base": "int4-rtn", "weights": {"accuracy_level": 0}}
    )
    assert both.outputs[0].sqnr == four.outputs[0].sqnr
    again = bitwright.apply_plan(both.plan, model, data=data)
    assert again.to_proto().SerializeToString() == both.to_proto().SerializeToString()


def test_a_model_without_tokens_is_refused():
    weight = np.ones((64, 64), np.float32)
    nodes = [node("MatMul", ["x", "w"], ["y"], "product")]
    model = build(nodes, {"x": ["n", 64]}, {"y": ["n", 64]}, {"w": weight}, opset=21)
    with pytest.raises(RecipeError, match="no input of this one takes tokens; leave --prompts"):
        bitwright.quantize(model, recipe=BOTH)
