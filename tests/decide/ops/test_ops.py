"""What the rows say of operators, held against ONNX Runtime and the standard."""

import ast
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import bitwright
from bitwright.decide.ops import OPERATORS, RULES, op_types, rule_of, takes_blocks
from bitwright.decide.ops.compute import COMPUTE_RULES
from bitwright.decide.ops.elementwise import ELEMENTWISE_RULES
from bitwright.decide.ops.movement import MOVEMENT_RULES
from bitwright.decide.ops.rule import OpRule
from bitwright.recipe.emulate import LEARNING_OPS

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
    transposed = [array.transpose(2, 0, 1) for array in inputs]
    expected = run(op_type, *inputs).transpose(2, 0, 1)
    np.testing.assert_allclose(run(op_type, *transposed), expected, rtol=1e-6)


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


# Operator facts stand once ------------------------------------------------------------------

# File -> how many lists of operators it has, and why they are not rows.
LISTS = {
    "compat/neural_compressor/quantization/post_training.py": (1, "what another tool leaves float"),
    "compat/nncf/quantization/weight_compression.py": (1, "what the peer looks through"),
    "compat/onnxruntime/fusions/fusion_layernorm.py": (1, "the pattern of a written-out norm"),
    "assess/bench/profile.py": (1, "what the runtime inserts to change a layout"),
    "assess/comparison/matching.py": (1, "what quantization tools merge into the node before"),
    "assess/comparison/units.py": (3, "what the runtime fuses, and what it never does"),
    "compat/neural_compressor/op_settings.py": (1, "what the peer observes"),
    "compat/neural_compressor/recipe_switches.py": (1, "what options of the peer count"),
    "compat/onnxruntime/matmul_nbits_quantizer.py": (1, "an option of the peer"),
    "compat/onnxruntime/nbits_configs.py": (1, "an option of the peer"),
    "assess/judge/kinds.py": (1, "what makes an output an embedding"),
    "assess/judge/output_parts.py": (2, "how far the parts of an output are followed"),
    "decide/ops/product_sizes.py": (1, "the runtime's integer kernels"),
    "compat/onnxruntime/quantize.py": (1, "what the peer adds to a model"),
    "compat/quark/algorithms.py": (1, "an option of the peer"),
    "compat/vai_q_onnx/options.py": (1, "what the vendor's tool does"),
    "compat/vai_q_onnx/static.py": (1, "what the vendor's tool does"),
    "decide/casting.py": (2, "operators whose results have a type of their own, and what is a sum"),
    "decide/half_limits.py": (3, "what tames or ends a large number, which half floats alone ask"),
    "decide/layout/dynamic.py": (1, "a function for each"),
    "decide/placement/hosts.py": (3, "what the runtime's float kernels compute as well"),
    "decide/placement/kernels.py": (16, "the runtime's kernels, each with its operators"),
    "emit/dynamic.py": (1, "a function for each"),
    "emit/qlinear_graph.py": (1, "operators of the standard domain that it writes"),
    "emit/qlinear_rules.py": (1, "a function for each"),
    "graph/channel_moves.py": (2, "what moves channels, and what keeps them"),
    "graph/checkpoint.py": (1, "what exporters put between a weight and its reader"),
    "graph/half_ops.py": (2, "an attribute for each, and whose bodies take half floats"),
    "graph/inner_values.py": (1, "a function for each that holds graphs"),
    "graph/runtime_ops.py": (2, "ONNX Runtime's operators in ONNX's domain, and their shapes"),
    "graph/shapes.py": (1, "ONNX Runtime's operators without shape inference"),
    "graph/subgraphs.py": (1, "operators that hold graphs"),
    "jobs/micro_nets.py": (1, "a net for each, to be timed"),
    "learning/torch_graph/table.py": (2, "a torch function for each"),
    "prepare/channels_last.py": (
        2,
        "which operators heed the place of channels",
    ),
    "prepare/fold_constants.py": (3, "what the optimizer's rules act on, and get wrong"),
    "prepare/fold_scale_shift.py": (1, "the pattern of a written-out norm"),
    "prepare/fuse_norms.py": (1, "the pattern of a written-out norm"),
    "recipe/named.py": (1, "the values of an option"),
    "recipe/emulate.py": (1, "the values of an option"),
    "run/opening.py": (1, "nodes that passes of the runtime are for"),
    "targets/npu_operations.py": (4, "hardware as data"),
}


def lists_of_operators(tree, names):
    """Yield every tuple, list, set, dict or split string that names three operators or more."""
    for node in ast.walk(tree):
        match node:
            case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items):
                found = [item.value for item in items if isinstance(item, ast.Constant)]
            case ast.Dict(keys=keys):
                found = [key.value for key in keys if isinstance(key, ast.Constant)]
            case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="split")):
                found = text.split()
            case _:
                continue
        if len(names.intersection(found)) >= 3:
            yield node.lineno


def test_operator_facts_stand_in_their_rows_only():
    root = Path(bitwright.__file__).parent
    names = {schema.name for schema in onnx.defs.get_all_schemas()}
    found = {}
    for path in sorted(root.rglob("*.py")):
        module = path.relative_to(root).as_posix()
        lines = list(lists_of_operators(ast.parse(path.read_text(encoding="utf-8")), names))
        if lines and not module.startswith("decide/ops/"):
            found[module] = len(lines)
    allowed = {module: count for module, (count, _) in LISTS.items()}
    assert {m: count for m, count in found.items() if count > allowed.get(m, 0)} == {}


@pytest.mark.parametrize("op_type", sorted(op_types(lambda op: op.neutral)))
def test_the_neutral_operand_changes_nothing(op_type):
    number, places = OPERATORS[op_type].neutral
    for place in places:
        inputs = [X, X]
        inputs[place] = np.full((1,), number, np.float32)
        np.testing.assert_array_equal(run(op_type, *inputs), X)


def test_weights_that_learn_are_those_that_have_a_rule():
    weighted = op_types(lambda op: op.quantizable and op.weights)
    # The weights of a batch norm are folded into the layer before it, or stay.
    assert set(LEARNING_OPS) == weighted - {"BatchNormalization"}


def test_only_the_experts_of_the_runtime_take_blocks():
    assert takes_blocks(ir.node("MatMul", [])) and not takes_blocks(ir.node("MoE", []))
    assert takes_blocks(ir.node("MoE", [], domain="com.microsoft"))


def test_data_inputs_are_neither_conditions_nor_shapes():
    where = ir.node("Where", [ir.Value(name=name) for name in "cxy"])
    assert OpRule("Where", data=(1, 2)).data_inputs(where) == [1, 2]
