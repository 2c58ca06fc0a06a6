"""Where graphs are cut into segments that learn together."""

from __future__ import annotations

from itertools import pairwise

import onnx_ir as ir
import pytest
from onnx import TensorProto
from support.models import build, info, make_cnn, make_transformer, node, weight

from bitwright.learning.segments import find_segments, segments_to_learn
from bitwright.recipe import AdaRound


def blocks_of(proto, learning, **options):
    model = ir.serde.deserialize_model(proto)
    return find_segments(model, learning, **options)


def names(segments):
    return [[node.name for node in segment.nodes] for segment in segments]


def test_a_residual_block_is_one_and_activations_belong_to_what_is_before_them():
    segments = blocks_of(make_cnn(), {"conv1", "conv2", "fc"})
    assert names(segments) == [["conv1", "relu1"], ["conv2", "residual", "relu2"], ["fc"]]
    assert [segment.inputs for segment in segments] == [("x",), ("p1",), ("f",)]
    assert [segment.outputs for segment in segments] == [("r1",), ("r2",), ("y",)]


def test_layers_stand_alone_with_their_activation():
    segments = blocks_of(make_cnn(), {"conv1", "conv2", "fc"}, layers=True)
    assert names(segments) == [["conv1", "relu1"], ["conv2"], ["fc"]]


LAYERS = {f"{part}_matmul" for part in ("q", "k", "v", "o", "up", "down")}


def test_the_halves_of_a_transformer_layer_are_blocks_and_a_mask_passes_their_borders():
    segments = blocks_of(make_transformer(mask="mask"), LAYERS)
    firsts = {segment.first: segment for segment in segments}
    last = firsts["up_matmul"]
    assert {"up_matmul", "down_matmul", "residual2"} <= {node.name for node in last.nodes}
    assert last.inputs == ("n1",)
    attention = next(segment for segment in segments if "masking" in names([segment])[0])
    assert "mask" in attention.inputs


def test_blocks_that_are_too_large_or_cannot_run_fall_apart():
    whole = blocks_of(make_transformer(), LAYERS)
    apart = blocks_of(make_transformer(), LAYERS, max_weights=1)
    assert len(whole) < len(apart) == len(LAYERS)
    without = blocks_of(
        make_transformer(), LAYERS, supported=lambda node: node.op_type != "Softmax"
    )
    assert not any("softmax" in segment for segment in names(without))
    assert {"q_matmul", "k_matmul", "v_matmul"} <= {segment.first for segment in without}


def test_what_leaves_the_model_halfway_is_an_output_of_its_block():
    nodes = [
        node("MatMul", ["x", "w1"], ["a"], name="first"),
        node("Relu", ["a"], ["b"], name="relu"),
        node("MatMul", ["b", "w2"], ["y"], name="second"),
    ]
    proto = build(
        nodes,
        {"x": [2, 4]},
        {"a": [2, 4], "y": [2, 4]},
        {"w1": weight(4, 4, seed=1), "w2": weight(4, 4, seed=2)},
    )
    segments = blocks_of(proto, {"first", "second"})
    assert segments[0].outputs == ("a", "b")
    assert names(segments) == [["first", "relu"], ["second"]]


def chain_with_taps(depth=4):
    """A backbone of residual blocks, whose results a neck reads once more, last first."""
    nodes, constants, current, taps = [], {}, "x", []
    for i in range(depth):
        constants |= {f"w{i}a": weight(4, 4, seed=i), f"w{i}b": weight(4, 4, seed=9 + i)}
        nodes += [
            node("MatMul", [current, f"w{i}a"], [f"a{i}"], name=f"mm{i}a"),
            node("Sigmoid", [f"a{i}"], [f"s{i}"], name=f"sigmoid{i}"),
            node("Mul", [f"a{i}", f"s{i}"], [f"m{i}"], name=f"swish{i}"),
            node("MatMul", [f"m{i}", f"w{i}b"], [f"b{i}"], name=f"mm{i}b"),
            node("Add", [current, f"b{i}"], [f"r{i}"], name=f"residual{i}"),
        ]
        current = f"r{i}"
        taps.append(current)
    for i, tap in enumerate(reversed(taps[:-1])):
        constants[f"n{i}"] = weight(4, 4, seed=20 + i)
        nodes += [
            node("MatMul", [tap, f"n{i}"], [f"t{i}"], name=f"lateral{i}"),
            node("Add", [current, f"t{i}"], [f"u{i}"], name=f"merge{i}"),
        ]
        current = f"u{i}"
    proto = build(nodes, {"x": [2, 4]}, {current: [2, 4]}, constants)
    learning = {n.name for n in nodes if n.op_type == "MatMul"}
    return proto, learning


def test_tensors_that_lead_past_many_blocks_do_not_join_them():
    """As in every detector: features of each stage are read again by the neck."""
    proto, learning = chain_with_taps()
    segments = blocks_of(proto, learning, max_weights=3)
    made = names(segments)
    for i in (1, 2):
        assert [f"mm{i}a", f"sigmoid{i}", f"swish{i}", f"mm{i}b", f"residual{i}"] in made
    assert sorted(n for segment in made for n in segment if n in learning) == sorted(learning)
    assert all(sum(n in learning for n in segment) <= 3 for segment in made)
    neck = next(segment for segment in segments if "lateral1" in names([segment])[0])
    assert "r1" in neck.inputs


def test_blocks_of_any_graph_cover_each_learning_node_once_and_keep_to_their_size():
    proto, learning = chain_with_taps(depth=6)
    for largest in range(1, 20):
        made = names(blocks_of(proto, learning, max_weights=largest))
        assert sorted(n for segment in made for n in segment if n in learning) == sorted(learning)
        assert all(sum(n in learning for n in segment) <= largest for segment in made)


def test_an_activation_of_several_operators_belongs_to_what_is_before_it():
    nodes = [
        node("MatMul", ["x", "w1"], ["a"], name="first"),
        node("HardSigmoid", ["a"], ["s"], name="gate"),
        node("Mul", ["a", "s"], ["h"], name="swish"),
        node("Add", ["h", "one"], ["p"], name="plus"),
        node("Softmax", ["p"], ["q"], name="softmax"),
        node("MatMul", ["q", "w2"], ["y"], name="second"),
    ]
    constants = {"w1": weight(4, 4), "w2": weight(4, 4, seed=1), "one": weight(4)}
    proto = build(nodes, {"x": [2, 4]}, {"y": [2, 4]}, constants)
    segments = blocks_of(proto, {"first", "second"})
    assert names(segments) == [["first", "gate", "swish", "plus"], ["second"]]
    assert names(blocks_of(proto, {"first", "second"}, supported=lambda n: n.op_type != "Mul")) == [
        ["first"],
        ["second"],
    ]


def test_small_blocks_are_joined_up_to_a_size():
    proto, learning = chain_with_taps()
    for smallest in (2, 3, 5):
        made = names(blocks_of(proto, learning, min_weights=smallest))
        sizes = [sum(n in learning for n in segment) for segment in made]
        assert sum(sizes) == len(learning)
        assert all(a + b > smallest for a, b in pairwise(sizes))
    single = names(blocks_of(proto, learning))
    assert names(blocks_of(proto, learning, min_weights=1)) == single


def test_segments_end_at_the_norms_of_the_runtime():
    pytest.importorskip("torch")
    nodes = [
        node("MatMul", ["x", "w"], ["h"], "first"),
        node(
            "SkipSimplifiedLayerNormalization",
            ["h", "x", "gain"],
            ["n", "", "", "s"],
            "norm",
            domain="com.microsoft",
        ),
        node("MatMul", ["n", "v"], ["m"], "second"),
        node("Add", ["m", "s"], ["y"], "sum"),
    ]
    constants = {"w": weight(4, 4), "v": weight(4, 4), "gain": weight(4)}
    model = build(nodes, {"x": [2, 4]}, {"y": [2, 4]}, constants, domains=["com.microsoft"])
    segments = segments_to_learn(ir.serde.deserialize_model(model), {"first", "second"}, AdaRound())
    assert "norm" not in [name for segment in names(segments) for name in segment]
    assert [segment.first for segment in segments] == ["first", "second"]


def test_what_is_computed_behind_the_start_of_a_segment_is_no_input_of_it():
    """As the embedding of a constant token type, which an exporter writes between two layers."""
    nodes = [
        node("MatMul", ["x", "w"], ["h"], "first"),
        node("Gather", ["table", "places"], ["types"], "lookup"),
        node("Add", ["h", "types"], ["s"], "sum"),
        node("MatMul", ["s", "w"], ["y"], "second"),
    ]
    constants = {"w": weight(4, 4), "table": weight(3, 4)}
    inputs = [info("x", [2, 4]), info("places", [2], TensorProto.INT64)]
    proto = build(nodes, inputs, [info("y", [2, 4])], constants)
    assert names(blocks_of(proto, {"first", "second"})) == [["first"], ["second"]]
    nodes[:2] = reversed(nodes[:2])
    proto = build(nodes, inputs, [info("y", [2, 4])], constants)
    assert names(blocks_of(proto, {"first", "second"})) == [["first", "sum"], ["second"]]
