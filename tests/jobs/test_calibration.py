import numpy as np
import pytest

from bitwright.data import RandomData
from bitwright.demo import load_demo
from bitwright.graph import load_model
from bitwright.jobs.calibration import Calibration, detail_for
from bitwright.numerics.types import BFLOAT16
from bitwright.recipe import Entropy, MinMax, MinMSE, NonOverflow, Override, Recipe

MODEL = load_model(load_demo().model_path)


@pytest.mark.parametrize(
    ("recipe", "detail"),
    [
        (Recipe(ranges=NonOverflow(), scales="power-of-two"), "extremes"),
        (Recipe(ranges=MinMSE(mode="most-common"), scales="power-of-two"), "extremes"),
        (Recipe(ranges=MinMSE(mode="all"), scales="power-of-two"), "histogram"),
        (Recipe(ranges=MinMax(), overrides={"x": Override(ranges=Entropy())}), "histogram"),
        (Recipe(ranges=MinMax(), activation=BFLOAT16, format="extended"), "histogram"),
    ],
)
def test_a_histogram_is_kept_only_for_methods_that_look_at_one(recipe, detail):
    assert detail_for(recipe, keep=False) == detail


def test_data_that_can_be_read_once_is_kept_for_two_passes():
    samples = (image[np.newaxis] for image in load_demo().calibration[:5])
    kept = Calibration(data=samples, limit=3).keep(MODEL)
    first, second = list(kept.open(MODEL)), list(kept.open(MODEL))
    assert len(first) == 3
    for one, again in zip(first, second, strict=True):
        np.testing.assert_equal(one, again)


def test_random_data_takes_its_shapes_from_the_model():
    feeds = next(iter(Calibration(data=RandomData(count=1)).open(MODEL)))
    assert list(feeds) == [value.name for value in MODEL.graph.inputs]
