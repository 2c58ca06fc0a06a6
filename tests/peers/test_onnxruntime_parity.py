"""`quantize_static` beside ONNX Runtime's own: the same graph where that is right, else better."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from support.models import (
    constants_of,
    element_types,
    make_cnn,
    make_samples,
    make_transformer,
    ops,
    quality,
)
from support.peer_runs import peer, quantize_both, quiet  # noqa: F401 (a fixture)

from bitwright.compat import onnxruntime as ours

MODELS = {"cnn": make_cnn, "transformer": lambda: make_transformer()}

SAME = {
    "default": {},
    "per channel": {"per_channel": True},
    "uint8 activations": {"activation_type": "QUInt8"},
    "uint8 both": {"activation_type": "QUInt8", "weight_type": "QUInt8"},
    "reduced range": {"reduce_range": True},
    "float weights kept": {"extra_options": {"AddQDQPairToWeight": True}},
    "own pairs": {"extra_options": {"DedicatedQDQPair": True}},
    "symmetric activations": {"extra_options": {"ActivationSymmetric": True}},
    "asymmetric weights": {"extra_options": {"WeightSymmetric": False}},
    "float bias": {"extra_options": {"QuantizeBias": False}},
    "kept activations": {"extra_options": {"QDQKeepRemovableActivations": True}},
    "contrib ops": {"extra_options": {"UseQDQContribOps": True}},
    "some op types": {"op_types_to_quantize": ["Conv", "MatMul", "Gemm"]},
    "uint16 activations": {"activation_type": "QUInt16"},
    "int16 activations": {"activation_type": "QInt16", "weight_type": "QInt8"},
    "int4 weights": {"weight_type": "QInt4"},
    "uint4 weights": {"weight_type": "QUInt4", "activation_type": "QUInt8"},
    "int4 weights in contrib ops": {
        "weight_type": "QInt4",
        "extra_options": {"UseQDQContribOps": True},
    },
    "minimum range": {"extra_options": {"MinimumRealRange": 0.001}},
}


OTHERWISE = {
    "an excluded node": {"nodes_to_exclude": ["conv2", "q_matmul"]},
}


def shape_of_graph(model):
    """Every node by name: its op type, domain, inputs and outputs."""
    return {
        item.name: (item.op_type, item.domain, tuple(item.input), tuple(item.output))
        for item in model.graph.node
    }


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Give (model, samples, ours, the peer's) for a case, made once for all tests."""

    @cache
    def make(kind, options):
        model = MODELS[kind]()
        samples = make_samples(model)
        chosen = dict({**SAME, **OTHERWISE}[options])
        if "nodes_to_exclude" in chosen:
            names = {item.name for item in model.graph.node}
            chosen["nodes_to_exclude"] = [n for n in chosen["nodes_to_exclude"] if n in names]
        folder = tmp_path_factory.mktemp("pair")
        return model, samples, *quantize_both(folder, model, samples, **chosen)

    return make


@pytest.mark.parametrize("options", SAME)
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.sampled(16)
def test_the_graph_is_the_peers_node_by_node(pair, kind, options):
    _, _, mine, theirs = pair(kind, options)
    assert shape_of_graph(mine) == shape_of_graph(theirs)


@pytest.mark.parametrize("options", SAME)
@pytest.mark.parametrize("kind", MODELS)
def test_the_numbers_are_the_peers(pair, kind, options):
    _, _, mine, theirs = pair(kind, options)
    expected, found = constants_of(theirs), constants_of(mine)
    assert set(found) == set(expected)
    assert element_types(mine) == element_types(theirs)
    for name, array in expected.items():
        if name.endswith("_quantized"):
            # One step, where the peer divides in another precision.
            gap = np.abs(found[name].astype(np.int64) - array.astype(np.int64)).max()
            assert gap <= 1, name
        else:
            # The peer observes the model unoptimized: a norm's extremes differ in the last bit.
            np.testing.assert_allclose(
                found[name].reshape(array.shape), array, rtol=1e-6, err_msg=name
            )


@pytest.mark.parametrize("options", [*SAME, *OTHERWISE])
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.sampled(15)
def test_accuracy_is_not_below_the_peers(pair, kind, options):
    model, samples, mine, theirs = pair(kind, options)
    assert quality(model, mine, samples) > quality(model, theirs, samples) - 0.5


@pytest.mark.parametrize("method", ["MinMax", "Percentile", "Distribution"])
@pytest.mark.parametrize("kind", MODELS)
def test_accuracy_is_not_below_the_peers_for_any_range_method(tmp_path, kind, method):
    model = MODELS[kind]()
    samples = [*make_samples(model, 8), *make_samples(model, 4, seed=1)]
    mine, theirs = quantize_both(tmp_path, model, samples, calibrate_method=method)
    assert quality(model, mine, samples) > quality(model, theirs, samples) - 0.5


def test_minmax_ranges_are_the_peers_exactly_where_sums_are(tmp_path, same_sums):
    model = make_cnn()
    samples = make_samples(model)
    mine, theirs = quantize_both(tmp_path, model, samples, calibrate_method="MinMax")
    for name, array in constants_of(theirs).items():
        if name.endswith(("_scale", "_zero_point")):
            np.testing.assert_array_equal(constants_of(mine)[name], array, err_msg=name)


def test_the_signature_is_the_peers():
    import inspect

    theirs = inspect.signature(peer.quantize_static).parameters
    mine = inspect.signature(ours.quantize_static).parameters
    assert list(mine) == list(theirs)
    for name, parameter in theirs.items():
        default = mine[name].default
        assert getattr(default, "name", default) == getattr(
            parameter.default, "name", parameter.default
        ), name


@pytest.mark.parametrize("name", ["QuantType", "QuantFormat", "CalibrationMethod"])
def test_the_enums_are_the_peers(name):
    mine, theirs = getattr(ours, name), getattr(peer, name)
    assert {m.name: m.value for m in mine} == {m.name: m.value for m in theirs}
    assert [str(m) for m in mine] == [str(m) for m in theirs]
    if name == "QuantType":
        assert [m.tensor_type for m in mine] == [m.tensor_type for m in theirs]


def test_what_the_peer_computes_wrong_we_do_not(tmp_path):
    model = make_cnn()
    samples = make_samples(model)
    mine, theirs = quantize_both(
        tmp_path, model, samples, extra_options={"CalibTensorRangeSymmetric": True}
    )
    assert quality(model, mine, samples) > max(30, quality(model, theirs, samples) + 6)
    assert ops(mine)["Relu"] == 2
