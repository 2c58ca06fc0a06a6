"""Number types agree with ONNX and with ONNX Runtime's quantization tool."""

from __future__ import annotations

import copy
import pickle

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnxruntime.quantization.quant_utils import QuantType, get_qmin_qmax_for_qType

from bitwright.errors import RecipeError
from bitwright.numerics.types import BFLOAT16, FLOAT16, QTYPES, qtype

INTEGERS = [t for t in QTYPES.values() if t.is_integer]
IN_THE_PEER = ["int4", "uint4", "int8", "uint8", "int16", "uint16"]


@pytest.mark.parametrize("t", [t for t in QTYPES.values() if not t.shares_exponent], ids=str)
def test_onnx_knows_the_type_by_the_same_name(t):
    assert onnx.TensorProto.DataType.Name(t.onnx_type).lower() == t.name


@pytest.mark.parametrize("t", [t for t in QTYPES.values() if t.min_opset], ids=str)
def test_min_opset_is_the_first_whose_quantize_linear_takes_the_type(t):
    def takes(opset):
        schema = onnx.defs.get_schema("QuantizeLinear", opset)
        return f"tensor({t.name})" in {
            name for c in schema.type_constraints for name in c.allowed_type_strs
        }

    assert takes(t.min_opset)
    assert t.min_opset == 10 or not takes(t.min_opset - 1)


@pytest.mark.parametrize("name", IN_THE_PEER)
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("reduced", [False, True])
def test_bounds_are_those_of_onnx_runtimes_tool(name, symmetric, reduced):
    theirs = get_qmin_qmax_for_qType(
        QuantType.from_string("Q" + name.replace("uint", "UInt").replace("int", "Int")).tensor_type,
        reduce_range=reduced,
        symmetric=symmetric,
    )
    assert qtype(name).bounds(symmetric=symmetric, reduced=reduced) == tuple(map(int, theirs))


@pytest.mark.parametrize("t", INTEGERS, ids=str)
def test_storage_holds_the_whole_type(t):
    info = np.iinfo(t.dtype)
    assert info.min <= t.lowest < t.highest <= info.max
    assert t.highest - t.lowest == 2**t.bits - 1


def test_float_ends_are_those_of_the_dtype():
    for t in QTYPES.values():
        if not t.is_integer:
            assert t.highest == float(ml_dtypes.finfo(t.dtype).max)
            assert t.lowest == -t.highest


def test_float_types_have_no_integer_bounds():
    for t in (FLOAT16, BFLOAT16):
        with pytest.raises(RecipeError, match="not an integer type"):
            t.bounds()


@pytest.mark.parametrize("t", QTYPES.values(), ids=str)
def test_there_is_one_instance_of_each_type(t):
    assert pickle.loads(pickle.dumps(t)) is t
    assert copy.deepcopy(t) is t
    assert qtype(t) is t
    assert qtype(t.name.upper()) is t


def test_formats_of_blocks_are_stored_as_float32():
    blocks = [t for t in QTYPES.values() if t.shares_exponent]
    assert len(blocks) == 10
    assert {t.onnx_type for t in blocks} == {onnx.TensorProto.FLOAT}
    assert {t.min_opset for t in blocks} == {0}
