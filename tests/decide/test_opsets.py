"""The opset that types need."""

import onnx_ir as ir

from bitwright import load_recipe
from bitwright.decide.opsets import needed_opset


def test_sixteen_bits_need_a_newer_opset_than_eight():
    model = ir.Model(ir.Graph([], [], nodes=[], opset_imports={"": 11}), ir_version=8)
    assert needed_opset(model, load_recipe("int8")) == 13
    assert needed_opset(model, load_recipe("a16w8")) == 21
