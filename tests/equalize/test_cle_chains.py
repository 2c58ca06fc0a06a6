"""Which layers may be equalized: the walk from one to the next, and what stops it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support.equalization_models import difference, equalized, make_chain, make_mobilenet, uneven
from support.models import as_proto, build, make_samples, node, normal, weight

from bitwright.equalize.cle_chains import find_chains
from bitwright.graph import infer_shapes, load_model


def chains_of(model):
    loaded = load_model(model)
    infer_shapes(loaded)
    return find_chains(loaded)


def pairs_of(model):
    return [(link.head.node.name, link.tail.node.name) for link in chains_of(model).links]


def refusal(model, name="head"):
    found = chains_of(model)
    assert name not in {link.head.node.name for link in found.links}
    return found.refused[name]


ints = np.array
ZERO, INF = np.float32(0), np.float32(np.inf)
PAD = ints([0, 0, 1, 1, 0, 0, 1, 2])

EXACT = {
    "nothing": [],
    "relu": [("Relu", [], {})],
    "leaky relu": [("LeakyRelu", [], {"alpha": 0.1})],
    "prelu of one slope": [("PRelu", [np.float32([0.3])], {})],
    "prelu of a slope for each channel": [("PRelu", [normal(6, 1, 1)], {})],
    "clip from zero": [("Clip", [ZERO], {})],
    "clip to infinity": [("Clip", [ZERO, INF], {})],
    "clip to the largest float": [("Clip", [ZERO, np.finfo(np.float32).max], {})],
    "clip to zero": [("Clip", [None, ZERO], {})],
    "zeros around": [("Pad", [PAD], {})],
    "zeros that are named": [("Pad", [PAD, ZERO], {})],
    "edges repeated": [("Pad", [PAD], {"mode": "edge"})],
    "max pool": [("MaxPool", [], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]})],
    "average pool": [
        ("AveragePool", [], {"kernel_shape": [3, 3], "pads": [1] * 4, "count_include_pad": 1})
    ],
    "global average": [("GlobalAveragePool", [], {})],
    "mean": [("ReduceMean", [], {"axes": [-2, -1]})],
    "identity": [("Identity", [], {})],
    "dropout": [("Dropout", [np.float32(0.5)], {})],
    "a factor": [("Mul", [np.float32(1.25)], {})],
    "a shift of each channel": [("Add", [normal(6, 1, 1)], {})],
    "one shift": [("Add", [np.float32(0.4)], {}), ("Relu", [], {})],
    "many": [("Relu", [], {}), ("MaxPool", [], {"kernel_shape": [2, 2]}), ("Pad", [PAD], {})],
}


@pytest.mark.parametrize("parts", EXACT.values(), ids=EXACT)
def test_these_pass_a_factor_on_exactly(parts):
    model = make_chain(parts)
    assert pairs_of(model) == [("head", "tail")]
    twin, _ = equalized(model, weight_threshold=None)
    onnx.checker.check_model(as_proto(twin), full_check=True)
    assert difference(model, twin, make_samples(model, 3)) < 1e-5
    before = {t.name: t for t in model.graph.initializer}
    assert any(t != before.get(t.name) for t in as_proto(twin).graph.initializer)


STOPS = {
    "relu6": ([("Clip", [ZERO, np.float32(6)], {})], "Clip 'part0' does not pass"),
    "clip from below": ([("Clip", [np.float32(-1)], {})], "Clip 'part0' does not pass"),
    "ones around": ([("Pad", [PAD, np.float32(1)], {})], "Pad 'part0' does not pass"),
    "new channels": ([("Pad", [ints([0, 1, 0, 0, 0, -1, 0, 0])], {})], "Pad 'part0'"),
    "sigmoid": ([("Sigmoid", [], {})], "Sigmoid 'part0' does not pass"),
    "a shift of each pixel": ([("Add", [normal(6, 8, 8)], {})], "Add 'part0' does not pass"),
    "a mean of channels": (
        [("ReduceMean", [], {"axes": [1]}), ("Expand", [ints([1, 6, 8, 8])], {})],
        "ReduceMean 'part0' does not pass",
    ),
}


@pytest.mark.parametrize(("parts", "reason"), STOPS.values(), ids=STOPS)
def test_these_end_a_chain_with_a_reason(parts, reason):
    assert reason in refusal(make_chain(parts))


def test_a_tensor_that_callers_read_is_left_alone():
    model = make_chain([("Relu", [], {})])
    model.graph.output.append(
        onnx.helper.make_tensor_value_info("t1", onnx.TensorProto.FLOAT, None)
    )
    assert refusal(model) == "'t1' is an output of the model"


def test_a_tensor_with_two_readers_is_left_alone():
    model = make_chain([("Relu", [], {})])
    model.graph.node.append(node("GlobalMaxPool", ["t1"], ["z"], name="other"))
    model.graph.output.append(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, None))
    assert refusal(model) == "'t1' is read 2 times"


def test_a_shared_weight_is_left_alone():
    c = {"w": uneven(4, 4, 3, 3)}
    nodes = [
        node("Conv", ["x", "w"], ["a"], name="first", pads=[1] * 4),
        node("Relu", ["a"], ["b"], name="relu"),
        node("Conv", ["b", "w"], ["y"], name="second", pads=[1] * 4),
    ]
    model = build(nodes, {"x": [1, 4, 6, 6]}, {"y": None}, c)
    assert refusal(model, "first") == "its weight is shared with another node"
    assert not chains_of(model).links


def test_a_shared_bias_is_copied():
    c = {"w1": uneven(4, 4, 3, 3), "w2": uneven(4, 4, 3, 3, seed=1), "b": normal(4)}
    nodes = [
        node("Conv", ["x", "w1", "b"], ["a"], name="first", pads=[1] * 4),
        node("Relu", ["a"], ["r"], name="relu"),
        node("Conv", ["r", "w2", "b"], ["y"], name="second", pads=[1] * 4),
    ]
    model = build(nodes, {"x": [1, 4, 6, 6]}, {"y": None}, c)
    twin, found = equalized(model, weight_threshold=None)
    assert len(found.chains.links) == 1
    assert difference(model, twin, make_samples(model)) < 1e-5


def test_a_weight_that_is_an_input_of_the_model_is_left_alone():
    nodes = [node("Conv", ["x", "w"], ["a"], name="head"), node("Relu", ["a"], ["y"], name="relu")]
    model = build(nodes, {"x": [1, 3, 6, 6], "w": [4, 3, 3, 3]}, {"y": None})
    assert refusal(model) == "its weight is computed at run time"


def test_a_convolution_reads_its_channels_and_a_product_its_last_axis():
    c = {"w1": uneven(6, 3, 1, 1), "w2": weight(6, 4, seed=1)}
    nodes = [
        node("Conv", ["x", "w1"], ["a"], name="head"),
        node("MatMul", ["a", "w2"], ["y"], name="tail"),
    ]
    model = build(nodes, {"x": [1, 3, 5, 6]}, {"y": None}, c)
    assert "does not read its channels" in refusal(model)


@pytest.mark.parametrize("batch", [1, "n"])
@pytest.mark.parametrize(
    "between",
    [
        [("Flatten", [], {})],
        [("GlobalAveragePool", [], {}), ("Flatten", [], {})],
        [("Reshape", [ints([0, -1])], {})],
        [("Reshape", [ints([-1, 6 * 16])], {})],
        [("GlobalAveragePool", [], {}), ("Reshape", [ints([-1, 6])], {})],
        [("GlobalAveragePool", [], {}), ("Squeeze", [ints([2, 3])], {})],
        [("GlobalAveragePool", [], {}), ("Squeeze", [ints([-1, -2])], {})],
        [("ReduceMean", [], {"axes": [2, 3], "keepdims": 0}), ("Relu", [], {})],
    ],
    ids=lambda parts: " ".join(str(p[0]) for p in parts) if isinstance(parts, list) else None,
)
@pytest.mark.parametrize("transposed", [0, 1])
def test_channels_are_followed_into_a_classifier(between, batch, transposed):
    model = make_classifier(between, batch=batch, transposed=transposed)
    assert pairs_of(model) == [("head", "fc")]
    twin, _ = equalized(model, weight_threshold=None)
    assert difference(model, twin, make_samples(model, open_size=3)) < 1e-5


def make_classifier(between, *, batch=1, transposed=1):
    spatial = 1 if any(p[0] in ("GlobalAveragePool", "ReduceMean") for p in between) else 16
    fc = uneven(6 * spatial, 5, seed=3)
    c = {
        "w": uneven(6, 3, 3, 3),
        "b": normal(6),
        "fc": fc.T.copy() if transposed else fc,
        "fb": normal(5),
    }
    nodes = [
        node("Conv", ["x", "w", "b"], ["a"], name="head", pads=[1] * 4),
        node("Relu", ["a"], ["t0"], name="relu"),
    ]
    value = "t0"
    for index, (op_type, arrays, attributes) in enumerate(between):
        names = [f"c{index}_{at}" for at in range(len(arrays))]
        c |= dict(zip(names, arrays, strict=True))
        nodes.append(node(op_type, [value, *names], [f"u{index}"], name=f"p{index}", **attributes))
        value = f"u{index}"
    nodes.append(node("Gemm", [value, "fc", "fb"], ["y"], name="fc", transB=transposed))
    return build(nodes, {"x": [batch, 3, 4, 4]}, {"y": None}, c)


@pytest.mark.parametrize(
    "between",
    [
        # Rows of the result are not members of the batch.
        [("Reshape", [ints([1, -1])], {})],
        [("Flatten", [], {"axis": 2}), ("Reshape", [ints([0, -1])], {})],
    ],
)
def test_an_uncertain_reshape_ends_a_chain(between):
    model = make_classifier(between, batch="n")
    assert "does not pass" in refusal(model)


def test_products_and_their_added_biases_are_layers_too():
    c = {
        "w1": uneven(8, 12, axis=1),
        "b1": normal(12, size=0.3),
        "w2": uneven(12, 6, seed=2),
        "b2": normal(1, 1, 6),
        "w3": uneven(6, 4, seed=4),
    }
    nodes = [
        node("MatMul", ["x", "w1"], ["m1"], name="first"),
        node("Add", ["b1", "m1"], ["a1"], name="bias1"),
        node("Relu", ["a1"], ["r1"], name="relu1"),
        node("MatMul", ["r1", "w2"], ["m2"], name="second"),
        node("Add", ["m2", "b2"], ["a2"], name="bias2"),
        node("LeakyRelu", ["a2"], ["r2"], name="relu2"),
        node("MatMul", ["r2", "w3"], ["y"], name="third"),
    ]
    model = build(nodes, {"x": [2, 5, 8]}, {"y": None}, c)
    assert pairs_of(model) == [("first", "second"), ("second", "third")]
    twin, _ = equalized(model, weight_threshold=None, steps=3)
    assert difference(model, twin, make_samples(model)) < 1e-5


def test_a_gemm_with_a_scalar_bias_gets_one_for_each_channel():
    c = {"w1": uneven(8, 6, axis=1), "b1": np.float32(0.5), "w2": uneven(6, 4, seed=2)}
    nodes = [
        node("Gemm", ["x", "w1", "b1"], ["g"], name="first", alpha=0.5, beta=2.0),
        node("Relu", ["g"], ["r"], name="relu"),
        node("Gemm", ["r", "w2"], ["y"], name="second"),
    ]
    model = build(nodes, {"x": [3, 8]}, {"y": None}, c)
    twin, _ = equalized(model, weight_threshold=None)
    assert difference(model, twin, make_samples(model)) < 1e-5


def test_a_gemm_whose_bias_differs_from_row_to_row_is_left_alone():
    c = {"w1": uneven(8, 6, axis=1), "b1": normal(3, 6), "w2": uneven(6, 4, seed=2)}
    nodes = [
        node("Gemm", ["x", "w1", "b1"], ["g"], name="head"),
        node("Gemm", ["g", "w2"], ["y"], name="tail"),
    ]
    model = build(nodes, {"x": [3, 8]}, {"y": None}, c)
    assert refusal(model) == "its bias differs within a channel"


@pytest.mark.parametrize("group", [2, 3, 6])
@pytest.mark.parametrize("transposed", [False, True])
def test_grouped_convolutions_are_followed_channel_by_channel(group, transposed):
    c = {
        "w1": uneven(6, 4 // 2, 3, 3),
        "w2": uneven(6, 12 // group, 3, 3, seed=1) if transposed else uneven(12, 6 // group, 3, 3),
        "b2": normal(12),
        "w3": uneven(4, 12 // 2, 1, 1, seed=2),
    }
    middle = "ConvTranspose" if transposed else "Conv"
    nodes = [
        node("Conv", ["x", "w1"], ["a"], name="first", group=2),
        node("Relu", ["a"], ["r"], name="relu1"),
        node(middle, ["r", "w2", "b2"], ["b"], name="second", group=group),
        node("Relu", ["b"], ["s"], name="relu2"),
        node("Conv", ["s", "w3"], ["y"], name="third", group=2),
    ]
    model = build(nodes, {"x": [1, 4, 7, 7]}, {"y": None}, c)
    assert pairs_of(model) == [("first", "second"), ("second", "third")]
    twin, _ = equalized(model, weight_threshold=None, steps=2)
    assert difference(model, twin, make_samples(model)) < 1e-5


def test_a_depthwise_layer_between_two_others_makes_a_triple():
    found = chains_of(make_mobilenet(blocks=2))
    names = [(a.head.node.name, a.tail.node.name, b.tail.node.name) for a, b in found.triples]
    assert names == [("expand0", "depth0", "project0"), ("expand1", "depth1", "project1")]
    assert not found.links
    assert found.refused["project0"] == "Add 'residual0' does not pass a factor of each channel on"
    assert found.refused["stem"] == "'stem_a' is read 2 times"
