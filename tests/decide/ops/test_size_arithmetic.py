import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from support.models import build, node, normal

from bitwright import load_recipe, quantize
from bitwright.decide.casting import decide_casts
from bitwright.decide.ops.size_arithmetic import SIZE_ARITHMETIC, find_size_arithmetic
from bitwright.graph import infer_shapes

ARRAYS = {
    "limit": np.array([10, 300], np.float32),
    "zero": np.zeros(1, np.int64),
    "none": np.zeros(2, np.int64),
    "axes": np.array([2, 3]),
    "target": np.array([33, 47], np.float32),
    "ones": np.ones(2, np.float32),
    "scale": np.array([1, 1, 0.5, 2], np.float32),
    "wider": np.array([0, 0, 3, 5], np.float32),
    "parts": np.array([1, 8, 8, 5], np.float32),
    "factors": np.diag([1, 1, 0.5, 2]).astype(np.float32),
    "one": np.array([1], np.float32),
    "start": np.array(0, np.float32),
    "step": np.array(1, np.float32),
    "table": normal(5, 6),
}
SIZES = node("Cast", ["shape"], ["sizes"], to=1)
# A computation of sizes in float, and what reads the result beside the features c.
CASES = {
    "Slice": [
        node("Shape", ["c"], ["shape"], start=2),
        SIZES,
        node("Min", ["sizes", "limit"], ["s"]),
        node("Cast", ["s"], ["end"], to=7),
        node("Slice", ["c", "none", "end", "axes"], ["y"]),
    ],
    "Reshape": [
        node("Shape", ["c"], ["shape"]),
        SIZES,
        node("Mul", ["sizes", "scale"], ["s"]),
        node("Cast", ["s"], ["new"], to=7),
        node("Reshape", ["c", "new"], ["y"]),
    ],
    "Reshape, by a product": [
        node("Shape", ["c"], ["shape"]),
        SIZES,
        node("MatMul", ["sizes", "factors"], ["s"]),
        node("Cast", ["s"], ["new"], to=7),
        node("Reshape", ["c", "new"], ["y"]),
    ],
    "Expand": [
        node("Shape", ["c"], ["shape"]),
        SIZES,
        node("Add", ["sizes", "wider"], ["s"]),
        node("Cast", ["s"], ["new"], to=7),
        node("GlobalAveragePool", ["c"], ["p"]),
        node("Expand", ["p", "new"], ["y"]),
    ],
    "Range": [
        node("Shape", ["c"], ["shape"], start=3),
        SIZES,
        node("Mul", ["sizes", "one"], ["s"]),
        node("Squeeze", ["s"], ["end"]),
        node("Range", ["start", "end", "step"], ["r"]),
        node("Add", ["c", "r"], ["y"]),
    ],
    "Resize": [
        node("Shape", ["c"], ["shape"], start=2),
        SIZES,
        node("Div", ["target", "sizes"], ["s"]),
        node("Concat", ["ones", "s"], ["scales"], axis=0),
        node("Resize", ["c", "", "scales"], ["y"], mode="nearest"),
    ],
    "Tile": [
        node("Shape", ["c"], ["shape"]),
        SIZES,
        node("Div", ["sizes", "parts"], ["s"]),
        node("Floor", ["s"], ["whole"]),
        node("Cast", ["whole"], ["times"], to=7),
        node("Tile", ["c", "times"], ["y"]),
    ],
    "Gather": [
        node("Shape", ["c"], ["shape"], start=2, end=3),
        SIZES,
        node("Sub", ["sizes", "one"], ["s"]),
        node("Relu", ["s"], ["last"]),
        node("Cast", ["last"], ["index"], to=7),
        node("Gather", ["c", "index"], ["y"], axis=2),
    ],
}


def make(nodes):
    """A model of a convolution and these nodes, each called like its result."""
    nodes = [node("Conv", ["x", "w"], ["c"], pads=[1] * 4), *nodes]
    for one in nodes:
        one.name = one.output[0]
    read = {name for one in nodes for name in one.input}
    weights = {name: array for name, array in ARRAYS.items() if name in read}
    weights["w"] = normal(8, 3, 3, 3)
    return build(nodes, {"x": ("N", 3, "H", "W")}, {"y": None}, weights)


@pytest.mark.parametrize("options", [{"target": "npu-cnn"}, {"target": "qualcomm-htp"}], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_sizes_computed_in_float_are_exact(case, options):
    model = make(CASES[case])
    samples = [{"x": normal(1, 3, 16, 16, seed=seed)} for seed in range(3)]
    found = quantize(model, recipe=load_recipe(**options), data=samples, timing=False)
    exact = {n for n, plan in found.plan.nodes.items() if plan.reason == SIZE_ARITHMETIC}
    assert "sizes" in exact
    assert not [key for name in exact for key in found.plan.nodes[name].inputs if key]
    for size in (16, 24):  # also one that no sample had
        feeds = {"x": normal(1, 3, size, size + 4)}
        shapes = [
            ort.InferenceSession(one.SerializeToString()).run(["y"], feeds)[0].shape
            for one in (model, found.to_proto())
        ]
        assert shapes[0] == shapes[1]


def found_in(nodes):
    """The results of the nodes that are found."""
    return find_size_arithmetic(ir.from_proto(make(nodes)))


def test_indices_computed_from_data_are_found_up_to_what_computes_the_data():
    nodes = [
        node("GlobalAveragePool", ["c"], ["p"]),
        node("Mul", ["p", "step"], ["m"]),
        node("Cast", ["m"], ["i"], to=7),
        node("Gather", ["table", "i"], ["y"]),
    ]
    assert found_in(nodes) == {"m", "i"}


def test_what_the_model_also_computes_with_is_not_found():
    nodes = [
        node("Relu", ["c"], ["r"]),
        node("Cast", ["r"], ["i"], to=7),
        node("Gather", ["table", "i"], ["t"]),
        node("ReduceSum", ["t"], ["u"], keepdims=0),
        node("Mul", ["r", "u"], ["y"]),
    ]
    assert found_in(nodes) == {"i"}


def test_what_an_argmax_chooses_by_is_not_found():
    nodes = [
        node("Relu", ["c"], ["r"]),
        node("ArgMax", ["r"], ["i"], axis=1),
        node("Gather", ["table", "i"], ["y"]),
    ]
    assert found_in(nodes) == set()


def test_numbers_from_sizes_that_join_the_data_are_not_found():
    nodes = [
        node("Shape", ["c"], ["shape"], start=3),
        SIZES,
        node("Mul", ["c", "sizes"], ["y"]),
    ]
    assert found_in(nodes) == set()


def test_sizes_stay_float32_in_a_model_of_float16():
    model = ir.from_proto(make(CASES["Resize"]))
    infer_shapes(model)
    found = decide_casts(model, load_recipe("float16"))
    assert {name for name, plan in found.items() if plan.reason == SIZE_ARITHMETIC} == {
        "s",
        "scales",
        "sizes",
    }
    assert found["c"].action == "quantize"


def test_a_product_that_makes_sizes_stays_float_in_a_dynamic_model():
    nodes = [
        node("Shape", ["c"], ["shape"]),
        SIZES,
        node("MatMul", ["sizes", "turn"], ["s"]),
        node("Cast", ["s"], ["new"], to=7),
        node("Reshape", ["c", "new"], ["r"]),
        node("MatMul", ["r", "turn"], ["y"]),
    ]
    for one in nodes:
        one.name = one.output[0]
    turn = np.eye(4, dtype=np.float32)[[1, 0, 2, 3]]
    inputs, weights = {"c": ["A", "B", "C", 4]}, {"turn": turn}
    model = build(nodes, inputs, {"y": None}, weights)
    found = quantize(model, recipe="int8-dynamic", timing=False)
    assert found.plan.nodes["s"].reason == SIZE_ARITHMETIC
    assert found.plan.nodes["y"].action == "quantize"
    feeds = {"c": normal(1, 2, 3, 4)}
    session = ort.InferenceSession(found.to_proto().SerializeToString())
    assert session.run(["y"], feeds)[0].shape == (2, 1, 3, 4)
