"""Encodings files of AIMET and QNN say what the plan decided, and a recipe can be made of one."""

import json

import msgspec
import numpy as np
import pytest

import bitwright
from bitwright.errors import ArgumentError, PlanError, RecipeError

DEMO = bitwright.load_demo()


@pytest.fixture(scope="module")
def plan():
    recipe = bitwright.load_recipe("int8-per-channel")
    return bitwright.make_plan(DEMO.model_path, data=DEMO.calibration[:8], recipe=recipe)


@pytest.mark.parametrize("version", ["0.6.1", "1.0.0"])
def test_a_plan_that_goes_through_a_file_is_the_same(plan, tmp_path, version):
    path = tmp_path / "demo.encodings"
    bitwright.write_encodings(plan, path, version=version)
    assert json.loads(path.read_text())["version"] == version
    weights = {e.tensor: e.axis for e in plan.tensors.values() if e.role == "weight" and e.axis}
    overrides = bitwright.read_encodings(path, axes=weights)
    assert not any(name.endswith("bias") for name in overrides)  # of 32 bits
    recipe = plan.recipe.replace(overrides=overrides)
    again = bitwright.make_plan(DEMO.model_path, data=bitwright.RandomData(count=2), recipe=recipe)
    for key in plan.tensors:
        before, after = plan.parameters(key), again.parameters(key)
        assert before.qtype == after.qtype, key
        assert np.allclose(before.scale, after.scale, rtol=1e-7), key
        assert np.array_equal(
            np.broadcast_to(before.zero_point, np.shape(before.scale)),
            np.broadcast_to(after.zero_point, np.shape(before.scale)),
        ), key


def test_numbers_of_an_encoding_are_those_of_its_integers(plan, tmp_path):
    path = tmp_path / "demo.encodings"
    bitwright.write_encodings(plan, path, version="0.6.1")
    (image,) = json.loads(path.read_text())["activation_encodings"]["image"]
    found = plan.parameters("image")
    assert image["min"] == pytest.approx((0 - int(found.zero_point)) * float(found.scale))
    assert image["max"] == pytest.approx((255 - int(found.zero_point)) * float(found.scale))
    weights = json.loads(path.read_text())["param_encodings"]["classify_weight"]
    assert {row["offset"] for row in weights} == {-128}
    assert {row["is_symmetric"] for row in weights} == {"True"}


def test_an_unknown_version_is_refused(plan, tmp_path):
    with pytest.raises(ArgumentError, match=r"version 0\.6\.1 or 1\.0\.0 here, not '2\.0'"):
        bitwright.write_encodings(plan, tmp_path / "x.json", version="2.0")
    assert not list(tmp_path.iterdir())


def test_blocks_have_no_encodings(plan, tmp_path):
    entry = msgspec.structs.replace(
        plan.tensors["classify_weight"], scale=[[1.0]], zero_point=0, axis=0, block_size=16
    )
    blocked = msgspec.structs.replace(plan, tensors={"w": entry})
    with pytest.raises(PlanError, match="blocks, which encodings files do not hold"):
        bitwright.write_encodings(blocked, tmp_path / "x.encodings")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "are not JSON"),
        ("[]", "has no activation_encodings"),
        ('{"activation_encodings": [{"name": "x"}], "param_encodings": []}', "lacks 'scale'"),
        ('{"activation_encodings": {"x": []}, "param_encodings": {}}', "tensor 'x'"),
        (
            '{"activation_encodings": {"x": [{"bitwidth": 7, "dtype": "int", "scale": 1, '
            '"offset": 0, "is_symmetric": "False"}]}, "param_encodings": {}}',
            "no integer type of 7 bits",
        ),
    ],
)
def test_a_bad_file_is_told_in_a_sentence(tmp_path, content, said):
    path = tmp_path / "bad.encodings"
    path.write_text(content)
    with pytest.raises(RecipeError, match=said) as error:
        bitwright.read_encodings(path)
    assert "bad.encodings" in str(error.value)
