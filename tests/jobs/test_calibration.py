import numpy as np
import pytest
from support.models import build, make_cnn, make_mlp, make_samples, node, weight

import bitwright
from bitwright.data import RandomData
from bitwright.demo import load_demo
from bitwright.errors import DataError
from bitwright.graph import load_model
from bitwright.jobs.calibration import Calibration, detail_for
from bitwright.jobs.opening import open_model
from bitwright.numerics.types import BFLOAT16
from bitwright.observe import observe, save_sketches
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


def make_gate():
    """Convolutions with a gate between, a HardSigmoid, which only placement by cost quantizes."""
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        node("HardSigmoid", ["c"], ["h"], name="gate", alpha=1 / 6),
        node("Mul", ["c", "h"], ["m"], name="product"),
        node("Conv", ["m", "w"], ["y"], name="behind", pads=[1, 1, 1, 1]),
    ]
    return build(nodes, {"x": [1, 8, 6, 6]}, {"y": [1, 8, 6, 6]}, {"w": weight(8, 8, 3, 3)})


EVERYTHING: dict[str, object] = {}
NARROW = [
    (make_cnn, {"select": {"op_types": ("Conv", "Gemm")}}),
    (make_cnn, {"select": {"exclude_op_types": ("Relu", "Clip")}}),
    (make_cnn, {"select": {"exclude_op_types": ("MatMul", "MaxPool")}}),
    (make_cnn, {"place": {"purpose": "balanced"}}),
    (make_cnn, {"place": {"purpose": "speed", "cpu": "x86-vnni"}}),
    (make_gate, {"place": {"purpose": "balanced", "cpu": "x86-vnni"}}),
    (make_mlp, {"select": {"exclude": ("bias",)}}),
    (make_mlp, {"select": {"exclude_op_types": ("Relu",)}}),
    (make_mlp, {"select": {"nodes": ("second",)}}),
]


@pytest.mark.parametrize(("make", "narrow"), NARROW)
@pytest.mark.parametrize("order", [1, -1], ids=["widened", "narrowed"])
def test_sketches_of_one_placement_serve_every_other(make, narrow, order, tmp_path):
    model, kept = make(), tmp_path / "seen.safetensors"
    samples = make_samples(model, 8)

    def decide(fields, **options):
        recipe = Recipe(per_channel=True, **fields)
        given = {"data": samples, "progress": False, **options}
        return bitwright.make_plan(model, recipe=recipe, **given)

    first, then = [narrow, EVERYTHING][::order]
    decide(first, sketches=kept)
    served, fresh = decide(then, sketches=kept, data=None), decide(then)
    assert served.nodes == fresh.nodes
    assert served.tensors.keys() == fresh.tensors.keys()
    for key, tensor in fresh.tensors.items():
        # A product whose bias is not computed with it may add up in another order.
        if tensor.scale is not None:
            np.testing.assert_allclose(served.tensors[key].scale, tensor.scale, rtol=1e-6)
        assert served.tensors[key].zero_point == tensor.zero_point


def test_sketches_of_fewer_tensors_serve_what_they_suffice_for(tmp_path):
    model, kept = make_cnn(), tmp_path / "seen.safetensors"
    samples = make_samples(model, 8)
    options = {"data": samples, "sketches": kept, "progress": False}
    convolutions = Recipe(select={"op_types": ("Conv",)})
    fingerprint = open_model(model, convolutions).content_fingerprint
    plan = bitwright.make_plan(model, recipe=convolutions, data=samples, progress=False)
    named = [t.tensor for t in plan.tensors.values() if t.role == "activation"]
    seen = observe(open_model(model, convolutions).model, named, samples, progress=False)
    save_sketches(kept, seen.sketches, fingerprint=fingerprint)
    assert bitwright.make_plan(model, recipe=convolutions, **options).tensors == plan.tensors
    with pytest.raises(DataError, match=r"no sketch of .* \(\d+ missing\).*delete the file"):
        bitwright.make_plan(model, recipe=Recipe(), **options)


def test_as_much_random_data_calibrates_as_is_asked_for():
    assert bitwright.quantize(MODEL, data=RandomData(count=8), recipe="int8").data.startswith("8 ")
