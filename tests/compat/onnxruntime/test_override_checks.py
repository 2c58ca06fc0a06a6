"""Overrides that do not fit a model are refused in the words that scripts for the peer match."""

from __future__ import annotations

import pytest
from support.models import make_cnn

from bitwright.compat.onnxruntime.enums import QuantType
from bitwright.compat.onnxruntime.override_checks import check_overrides
from bitwright.errors import RecipeError

FIXED = {"scale": 1.0, "zero_point": 0}
FITS = {"w1": [{"axis": 0}]}


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"x": {"symmetric": True}}, "for 'x' are not in a list"),
        ({"x": ["QInt8"]}, "are not in a dict"),
        ({"x": [{"scale": 1.0}]}, "Must provide both 'scale' and 'zero_point' if one of"),
        ({"x": [{**FIXED, "rmax": 1.0}]}, r"option\(s\) \[rmax\] are invalid with 'scale' and"),
        ({"x": [{"reduce_range": True}]}, "only supported for initializers, not for activation x"),
        ({"w1": [{"convert": {"quant_type": QuantType.QInt16}}]}, "Cannot use 'convert' override"),
        ({"x": [{"convert": {"symmetric": True}}]}, "must specify a 'quant_type'"),
        ({"x": [{"convert": {"quant_type": QuantType.QUInt8}}]}, "must differ from original"),
        ({"x": [{"axis": 0}]}, "has per-channel overrides, but is not an initializer"),
        ({"w1": [{"axis": 9}]}, "out-of-bounds for tensor w1"),
        (
            {"w1": [{"axis": 0}, {}]},
            "Incorrect number of channel overrides for tensor w1",
        ),
        ({"w1": [{"axis": 0, "rmin": 1.0}]}, "Must provide both 'rmin' and 'rmax' if one is"),
    ],
    ids=str,
)
@pytest.mark.parametrize("before", [{}, FITS], ids=["first", "second"])
def test_a_fault_of_any_tensor_has_the_peers_words(overrides, words, before):
    with pytest.raises(RecipeError, match=words):
        check_overrides(make_cnn(), {**before, **overrides}, QuantType.QUInt8)


def test_a_name_that_is_not_there_gets_a_suggestion():
    with pytest.raises(RecipeError, match=r"not present in the model\. Did you mean 'w1'"):
        check_overrides(make_cnn(), {**FITS, "w1_": [{}]}, QuantType.QUInt8)


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"x": []},
        {"x": [{}]},
        {"x": [FIXED]},
        {"x": [{"rmin": 0.0}]},
        {"x": [{"quant_type": QuantType.QInt16, "convert": {"quant_type": QuantType.QUInt8}}]},
        {"w1": [{"reduce_range": True}]},
        {"w1": [{"axis": -4}]},
    ],
    ids=str,
)
def test_what_fits_is_accepted(overrides):
    check_overrides(make_cnn(), overrides, QuantType.QUInt8)
