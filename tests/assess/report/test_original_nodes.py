"""Nodes of the given file behind the rows of a comparison."""

import numpy as np
import onnx_ir as ir
from support.report_examples import measured

from bitwright.assess.report.subject import find_original_nodes


def value(name):
    return ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2]))


def model():
    """Return x -> Conv (no name) -> BatchNormalization -> Relu -> Add(x), with a Constant."""
    x, c, b, r, k, y = map(value, "xcbrky")
    constant = ir.tensor(np.ones(2, np.float32))
    nodes = [
        ir.node("Conv", [x], outputs=[c]),
        ir.node("BatchNormalization", [c], outputs=[b], name="bn"),
        ir.node("Relu", [b], outputs=[r], name="relu"),
        ir.node("Constant", [], {"value": constant}, outputs=[k], name="k"),
        ir.node("Add", [r, k], outputs=[y], name="add"),
    ]
    made = ir.Model(ir.Graph([x], [y], nodes=nodes, opset_imports={"": 21}), ir_version=10)
    nodes[0].name = None  # the graph has given it one
    return made


def test_a_row_stands_for_all_nodes_since_the_tensors_of_other_rows():
    rows = [measured(name="Conv_0", output="r"), measured(name="add", output="y")]
    assert find_original_nodes(model(), rows) == [
        (("", "Conv"), ("bn", "BatchNormalization"), ("relu", "Relu")),
        (("add", "Add"),),
    ]


def test_a_tensor_that_the_file_lacks_is_found_by_the_name_of_its_node():
    rows = [measured(name="relu", output="made later"), measured(name="ours", output="gone")]
    assert find_original_nodes(model(), rows) == [(("relu", "Relu"),), ()]
