"""`get_qnn_qdq_config` gives the peer's configuration, and models made with it run."""

from __future__ import annotations

import copy

import onnx
import pytest
from support.models import build, make_samples, node, normal, quality, weight
from support.peer_overrides import both, in_types_of, normal_form
from support.peer_runs import PeerReader

from bitwright.compat.onnxruntime import QuantType, quantize

MODULES = both("execution_providers.qnn.quant_config")


def make_network(opset=17):
    """One of each operator that QNN needs overrides for, and a Conv with a Relu."""
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"], name="relu"),
        node("MatMul", ["r", "b"], ["m"], name="product"),
        node("LayerNormalization", ["m", "scale", "shift"], ["n"], name="norm"),
        node("Sigmoid", ["n"], ["s"], name="sigmoid"),
        node("Tanh", ["n"], ["t"], name="tanh"),
        node("Cast", ["t"], ["u"], name="cast", to=1),
        node("Add", ["s", "u"], ["y"], name="add"),
    ]
    constants = {
        "w": weight(4, 3, 3, 3),
        "b": weight(8, 6),
        "scale": normal(6, seed=1),
        "shift": normal(6, seed=2),
    }
    return build(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 4, 8, 6]}, constants, opset=opset)


def config_of(module, model, **options):
    options = in_types_of(module, options)
    return module.get_qnn_qdq_config(model, PeerReader([]), **options)


def settings(config):
    found = normal_form(vars(config))
    del found["calibration_data_reader"]
    found["op_types_to_quantize"] = sorted(found["op_types_to_quantize"] or ())
    for name in ("nodes_to_quantize", "nodes_to_exclude"):
        found[name] = found[name] or []
    return found


@pytest.mark.parametrize("opset", [17, 21])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"per_channel": True, "weight_type": "QInt8"},
        {"activation_type": "QUInt16"},
        {"activation_type": "QInt16", "weight_type": "QInt8", "activation_symmetric": True},
        {"activation_type": "QInt16", "weight_type": "QInt16", "weight_symmetric": False},
        {"weight_type": "QInt4"},
        {"activation_type": "QUInt16", "op_types_to_quantize": ["MatMul", "Sigmoid"]},
        {"activation_type": "QUInt16", "nodes_to_exclude": ["product", "tanh"]},
        {"keep_removable_activations": True, "stride": 2},
        {"init_overrides": {"m": [{"quant_type": "QUInt16"}]}},
        {"init_overrides": {"n": [{"quant_type": "QInt16"}]}, "add_qtype_converts": False},
        {"init_overrides": {"b": [{"axis": 1, "quant_type": "QInt8"}]}, "per_channel": True},
        {
            "init_overrides": {"b": [{"axis": 1, "quant_type": "QInt8"}]},
            "activation_type": "QUInt16",
        },
        {
            "init_overrides": {"b": [{"symmetric": True}]},
            "activation_type": "QUInt16",
            "weight_type": "QUInt8",
        },
        {"init_overrides": {"s": [{"quant_type": "QUInt16"}], "t": [{"quant_type": "QUInt16"}]}},
    ],
)
def test_the_configuration_is_the_peers(options, opset):
    mine, theirs = (settings(config_of(m, make_network(opset), **options)) for m in MODULES)
    assert mine == theirs


def test_a_tensor_is_not_converted_to_its_own_type():
    # The peer does, and its own check of overrides refuses that.
    mine, theirs = (
        config_of(m, make_network(), init_overrides={"m": [{"symmetric": True}]}) for m in MODULES
    )
    entries = [config.extra_options["TensorQuantOverrides"] for config in (mine, theirs)]
    assert not any("convert" in entry for many in entries[0].values() for entry in many)
    assert any("convert" in entry for many in entries[1].values() for entry in many)


def test_the_given_overrides_stay_as_they_are():
    given = {"m": [{"quant_type": QuantType.QUInt16}]}
    before = copy.deepcopy(given)
    MODULES[0].get_qnn_qdq_config(make_network(), [], init_overrides=given)
    assert given == before


def test_weights_in_another_file_are_not_read(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(make_network(), path, save_as_external_data=True, size_threshold=0, location="w.bin")
    (tmp_path / "w.bin").unlink()
    overrides = {"b": [{"axis": 1}]}
    for module in MODULES:
        config = module.get_qnn_qdq_config(path, PeerReader([]), init_overrides=overrides)
        assert config.use_external_data_format is True


@pytest.mark.parametrize(
    "options",
    [
        {"activation_type": "QUInt16"},
        {"init_overrides": {"n": [{"quant_type": "QUInt16"}]}},
    ],
)
def test_a_model_made_with_it_is_close_to_the_float_one(options, tmp_path):
    model = make_network(opset=21)
    samples = make_samples(model)
    config = MODULES[0].get_qnn_qdq_config(model, samples, **in_types_of(MODULES[0], options))
    quantize(model, tmp_path / "q.onnx", config)
    assert quality(model, tmp_path / "q.onnx", samples) > 25
