"""What the rows say of operators, held against ONNX Runtime and the standard."""

import numpy as np
import onnx
import pytest

from bitwright.decide.ops import OPERATORS, RULES, op_types, rule_of
from bitwright.decide.ops.compute import COMPUTE_RULES
from bitwright.decide.ops.elementwise import ELEMENTWISE_RULES
from bitwright.decide.ops.movement import MOVEMENT_RULES

X = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
ATTRIBUTES = {"Cast": {"to": onnx.TensorProto.FLOAT}}


def run(op_type, *inputs):
    """Compute one operator; an operator of several inputs gets them all."""
    import onnxruntime

    names = [f"x{index}" for index in range(len(inputs))]
    node = onnx.helper.make_node(op_type, names, ["y"], **ATTRIBUTES.get(op_type, {}))
    kinds = {np.dtype(np.float32): onnx.TensorProto.FLOAT, np.dtype(bool): onnx.TensorProto.BOOL}
    graph = onnx.helper.make_graph(
        [node],
        op_type,
        [
            onnx.helper.make_tensor_value_info(name, kinds[array.dtype], array.shape)
            for name, array in zip(names, inputs, strict=True)
        ],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
    )
    opset = onnx.helper.make_opsetid("", 21)
    model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=10)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, dict(zip(names, inputs, strict=True)))[0]


def operands(op_type):
    """Return tensors of one shape that an operator can work on element by element."""
    if op_type == "Where":
        return [X > 0, X, X + 1]
    return [X] if OPERATORS[op_type].elementwise == "unary" else [np.abs(X), X + 1]


def test_every_operator_has_one_row():
    rows = [*COMPUTE_RULES, *MOVEMENT_RULES, *ELEMENTWISE_RULES]
    assert len(OPERATORS) == len(rows)
    assert set(RULES) <= set(OPERATORS)


def test_every_row_is_an_operator_that_exists():
    from onnx.defs import get_all_schemas

    standard = {schema.name for schema in get_all_schemas()}
    assert op_types(lambda op: not op.domain) - standard == {"SimplifiedLayerNormalization"}


@pytest.mark.parametrize("op_type", sorted(op_types(lambda op: op.elementwise)))
def test_what_works_element_by_element_commutes_with_a_transpose(op_type):
    inputs = operands(op_type)
    turned = [array.transpose(2, 0, 1) for array in inputs]
    expected = run(op_type, *inputs).transpose(2, 0, 1)
    np.testing.assert_allclose(run(op_type, *turned), expected, rtol=1e-6)


@pytest.mark.parametrize("op_type", sorted(op_types(lambda op: op.homogeneous)))
def test_positive_factors_pass_what_is_homogeneous(op_type):
    _, *rest = operands(op_type)
    factors = np.array([0.5, 2, 8], np.float32)[:, None]
    np.testing.assert_allclose(run(op_type, X * factors, *rest), run(op_type, X, *rest) * factors)


def test_what_reshapes_moves_and_what_moves_keeps_its_scale():
    assert op_types(lambda op: op.reshapes) <= op_types(lambda op: op.moves)
    assert op_types(lambda op: op.moves) - op_types(lambda op: op.keeps_scale) == {"Concat"}


def test_an_operator_without_a_rule_gets_pairs_everywhere():
    rule = rule_of("Pow")
    assert rule.data is None and rule.outputs is None and not rule.needs_all_inputs_quantized
