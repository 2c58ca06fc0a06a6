import onnx_ir as ir
import pytest

from bitwright.prepare.passes import Pass, PassResult, rewrite_nodes, run_passes, run_until_stable
from bitwright.recipe import Rewrites


@pytest.fixture
def model():
    x = ir.Value(name="x")
    nodes = [ir.node("Relu", [x]), ir.node("Neg", [x]), ir.node("Relu", [x], domain="other")]
    return ir.Model(ir.Graph([x], [], nodes=nodes, opset_imports={"": 21}), ir_version=10)


@pytest.mark.parametrize(
    ("result", "sentences"),
    [
        (PassResult(), []),
        (PassResult(1), ["dropped 1 node"]),
        (PassResult(2, ("one stays",)), ["dropped 2 nodes", "one stays"]),
        (PassResult(0, ("one stays",)), ["one stays"]),
    ],
)
def test_a_pass_reports_what_it_did_and_what_it_left(model, result, sentences):
    assert run_passes(model, [Pass(lambda model: result, "dropped {} node")]) == sentences


def test_only_passes_that_are_asked_for_run(model):
    steps = [
        Pass(lambda model: PassResult(1), "made {} slice", "split_to_slice"),
        Pass(lambda model: PassResult(1), "made {} pool", "reduce_mean_to_pool"),
    ]
    assert run_passes(model, steps, Rewrites(split_to_slice=True)) == ["made 1 slice"]


def test_passes_run_until_none_finds_anything_and_counts_add_up(model):
    left = [2, 0, 1, 0, 0]  # the second pass opens a place for the first
    steps = [
        Pass(lambda model: PassResult(left.pop(0)), "folded {} scale"),
        Pass(lambda model: PassResult(int(len(left) == 4)), "dropped {} node"),
    ]
    assert run_until_stable(model, steps) == ["folded 2 scales", "dropped 1 node"]


def test_each_standard_node_of_a_type_is_offered_and_refusals_are_noted(model):
    offered = []

    def rewrite(node, names):
        offered.append((node.domain, node.op_type))
        return True if node.op_type == "Neg" else "it is a Relu"

    result = rewrite_nodes(model, ("Relu", "Neg"), rewrite)
    assert result == PassResult(1, ("it is a Relu",))
    assert offered == [("", "Relu"), ("", "Neg")]


def test_a_node_that_went_with_another_one_is_not_offered(model):
    def rewrite(node, names):
        others = [other for other in model.graph if other is not node]
        model.graph.remove(others)
        return True

    assert rewrite_nodes(model, ("Relu", "Neg"), rewrite).changed == 1
