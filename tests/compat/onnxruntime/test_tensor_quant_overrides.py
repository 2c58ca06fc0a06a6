"""The helper over `TensorQuantOverrides` answers as the peer's."""

from __future__ import annotations

import itertools

import pytest
from support.peer_overrides import both, in_types_of, normal_form

from bitwright.errors import RecipeError

MODULES = both("tensor_quant_overrides")
OVERRIDES = {
    "whole": [{"quant_type": "QInt16", "symmetric": True}],
    "fixed": [{"scale": 0.5, "zero_point": 3}],
    "channels": [{"axis": 1, "quant_type": "QInt8", "reduce_range": True}, {"symmetric": False}],
    "converted": [
        {
            "quant_type": "QUInt8",
            "convert": {"quant_type": "QUInt16", "symmetric": True, "recv_nodes": {"a"}},
        }
    ],
    "converted_for_all": [{"convert": {"quant_type": "QInt16"}}],
    "empty": [{}],
    "none": [],
}


def helpers(overrides=OVERRIDES):
    return [m.TensorQuantOverridesHelper(in_types_of(m, overrides)) for m in MODULES]


def outcome(call, *arguments, **options):
    try:
        return normal_form(call(*arguments, **options))
    except ValueError:
        return "ValueError"


@pytest.mark.parametrize("tensor", [*OVERRIDES, "unknown"])
@pytest.mark.parametrize(
    "question",
    [
        "has_per_tensor_overrides",
        "has_per_channel_overrides",
        "overrides_scale_zp",
        "get_per_tensor_overrides",
        "get_per_channel_overrides",
    ],
)
def test_questions_about_a_tensor_have_the_peers_answers(tensor, question):
    mine, theirs = (outcome(getattr(helper, question), tensor) for helper in helpers())
    assert (mine or None) == (theirs or None)


@pytest.mark.parametrize(
    "tensor", ["whole", "channels", "converted", "converted_for_all", "empty", "unknown"]
)
@pytest.mark.parametrize("default", [None, "QUInt8"])
def test_types_at_the_ends_of_a_tensor_are_the_peers(tensor, default):
    for name in ("a", "b"):
        mine, theirs = (
            outcome(helper.get_node_input_qtype_info, tensor, name, in_types_of(m, default), True)
            for m, helper in zip(MODULES, helpers(), strict=True)
        )
        assert mine == theirs
    mine, theirs = (
        outcome(helper.get_node_output_qtype_info, tensor, in_types_of(m, default), True)
        for m, helper in zip(MODULES, helpers(), strict=True)
    )
    assert mine == theirs


def test_all_types_are_found_those_of_conversions_too():
    mine, theirs = (normal_form(helper.get_quant_types()) for helper in helpers())
    assert mine == theirs == ["QInt16", "QInt8", "QUInt16", "QUInt8"]


@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize("channels", [None, [1]])
@pytest.mark.parametrize("tensor", [*OVERRIDES, "unknown"])
@pytest.mark.parametrize("values", [{}, {"symmetric": True}, {"rmin": 0.0, "rmax": 1.0}])
def test_updates_change_what_the_peers_change(overwrite, channels, tensor, values):
    made = []
    for helper in helpers():
        done = helper.update_tensor_overrides(tensor, values, channels, overwrite)
        made.append((done, normal_form(helper.get_dict())))
    assert made[0] == made[1]


def test_it_is_a_view_of_the_dict_that_it_was_given():
    raw = {"x": [{"symmetric": True}]}
    helper = MODULES[0].TensorQuantOverridesHelper(raw)
    helper["y"] = [{}]
    del helper["x"]
    assert raw == {"y": [{}]} == dict(helper) == helper.get_dict()
    assert len(helper) == 1 and not helper.empty() and helper.pprint_str() == '{"y": [{}]}'


def test_overrides_of_channels_are_refused_where_those_of_a_tensor_are_asked_for():
    mine = helpers()[0]
    for refused in (mine.get_per_tensor_overrides, mine.get_per_channel_overrides):
        with pytest.raises(RecipeError) as caught:
            refused("channels" if refused == mine.get_per_tensor_overrides else "whole")
        assert isinstance(caught.value, ValueError)


def test_types_are_equal_where_the_peers_are():
    fields = list(
        itertools.product(["QInt8", "QUInt8"], [None, True, False], [None, True], [None, 0])
    )
    for first, second in itertools.product(fields, fields):
        mine, theirs = (
            m.QuantTypeInfo(in_types_of(m, first[0]), *first[1:])
            == m.QuantTypeInfo(in_types_of(m, second[0]), *second[1:])
            for m in MODULES
        )
        assert mine is theirs


def test_types_survive_a_dict():
    info = MODULES[0].QuantTypeInfo("QInt8", symmetric=False, axis=2)
    entry = {}
    info.save_to_dict(entry)
    assert entry == {"quant_type": "QInt8", "symmetric": False, "axis": 2}
    assert MODULES[0].QuantTypeInfo.load_from_dict(entry) == info
    assert MODULES[0].QuantTypeInfo.load_from_dict({}, "QInt4", True, False).reduce_range is False
