import numpy as np
import pytest

from bitwright.data.random import RandomData
from bitwright.data.specs import InputSpec
from bitwright.errors import DataError

IMAGE = InputSpec("image", np.dtype("float32"), ("batch", 3, "h", "w"))
IDS = InputSpec("ids", np.dtype("int64"), ("batch", "length"))
MASK = InputSpec("mask", np.dtype("bool"), ("batch", "length"))


def random_samples(specs, **options):
    return RandomData(**options).samples(specs)


def test_the_same_seed_gives_the_same_samples_in_every_pass():
    spec = InputSpec("x", np.dtype("float32"), (None, 4))
    first, again = random_samples([spec], count=3), random_samples([spec], count=3)
    other = random_samples([spec], count=3, seed=1)
    assert first.len_hint == 3
    for a, b, c, d in zip(first, first, again, other, strict=True):
        assert a["x"].tobytes() == b["x"].tobytes() == c["x"].tobytes() != d["x"].tobytes()
        assert a["x"].shape == (1, 4)


def test_floats_fill_the_range_and_integers_are_0_or_1():
    specs = [
        InputSpec("x", np.dtype("float16"), (1000,)),
        InputSpec("i", np.dtype("int32"), (1000,)),
        InputSpec("b", np.dtype("bool"), (1000,)),
    ]
    (sample,) = random_samples(specs, count=1, low=-2.0, high=3.0)
    assert -2.0 <= sample["x"].min() < -1.9
    assert 2.9 < sample["x"].max() <= 3.0
    assert set(sample["i"].tolist()) == {0, 1}
    assert set(sample["b"].tolist()) == {False, True}


@pytest.mark.parametrize(
    "shapes",
    [
        {"image": (2, 3, 8, 9), "ids": (2, 5), "mask": [2, 5]},
        [(2, 3, 8, 9), (2, 5), (2, 5)],
        {"h": 8, "w": np.int64(9), "length": 5, "batch": 2},
        {"image": (2, 3, 8, 9), "length": 5},
        {"image": (2, 3, 8, 9), "ids": (2, 5)},
    ],
)
def test_shapes_settle_open_dimensions(shapes):
    (sample,) = random_samples([IMAGE, IDS, MASK], count=1, shapes=shapes)
    assert {name: array.shape for name, array in sample.items()} == {
        "image": (2, 3, 8, 9),
        "ids": (2, 5),
        "mask": (2, 5),
    }


@pytest.mark.parametrize(
    ("spec", "options", "words"),
    [
        (IMAGE, {}, ["dimension 2 ('h') of input 'image'", "[batch,3,h,w]", "such as shapes={"]),
        (InputSpec("x", np.dtype("float32"), (1, None)), {}, ["dimension 1 of input 'x'"]),
        (InputSpec("x", np.dtype("float32"), None), {}, ["no shape in the model", "give"]),
        (IMAGE, {"shapes": {"imag": (1, 3, 2, 2)}}, ["'imag'", "Did you mean 'image'?"]),
        (IMAGE, {"shapes": {"hh": 3}}, ["'hh'", "no dimension symbol"]),
        (IMAGE, {"shapes": [(1,), (2,)]}, ["2 shapes were given, but the model takes 1 (image)"]),
        (IMAGE, {"shapes": {"image": (-1, 3, 2, 2)}}, ["'image'", "negative", "not -1"]),
        (IMAGE, {"shapes": {"h": -1, "w": 2}}, ["'h'", "negative"]),
        (IMAGE, {"count": 0}, ["at least 1"]),
        (IMAGE, {"low": 1.0}, ["low < high"]),
        (InputSpec("text", np.dtype(object), (1,)), {}, ["strings", "real data"]),
    ],
)
def test_what_cannot_be_made_up_is_refused(spec, options, words):
    with pytest.raises(DataError) as caught:
        random_samples([spec], **({"count": 1} | options))
    for word in words:
        assert word in str(caught.value)


def test_a_shape_that_contradicts_the_model_is_refused():
    with pytest.raises(DataError, match="dimension 1 3 instead of 4"):
        list(random_samples([IMAGE], count=1, shapes={"image": (1, 4, 2, 2)}))


def test_single_inputs_have_ranges_of_their_own():
    specs = [
        InputSpec("pixels", np.dtype("uint8"), (1, 500)),
        InputSpec("image", np.dtype("float32"), (1, 500)),
        InputSpec("other", np.dtype("float32"), (1, 500)),
    ]
    ranges = {"pixels": (3, 7), "image": (-2.0, 5.0)}
    (sample,) = random_samples(specs, count=1, ranges=ranges)
    assert set(np.unique(sample["pixels"])) == {3, 4, 5, 6, 7}
    assert -2 <= sample["image"].min() < -1.5 and 4.5 < sample["image"].max() < 5
    assert sample["other"].min() >= 0 and sample["other"].max() < 1


@pytest.mark.parametrize(
    ("ranges", "said"),
    [
        ({"imge": (0, 1)}, "Did you mean 'image'"),
        ({"image": (1, 1)}, "low < high"),
        ({"pixels": (-1, 4)}, "does not fit input 'pixels'"),
    ],
)
def test_ranges_that_cannot_be_are_refused(ranges, said):
    specs = [
        InputSpec("pixels", np.dtype("uint8"), (1, 5)),
        InputSpec("image", np.dtype("float32"), (1, 5)),
    ]
    with pytest.raises(DataError, match=said):
        random_samples(specs, count=1, ranges=ranges)
