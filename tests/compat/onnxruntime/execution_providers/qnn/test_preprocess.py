"""`qnn_preprocess_model` writes what the peer writes, and nothing where nothing is to do."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support.fusion_models import (
    content,
    make_gelu,
    make_l2_norm,
    make_layer_norm,
    make_space_to_depth,
)
from support.models import build, make_cnn, node, normal, ops, run
from support.peer_overrides import both

from bitwright.errors import OutputError

MODULES = both("execution_providers.qnn.preprocess")
MINE = MODULES[0].qnn_preprocess_model


def make_nameless():
    nodes = [node("Relu", ["x"], ["a"]), node("Tanh", ["a"], ["y"], name="qnn_preproc_node_3")]
    return build(nodes, {"x": [2, 3]}, {"y": [2, 3]})


def make_open():
    nodes = [node("Conv", ["x", "w"], ["y"], name="conv")]
    return build(nodes, {"x": ["n", 3, 8, 8]}, {"y": ["n", 2, 6, 6]}, {"w": normal(2, 3, 3, 3)})


def with_defaults():
    """A model whose weight is an input, too."""
    model = make_open()
    model.graph.input.append(onnx.helper.make_tensor_value_info("w", 1, [2, 3, 3, 3]))
    return model


def by_both(folder, model, **options):
    """Return (changed, model or None) of ours and of the peer."""
    results = []
    for index, module in enumerate(MODULES):
        path = folder / f"{index}.onnx"
        copy = onnx.ModelProto.FromString(model.SerializeToString())
        changed = module.qnn_preprocess_model(copy, path, **options)
        assert changed is path.exists()
        results.append((changed, onnx.load(path) if changed else None))
    return results


@pytest.mark.parametrize(
    ("make", "options", "changes"),
    [
        (lambda: make_gelu("half-x"), {}, True),
        (lambda: make_gelu("root"), {}, True),
        (make_l2_norm, {}, True),
        (lambda: make_space_to_depth(4), {}, True),
        (lambda: make_layer_norm("Mul"), {}, False),
        (lambda: make_layer_norm("Mul"), {"fuse_layernorm": True}, True),
        (lambda: make_layer_norm("Mul", opset=13), {"fuse_layernorm": True}, False),
        (make_nameless, {}, True),
        (make_cnn, {}, False),
        (make_cnn, {"inputs_to_make_channel_last": ["x"]}, True),
        (make_open, {"dynamic_input_shapes": [("x", "4,3,8,8")]}, True),
        (make_open, {"exclude_initializer_from_input": True}, False),
        (with_defaults, {"exclude_initializer_from_input": True}, True),
        (
            make_open,
            {"inputs_to_make_channel_last": ["x"], "outputs_to_make_channel_last": ["y"]},
            True,
        ),
    ],
)
def test_the_result_is_the_peers(make, options, changes, tmp_path):
    (mine, made), (theirs, wanted) = by_both(tmp_path, make(), **options)
    assert mine is theirs is changes
    if changes:
        assert content(made) == content(wanted)
        assert {p.key: p.value for p in made.metadata_props} == {
            p.key: p.value for p in wanted.metadata_props
        }


def test_channels_last_computes_the_same(tmp_path):
    nodes = [
        node("Conv", ["x", "w"], ["y"], name="conv"),
        node("Relu", ["y"], ["z"], name="relu"),
    ]
    outputs = {"y": [1, 2, 6, 6], "z": [1, 2, 6, 6]}
    model = build(nodes, {"x": [1, 3, 8, 8]}, outputs, {"w": normal(2, 3, 3, 3)})
    MINE(
        model,
        tmp_path / "m.onnx",
        inputs_to_make_channel_last=["x"],
        outputs_to_make_channel_last=["y"],
    )
    x = normal(1, 3, 8, 8)
    y, z = run(model, {"x": x})
    made = onnx.load(tmp_path / "m.onnx")
    moved, same = run(made, {"x": x.transpose(0, 2, 3, 1)})
    np.testing.assert_allclose(moved, y.transpose(0, 2, 3, 1), atol=1e-5)
    np.testing.assert_allclose(same, z, atol=1e-5)
    assert ops(made)["Transpose"] == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"inputs_to_make_channel_last": ["y"]}, "y is not a graph input"),
        ({"outputs_to_make_channel_last": ["a"]}, "a is not a graph output"),
        ({"inputs_to_make_channel_last": ["x"]}, "to be of rank >= 3"),
        ({"dynamic_input_shapes": [("z", "1,2")]}, "was not found in graph inputs"),
    ],
)
def test_what_cannot_be_is_refused_as_by_the_peer(options, words, tmp_path):
    for module in MODULES:
        with pytest.raises(ValueError, match=words):
            module.qnn_preprocess_model(make_nameless(), tmp_path / "m.onnx", **options)


def test_metadata_stay(tmp_path):
    model = make_nameless()
    onnx.helper.set_model_props(model, {"author": "me"})
    MINE(model, tmp_path / "m.onnx")
    written = {p.key: p.value for p in onnx.load(tmp_path / "m.onnx").metadata_props}
    assert written == {"author": "me", "onnx.infer": "onnxruntime.tools.qnn.preprocess"}


@pytest.mark.parametrize("convert_attribute", [False, True])
def test_tensors_go_to_another_file(convert_attribute, tmp_path):
    model = make_open()
    model.graph.node[0].name = ""
    MINE(
        model,
        tmp_path / "m.onnx",
        save_as_external_data=True,
        all_tensors_to_one_file=True,
        external_data_location="w.bin",
        external_data_size_threshold=0,
        external_data_convert_attribute=convert_attribute,
    )
    assert (tmp_path / "w.bin").stat().st_size >= 2 * 27 * 4
    assert onnx.load(tmp_path / "m.onnx").graph.node[0].name == "qnn_preproc_node_0"


def test_the_input_is_not_overwritten(tmp_path):
    onnx.save(make_nameless(), tmp_path / "m.onnx")
    with pytest.raises(OutputError):
        MINE(tmp_path / "m.onnx", tmp_path / "m.onnx")
