"""Names, files and metadata, as in ONNX Runtime's `quant_utils`."""

from __future__ import annotations

import onnx
import onnxruntime.quantization.quant_utils as peer
import pytest
from support.models import make_cnn, make_mlp, unchanged
from support.peer_numbers import INTEGERS

import bitwright
import bitwright.compat.onnxruntime.quant_utils as ours


def test_models_are_loaded_with_shapes_and_no_file_beside_them(tmp_path):
    model = make_cnn()
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    with unchanged(tmp_path):
        loaded = ours.load_model_with_shape_infer(path)
    again = ours.save_and_reload_model_with_shape_infer(model)
    theirs = peer.load_model_with_shape_infer(path)
    for proto in (loaded, again):
        assert ours.model_has_infer_metadata(proto)
        assert {v.name for v in proto.graph.value_info} >= {v.name for v in theirs.graph.value_info}
    assert not ours.model_has_infer_metadata(model)


def test_external_data_is_seen_and_loaded(tmp_path):
    demo = onnx.load(bitwright.load_demo().model_path)
    inside, outside = tmp_path / "inside.onnx", tmp_path / "outside.onnx"
    onnx.save(demo, inside)
    onnx.save(demo, outside, save_as_external_data=True, location="w.data", size_threshold=0)
    assert not ours.model_has_external_data(inside)
    assert ours.model_has_external_data(outside)
    loaded = ours.load_model_with_shape_infer(outside)
    assert all(tensor.raw_data for tensor in loaded.graph.initializer)


def test_opsets_are_raised_as_types_need():
    model = make_mlp(opset=17)
    assert ours.get_opset_version(ours.update_opset_version(model, ours.QuantType.QInt8)) == 17
    for asked in (
        (ours.QuantType.QInt8, ours.QuantType.QUInt16),
        (ours.QuantType.QInt8, None, {"x": [{"quant_type": ours.QuantType.QInt16}]}),
        (ours.QuantType.QInt8, None, None, 32),
    ):
        assert ours.get_opset_version(ours.update_opset_version(model, *asked)) == 21


def test_a_model_is_optimized_into_a_file(tmp_path):
    onnx.save(make_mlp(), tmp_path / "m.onnx")
    ours.optimize_model(tmp_path / "m.onnx", tmp_path / "o.onnx")
    onnx.checker.check_model(onnx.load(tmp_path / "o.onnx"))


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("options", [(), (True,), (False, True)])
def test_the_number_of_steps_does_not_overflow(kind, options):
    # The peer subtracts in the type itself, where 127 - -128 is -1.
    low, high = (int(end) for end in peer.get_qmin_qmax_for_qType(kind, *options))
    assert ours.get_qrange_for_qType(kind, *options) == high - low
