"""Overrides that do not fit a model are refused in the words that scripts for the peer match."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper
from support.peer_overrides import both, in_types_of

MODULES = both("tensor_quant_overrides")
INITIALIZERS = {"w": numpy_helper.from_array(np.zeros((3, 2), np.float32), "w")}
RANGE = {"rmin": 0.0, "rmax": 1.0}
FIXED = {"scale": 1.0, "zero_point": 0}


def faults(overrides):
    """Return what ours and what the peer's helper says about the same overrides."""
    for module in MODULES:
        helper = module.TensorQuantOverridesHelper(in_types_of(module, overrides))
        default = in_types_of(module, "QUInt8")
        yield helper.is_valid(INITIALIZERS, {"x"}, default)


@pytest.mark.parametrize(
    "overrides",
    [
        {"nowhere": [{}]},
        {"x": {"symmetric": True}},
        {"x": ["QInt8"]},
        {"x": [{"scale": 1.0}]},
        {"x": [{"zero_point": 1}]},
        {"x": [{**FIXED, "rmax": 1.0}]},
        {"x": [{**FIXED, "symmetric": True}]},
        {"x": [{"reduce_range": True}]},
        {"w": [{"convert": {"quant_type": "QInt16"}}]},
        {"x": [{"convert": {"symmetric": True}}]},
        {"x": [{"convert": {"quant_type": "QUInt8"}}]},
        {"x": [{"quant_type": "QInt16", "convert": {"quant_type": "QInt16"}}]},
        {"x": [{"convert": {"quant_type": "QInt16", "reduce_range": True}}]},
        {"x": [{"convert": {"quant_type": "QInt16", "scale": 1.0}}]},
        {"x": [{"convert": {"quant_type": "QInt16", **FIXED, "rmin": 0.0}}]},
        {"x": [{"axis": 0}]},
        {"w": [{"axis": 2}]},
        {"w": [{"axis": -3}]},
        {"w": [{"axis": 0}, {}]},
        {"w": [{"symmetric": True}, {}, {}]},
        {"w": [{"axis": 0, "scale": 1.0}]},
        {"w": [{"axis": 0, **FIXED, "rmin": 0.0}]},
        {"w": [{"axis": 0, "rmin": 1.0}]},
        {"w": [{"axis": 0, "convert": {"quant_type": "QInt16"}}]},
    ],
    ids=str,
)
def test_a_fault_has_the_peers_words(overrides):
    mine, theirs = faults(overrides)
    assert mine == theirs
    assert not mine[0]


@pytest.mark.parametrize(
    "second",
    [
        {"quant_type": "QInt16"},
        {"symmetric": True},
        {"reduce_range": True},
        {"axis": 1},
        {},
        {**FIXED, "symmetric": True},
        {**RANGE, "axis": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("first", [RANGE, FIXED], ids=str)
def test_channels_that_disagree_are_refused_where_the_peer_does(first, second):
    (mine, mine_says), (theirs, theirs_says) = faults(
        {"w": [{"axis": 0, "quant_type": "QInt8", **first}, second, first]}
    )
    assert not mine
    assert not theirs
    assert mine_says.split(" ")[0] in ("Channel", "Per-channel", "Tensor", "Must")
    assert theirs_says


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"x": []},
        {"x": [{}]},
        {"x": [FIXED]},
        {"x": [{"rmin": 0.0}]},
        {"x": [{"quant_type": "QInt16", "convert": {"quant_type": "QUInt8"}}]},
        {"w": [{"reduce_range": True}]},
        {"w": [{"axis": 0}]},
        {"w": [{"axis": -2, **RANGE}, RANGE, {"axis": 0, **RANGE}]},
        {"w": [{"axis": 1, **FIXED}, FIXED]},
    ],
    ids=str,
)
def test_what_fits_is_accepted(overrides):
    mine, theirs = faults(overrides)
    assert mine == theirs == (True, None)


def test_every_tensor_is_checked_and_not_only_the_first():
    mine, theirs = faults({"w": [{"axis": 0}], "x": [{"scale": 1.0}]})
    assert theirs == (True, None)
    assert mine == (
        False,
        "Must provide both 'scale' and 'zero_point' if one of the overrides is provided",
    )
