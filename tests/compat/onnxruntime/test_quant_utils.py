"""Names, files and metadata, as in ONNX Runtime's `quant_utils`."""

from __future__ import annotations

import sys
from pathlib import Path
from unittest import mock

import numpy as np
import onnx
import onnxruntime.quantization.quant_utils as peer
import pytest
from onnx import TensorProto, numpy_helper
from support.models import make_cnn, make_mlp, unchanged
from support.peer_numbers import INTEGERS, same

import bitwright
import bitwright.compat.onnxruntime.quant_utils as ours
from bitwright.errors import DataError, MissingPackageError, RecipeError


@pytest.mark.parametrize(
    "name",
    "ms_domain onnx_domain QUANT_OP_NAME QUANT_INPUT_SUFFIX DEQUANT_OP_NAME "
    "DEQUANT_OUTPUT_SUFFIX TENSOR_NAME_QUANT_SUFFIX MODEL_SIZE_THRESHOLD FLOAT8_TYPES "
    "ONNX_TYPE_TO_NP_TYPE".split(),
)
def test_constants(name):
    assert getattr(ours, name) == getattr(peer, name)


def test_type_names_and_ranges():
    assert ours.type_to_name.items() >= {
        (number, name) for number, name in peer.type_to_name.items() if number in INTEGERS
    }
    for table in ("RANGE", "SYMMETRIC_RANGE", "REDUCED_RANGE"):
        mine = getattr(ours, f"ONNX_INT_TYPE_{table}")
        theirs = getattr(peer, f"ONNX_INT_TYPE_{table}")
        assert mine.keys() == theirs.keys()
        for kind in mine:
            for one, other in zip(mine[kind], theirs[kind], strict=True):
                same(one, other)


@pytest.mark.parametrize(
    "name",
    "add_quant_suffix add_quant_input_suffix add_quant_output_suffix add_dequant_suffix "
    "add_dequant_input_suffix add_dequant_output_suffix".split(),
)
def test_names_of_tensors_and_nodes(name):
    assert getattr(ours, name)("t") == getattr(peer, name)("t")


def test_small_things():
    model = make_mlp()
    for module in (ours, peer):
        assert module.find_by_name("w1", model.graph.initializer).name == "w1"
        assert module.find_by_name("none", model.graph.initializer) is None
        assert module.get_elem_index("b", ["a", "b", "b"]) == 2
        assert module.get_elem_index("c", ["a"]) == -1
        assert module.get_mul_node(["a", "b"], "c", "n").op_type == "Mul"
        assert module.normalize_axis(-1, 3) == (True, 2)
        assert module.normalize_axis(3, 3) == (False, 3)
        assert module.generate_identified_filename(Path("a/b.onnx"), "-x") == Path("a/b-x.onnx")
        assert module.get_opset_version(model) == 17
        attribute = onnx.helper.make_attribute("pads", [1, 2])
        assert list(module.attribute_to_kwarg(attribute)["pads"]) == [1, 2]


def test_metadata():
    for kind in ("infer", "pre_process"):
        model = make_mlp()
        onnx.helper.set_model_props(model, {"mine": "stays"})
        assert not getattr(ours, f"model_has_{kind}_metadata")(model)
        getattr(ours, f"add_{kind}_metadata")(model)
        assert getattr(ours, f"model_has_{kind}_metadata")(model)
        assert getattr(peer, f"model_has_{kind}_metadata")(model)
        assert {p.key for p in model.metadata_props} > {"mine"}


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


def test_bad_arguments_are_refused_in_a_sentence():
    with pytest.raises(RecipeError, match="STRING is not one of"):
        ours.get_qmin_qmax_for_qType(TensorProto.STRING)
    with pytest.raises(RecipeError, match="zero must lie between"):
        ours.compute_scale_zp(np.float32(0), np.float32(1), np.int8(1), np.int8(2))
    with pytest.raises(DataError, match="numpy array"):
        ours.quantize_data([1.0], TensorProto.INT8, True)
    with pytest.raises(DataError, match="INT64"):
        ours.tensor_proto_to_array(numpy_helper.from_array(np.array([1]), "w"))


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


def test_values_of_float8_and_the_stamp_are_the_peers():
    peer.compute_scale_zp_float8(17, np.float32(1))  # which fills its table
    np.testing.assert_array_equal(ours.FLOAT8_DISTRIBUTIONS[17], peer.FLOAT8_DISTRIBUTIONS[17])
    assert (ours.__producer__, ours.__version__) == (peer.__producer__, peer.__version__)


def test_a_plot_is_drawn_or_its_package_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(MissingPackageError, match="pip install matplotlib"):
        ours.apply_plot([1, 2], [0, 1, 2])
    drawn = mock.MagicMock()
    monkeypatch.setitem(sys.modules, "matplotlib", mock.MagicMock(pyplot=drawn))
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", drawn)
    ours.apply_plot([1, 2], [0, 1, 2])
    drawn.stairs.assert_called_once_with([1, 2], [0, 1, 2], fill=True)
    drawn.show.assert_called_once_with()
