import numpy as np
import pytest

from bitwright.assess.report.encodings import Encoding
from bitwright.assess.report.views import Views, _represented_range
from bitwright.observe import TensorSketch


def activation(scale, zero_point=0, tensor="x"):
    return Encoding("input", tensor, "uint8", np.array(scale), np.array(zero_point))


def weight(array, scale, axis=None):
    scale = np.asarray(scale, float)
    zeros = np.zeros(scale.shape, int)
    return Encoding("weight", "w", "int8", scale, zeros, axis, np.asarray(array, float))


def views(sketches=None, weights=None, methods=None, saturation=None):
    return Views(sketches or {}, (weights or {}).get, methods or {}, saturation or {})


def only_view(made, encoding):
    [(_, key)] = made.keys_of([encoding])
    return made.made[key]


def test_the_share_that_is_cut_off_is_that_of_the_values():
    values = np.random.default_rng(0).uniform(0, 4, 10_000).astype(np.float32)
    made = views({"x": TensorSketch.of(values)})
    view = only_view(made, activation(1 / 255))
    assert view.clipped == pytest.approx(np.mean(values > 1), abs=0.01)
    assert view.histogram.finite == values.size


def test_rounding_to_the_last_level_cuts_nothing_off():
    values = np.linspace(0, 1, 1001, dtype=np.float32)
    assert only_view(views({"x": TensorSketch.of(values)}), activation(1 / 255)).clipped == 0


def test_what_no_reader_tells_apart_is_not_cut_off():
    values = np.linspace(-8, 4, 1001, dtype=np.float32)
    sketches = {"x": TensorSketch.of(values)}
    encoding = activation(4 / 127, zero_point=100)  # from -3.15 to 4.88
    beyond = only_view(views(sketches), encoding).clipped
    assert beyond == pytest.approx(np.mean(values < -3.15), abs=0.01)
    # A hard-swish gives zero for all below -3; one that ends at -6 tells some of them apart.
    hard_swish, wider = {"x": (-3.0, np.inf)}, {"x": (-6.0, np.inf)}
    assert only_view(views(sketches, saturation=hard_swish), encoding).clipped == 0
    assert only_view(views(sketches, saturation=wider), encoding).clipped == beyond


def test_a_weight_is_judged_channel_by_channel():
    array = np.array([[1.0, -1.0], [100.0, 50.0]])
    made = views(weights={"w": array})
    fitting = only_view(made, weight(array, [1 / 127, 100 / 127], axis=0))
    assert fitting.clipped == 0
    narrow = only_view(made, weight(array, [1 / 127, 60 / 127], axis=0))
    assert narrow.clipped == 0.25
    np.testing.assert_array_equal(narrow.peaks, [1, 100])


def test_a_weight_that_the_float_model_lacks_is_drawn_as_it_is_stored():
    view = only_view(views(), weight([[1.0, 2.0]], 1 / 127))
    assert view.clipped is None and view.histogram.high == 2


def test_a_tensor_is_made_once_and_two_forms_of_it_are_two():
    made = views()
    first = made.keys_of([activation(0.1), activation(0.1)])
    assert first == [("input", "x")]
    assert made.keys_of([activation(0.2)]) == [("input", "x'")]
    assert made.keys_of([activation(0.1)]) == first
    assert len(made.made) == 2


def test_the_plan_tells_the_method():
    assert only_view(views(methods={"x": "percentile 99.9"}), activation(0.1)).method == (
        "percentile 99.9"
    )


def test_a_range_is_that_of_the_widest_scale():
    found = _represented_range("int8", np.array([0.5, 1.0]), np.array(0))
    assert found == (-128.0, 127.0)
