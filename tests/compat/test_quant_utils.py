"""`quant_utils` against ONNX Runtime's own: the same numbers for the same arguments."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime.quantization.quant_utils as peer
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, numpy_helper
from support.models import make_cnn, make_mlp, unchanged

import bitwright
import bitwright.compat.onnxruntime.quant_utils as ours
from bitwright.errors import DataError, RecipeError

INTEGERS = [getattr(TensorProto, n) for n in ("INT8", "UINT8", "INT16", "UINT16", "INT4", "UINT4")]
floats = st.floats(-1e6, 1e6, width=32)


def same(mine, theirs):
    mine, theirs = np.asarray(mine), np.asarray(theirs)
    assert mine.dtype == theirs.dtype
    assert mine.shape == theirs.shape
    np.testing.assert_array_equal(mine.astype(np.float64), theirs.astype(np.float64))


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("reduce_range", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
def test_the_ends_of_every_type(kind, reduce_range, symmetric):
    mine = ours.get_qmin_qmax_for_qType(kind, reduce_range, symmetric)
    theirs = peer.get_qmin_qmax_for_qType(kind, reduce_range, symmetric)
    for one, other in zip(mine, theirs, strict=True):
        same(one, other)
    # The peer subtracts in the type itself, where 127 - -128 is -1.
    low, high = (int(end) for end in theirs)
    assert ours.get_qrange_for_qType(kind, reduce_range, symmetric) == high - low


@given(floats, floats, st.sampled_from(INTEGERS), st.booleans(), st.booleans())
def test_scale_and_zero_point(one, other, kind, symmetric, reduce_range):
    low, high = np.float32(min(one, other)), np.float32(max(one, other))
    ends = peer.get_qmin_qmax_for_qType(kind, reduce_range, symmetric)
    zero, scale = ours.compute_scale_zp(low, high, *ends, symmetric)
    wanted_zero, wanted_scale = peer.compute_scale_zp(low, high, *ends, symmetric)
    same(scale, wanted_scale)
    assert zero.dtype == wanted_zero.dtype
    if max(-low, high) < 1e-30 and symmetric:
        return  # of a range of nothing their zero point is 0, ours the same as of every other
    assert int(zero) == int(wanted_zero)


@pytest.mark.parametrize("kind", INTEGERS)
def test_a_minimum_range(kind):
    ends = peer.get_qmin_qmax_for_qType(kind)
    arguments = (np.float32(0), np.float32(1e-9), *ends, False, 0.125)
    for mine, theirs in zip(
        ours.compute_scale_zp(*arguments), peer.compute_scale_zp(*arguments), strict=True
    ):
        same(mine, theirs)


def test_float16_ranges_give_float16_scales():
    ends = peer.get_qmin_qmax_for_qType(TensorProto.UINT8)
    arguments = (np.float16(-1), np.float16(3), *ends)
    for mine, theirs in zip(
        ours.compute_scale_zp(*arguments), peer.compute_scale_zp(*arguments), strict=True
    ):
        same(mine, theirs)


@given(
    st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=20),
    st.sampled_from(INTEGERS),
    st.booleans(),
    st.booleans(),
)
def test_data_is_quantized_to_the_same_integers(values, kind, symmetric, reduce_range):
    data = np.array(values, np.float32)
    zero, scale, mine = ours.quantize_data(data, kind, symmetric, reduce_range)
    wanted_zero, wanted_scale, theirs = peer.quantize_data(data, kind, symmetric, reduce_range)
    same(scale, wanted_scale)
    if np.abs(data).max() > 1e-30 or not symmetric:
        same(zero, wanted_zero)
        same(mine, theirs)


@given(
    st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=20),
    st.sampled_from(INTEGERS),
    st.floats(2**-10, 2.0, width=32),
)
def test_an_array_with_given_parameters(values, kind, scale):
    data, scale = np.array(values, np.float32), np.float32(scale)
    same(ours.quantize_nparray(kind, data, scale, 1), peer.quantize_nparray(kind, data, scale, 1))
    same(
        ours.quantize_nparray(kind, data, scale, 0, 0, 5),
        peer.quantize_nparray(kind, data, scale, 0, np.array(0), np.array(5)),
    )


def test_given_ends_replace_the_datas():
    data = np.array([-3.0, 5.0], np.float32)
    options = {"rmin_override": -1.0, "rmax_override": 1.0}
    mine = ours.compute_data_quant_params(data, TensorProto.UINT8, False, **options)
    theirs = peer.compute_data_quant_params(data, TensorProto.UINT8, False, **options)
    for one, other in zip(mine, theirs, strict=True):
        same(one, other)


def test_float8():
    kind = TensorProto.FLOAT8E4M3FN
    data = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    mine, theirs = (m.compute_scale_zp_float8(kind, np.std(data)) for m in (ours, peer))
    np.testing.assert_allclose(mine[1], theirs[1], rtol=1e-6)
    scale = np.float32(theirs[1])
    one, other = (m.quantize_nparray(kind, data, scale, np.float32(0)) for m in (ours, peer))
    assert one.dtype == other.dtype
    np.testing.assert_array_equal(one.view(np.uint8), other.view(np.uint8))
    with pytest.raises(RecipeError, match="reduce_range"):
        ours.quantize_data(data, kind, True, reduce_range=True)


@given(st.binary(max_size=33))
def test_four_bits_in_each_half_of_a_byte(content):
    assert ours.pack_bytes_to_4bit(content) == peer.pack_bytes_to_4bit(content)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=200))
def test_a_smoothed_distribution(counts):
    histogram = np.array(counts)
    mine, theirs = ours.smooth_distribution(histogram), peer.smooth_distribution(histogram)
    if theirs is None:
        assert mine is None
    else:
        np.testing.assert_allclose(mine, theirs, rtol=1e-5)


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize(("axis", "block"), [(None, 0), (0, 0), (1, 0), (0, 2)])
def test_an_initializer_per_tensor_channel_and_block(kind, axis, block):
    array = np.random.default_rng(1).standard_normal((4, 6)).astype(np.float32)
    weight = numpy_helper.from_array(array, "w")
    shape = () if axis is None else (2, 6) if block else (array.shape[axis],)
    scale = np.full(shape, 0.25, np.float32)
    zero = np.full(shape, 1, ours.ONNX_TYPE_TO_NP_TYPE[kind])
    mine, theirs = (
        m.quantize_onnx_initializer(weight, kind, zero, scale, axis, block_size=block)
        for m in (ours, peer)
    )
    assert mine.name == theirs.name == "w_quantized" and mine.data_type == theirs.data_type
    same(numpy_helper.to_array(mine), numpy_helper.to_array(theirs))


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


@pytest.mark.parametrize("number", [TensorProto.INT8, TensorProto.UINT8, TensorProto.INT4])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(("axis", "block"), [(0, 4), (1, 4), (0, 7), (-1, 100)])
def test_blocks_have_the_peers_scales_and_zero_points(number, symmetric, axis, block):
    weight = np.random.default_rng(3).standard_normal((10, 12)).astype(np.float32) + 0.3
    weight[:4, :4] = 0
    mine = ours.compute_scale_zp_blocked(weight, number, axis, block, symmetric)
    theirs = peer.compute_scale_zp_blocked(weight, number, axis % 2, block, symmetric)
    np.testing.assert_array_equal(mine[0], theirs[0], strict=True)
    # The peer takes the width of a range in float32.
    np.testing.assert_allclose(mine[1], theirs[1], rtol=3e-7, strict=True)


@pytest.mark.parametrize("ends", [(0.0, 2.0), (-1.0, 2.0), (-3.0, 0.5), (0.5, 1.0)])
@pytest.mark.parametrize("least", [None, 4.0])
def test_snapped_zero_points_are_the_peers(ends, least):
    ends = [np.float32(end) for end in ends]
    mine = ours.snap_zero_point_to_uint8(*ends, min_real_range=least)
    theirs = peer.snap_zero_point_to_uint8(*ends, min_real_range=least)
    for found, wanted in zip(mine, theirs, strict=True):
        assert found.dtype == np.asarray(wanted).dtype
        assert float(found) == pytest.approx(float(wanted), rel=1e-6)


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
