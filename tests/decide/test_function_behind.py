import numpy as np
import onnx_ir as ir
import pytest
from support.models import build, node, weight

from bitwright.decide.function_behind import function_behind
from bitwright.graph import infer_shapes

ONE = np.ones(1, np.float32)
CONV = node("Conv", ["x", "w"], ["c"], name="conv")


def behind(steps, outputs, constants=None):
    given = {"w": weight(4, 3, 1, 1)} | (constants or {})
    shapes = {"x": [1, 3, 5, 5], "other": [1, 4, 5, 5]}
    read = {name for step in steps for name in step.input}
    inputs = {name: shape for name, shape in shapes.items() if name in read}
    model = ir.from_proto(build(steps, inputs, dict.fromkeys(outputs), given))
    infer_shapes(model)
    [conv] = [n for n in model.graph if n.op_type == "Conv"]
    return function_behind(conv.outputs[0]).name


@pytest.mark.parametrize(
    ("steps", "end"),
    [
        ([node("Relu", ["c"], ["y"])], "y"),
        ([node("Sigmoid", ["c"], ["g"]), node("Mul", ["c", "g"], ["y"])], "y"),
        (
            [
                node("Add", ["c", "three"], ["a"]),
                node("Clip", ["a", "zero", "six"], ["b"]),
                node("Mul", ["c", "b"], ["d"]),
                node("Div", ["d", "six"], ["y"]),
            ],
            "y",
        ),
        # Read by somebody else too: what is inside must not be seen alone.
        (
            [
                node("Relu", ["c"], ["r"]),
                node("Add", ["r", "c"], ["s"]),
                node("Softmax", ["s"], ["y"]),
            ],
            "s",
        ),
        ([node("Relu", ["c"], ["r"]), node("Add", ["r", "other"], ["y"])], "r"),
        ([node("Add", ["c", "other"], ["y"])], "c"),
        ([node("MaxPool", ["c"], ["y"], kernel_shape=[2, 2])], "c"),
        # Broadcast to more rows, it is no function of each number any more.
        ([node("Add", ["c", "wide"], ["y"])], "c"),
    ],
)
def test_the_function_ends_where_something_else_comes_in(steps, end):
    constants = {"three": ONE, "zero": ONE[0], "six": ONE[0], "wide": weight(2, 4, 5, 5)}
    used = {name for step in steps for name in step.input}
    given = {name: array for name, array in constants.items() if name in used}
    assert behind([CONV, *steps], ["y"], given) == end


def test_a_tensor_that_leaves_the_model_is_not_inside():
    steps = [CONV, node("Sigmoid", ["c"], ["g"]), node("Mul", ["c", "g"], ["y"])]
    assert behind(steps, ["y", "c"]) == "c"


def test_two_functions_of_one_tensor_are_none():
    steps = [CONV, node("Relu", ["c"], ["y"]), node("Tanh", ["c"], ["z"])]
    assert behind(steps, ["y", "z"]) == "c"
