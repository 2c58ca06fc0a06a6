"""A Resize to the nearest value gets the mode floor where ONNX Runtime gives the same numbers."""

import numpy as np
import pytest
from support.models import build, node
from support.rewriting import assert_same, rewrite

from bitwright.prepare import nearest_to_floor

SIZES = [1, 2, 6, 5]


def make(scales=(1, 1, 2, 3), sizes=None, **attributes):
    constants = {"scales": np.array(scales, np.float32)}
    inputs = ["x", "", "scales"]
    if sizes is not None:
        constants, inputs = {"sizes": list(sizes)}, ["x", "", "", "sizes"]
    resize = node("Resize", inputs, ["y"], name="up", mode="nearest", **attributes)
    return build([resize], {"x": SIZES}, {"y": None}, constants)


def modes(model):
    (resize,) = list(model.graph)
    return tuple(
        resize.attributes.get_string(name, "")
        for name in ("nearest_mode", "coordinate_transformation_mode")
    )


@pytest.mark.parametrize("nearest", ["round_prefer_floor", "round_prefer_ceil"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "pytorch_half_pixel"])
def test_whole_factors_take_the_same_values(nearest, coordinates):
    proto = make(nearest_mode=nearest, coordinate_transformation_mode=coordinates)
    model, changed, notes = rewrite(proto, nearest_to_floor)
    assert (changed, notes) == (1, [])
    assert modes(model) == ("floor", "asymmetric")
    assert_same(proto, model)


def test_defaults_count_and_sizes_do_as_well():
    for proto in (make(), make(sizes=[1, 2, 12, 15])):
        model, changed, _ = rewrite(proto, nearest_to_floor)
        assert changed == 1
        assert_same(proto, model)


@pytest.mark.parametrize(
    "attributes",
    [
        {"scales": (1, 1, 1.5, 1), "nearest_mode": "round_prefer_ceil"},
        {"scales": (1, 1, 2, 2), "nearest_mode": "ceil"},
        {"scales": (1, 1, 3, 3), "coordinate_transformation_mode": "asymmetric"},
        {"scales": (1, 1, 3, 3), "coordinate_transformation_mode": "align_corners"},
    ],
)
def test_what_takes_other_values_stays_and_is_noted(attributes):
    proto = make(**attributes)
    model, changed, notes = rewrite(proto, nearest_to_floor)
    assert changed == 0 and "floor takes other values" in notes[0]
    assert_same(proto, model)


def test_what_hardware_has_stays_without_a_note():
    kept = {"nearest_mode": "round_prefer_ceil", "coordinate_transformation_mode": "align_corners"}
    for proto in (make(**kept), make(nearest_mode="floor")):
        assert rewrite(proto, nearest_to_floor)[1:] == (0, [])


def test_open_sizes_are_noted():
    proto = make()
    proto.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "height"
    del proto.graph.output[0].type.tensor_type.shape.dim[:]
    _, changed, notes = rewrite(proto, nearest_to_floor)
    assert changed == 0 and "sizes are not known" in notes[0]
