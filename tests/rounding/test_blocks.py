"""Where graphs are cut into blocks that learn together."""

from __future__ import annotations

import onnx_ir as ir
from models_for_tests import build, make_cnn, make_transformer, node, weight

from bitwright.rounding.blocks import find_blocks


def blocks_of(proto, learning, **options):
    model = ir.serde.deserialize_model(proto)
    return find_blocks(model, learning, **options)


def names(blocks):
    return [[node.name for node in block.nodes] for block in blocks]


def test_a_residual_block_is_one_and_activations_belong_to_what_is_before_them():
    blocks = blocks_of(make_cnn(), {"conv1", "conv2", "fc"})
    assert names(blocks) == [["conv1", "relu1"], ["conv2", "residual", "relu2"], ["fc"]]
    assert [block.inputs for block in blocks] == [("x",), ("p1",), ("f",)]
    assert [block.outputs for block in blocks] == [("r1",), ("r2",), ("y",)]


def test_layers_stand_alone_with_their_activation():
    blocks = blocks_of(make_cnn(), {"conv1", "conv2", "fc"}, layers=True)
    assert names(blocks) == [["conv1", "relu1"], ["conv2"], ["fc"]]


LAYERS = {f"{part}_matmul" for part in ("q", "k", "v", "o", "up", "down")}


def test_the_halves_of_a_transformer_layer_are_blocks_and_a_mask_passes_their_borders():
    blocks = blocks_of(make_transformer(mask="mask"), LAYERS)
    firsts = {block.first: block for block in blocks}
    last = firsts["up_matmul"]
    assert {"up_matmul", "down_matmul", "residual2"} <= {node.name for node in last.nodes}
    assert last.inputs == ("n1",)
    attention = next(block for block in blocks if "masking" in names([block])[0])
    assert "mask" in attention.inputs


def test_blocks_that_are_too_large_or_cannot_run_fall_apart():
    whole = blocks_of(make_transformer(), LAYERS)
    apart = blocks_of(make_transformer(), LAYERS, largest=1)
    assert len(whole) < len(apart) == len(LAYERS)
    without = blocks_of(
        make_transformer(), LAYERS, supported=lambda node: node.op_type != "Softmax"
    )
    assert not any("softmax" in block for block in names(without))
    assert {"q_matmul", "k_matmul", "v_matmul"} <= {block.first for block in without}


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
    blocks = blocks_of(proto, {"first", "second"})
    assert blocks[0].outputs == ("a",)
    assert names(blocks) == [["first"], ["second"]]
