"""What operators are defined for, against the checker of onnx itself."""

import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from bitwright.graph.half_ops import find_half_parameters


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("op", "inputs", "version"),
    [("Relu", 1, 14), ("Conv", 2, 11), ("Conv", 2, 22), ("MatMul", 2, 13), ("Range", 3, 11),
     ("NonMaxSuppression", 2, 11), ("Concat", 5, 13), ("LayerNormalization", 2, 17)],
)  # fmt: skip
def test_the_checker_agrees(op, inputs, version, kind):
    half = find_half_parameters(ir.Node("", op, [None] * inputs, version=version), kind)
    schema = onnx.defs.get_schema(op, version, "")
    allowed = {one.type_param_str: one.allowed_type_strs for one in schema.type_constraints}
    dtype = getattr(onnx.TensorProto, kind.upper())
    given = [helper.make_tensor_value_info(f"x{n}", dtype, None) for n in range(inputs)]
    attributes = {"axis": 0} if op == "Concat" else {}
    node = helper.make_node(op, [v.name for v in given], ["y"], **attributes)
    graph = helper.make_graph([node], "g", given, [helper.make_empty_tensor_value_info("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)])
    try:
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
        accepted = True
    except onnx.shape_inference.InferenceError as error:
        accepted = "unsupported type" not in str(error)
    assert all(map(half.takes, range(inputs))) == accepted, allowed


def test_the_runtime_says_what_its_own_operators_take():
    node = ir.Node("com.microsoft", "GroupQueryAttention", [None] * 13)
    half = find_half_parameters(node, "float16")
    assert half.takes(0) and half.takes(3) and half.gives(0)
    assert not half.takes(5) and not half.takes(12)  # lengths, and scales of a cache


def test_nothing_is_known_of_other_domains():
    node = ir.Node("mine", "FusedConv", [None, None])
    assert not find_half_parameters(node, "float16").takes(0)
