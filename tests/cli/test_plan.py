import json

import numpy as np
import pytest

import bitwright
from bitwright import QuantPlan


def test_a_plan_is_written_summarised_and_readable(run, model, data, tmp_path):
    path = tmp_path / "plan.json"
    answer = run("plan", model, "--data", data, "--for", "size", "-o", path, "--json")
    assert answer.code == 0, answer.err
    assert answer.json["plan"] == str(path)
    assert answer.json["quantized"]["Conv"] == 7
    plan = bitwright.QuantPlan.load(path)
    assert plan.recipe.name == "int8-per-channel"
    assert [file.name for file in tmp_path.iterdir()] == ["plan.json"]


def test_the_plan_may_not_replace_the_model(run, model, data):
    before = model.read_bytes()
    answer = run("plan", model, "--data", data, "-o", model)
    assert answer.code == 1
    assert "overwrite the input" in answer.err
    assert model.read_bytes() == before


@pytest.mark.parametrize("command", ["plan", "quantize"])
def test_encodings_are_written_and_read(run, model, data, tmp_path, command):
    file, out = tmp_path / "model.encodings", tmp_path / "q.onnx"
    words = ("--data", data, "--recipe", "int8-per-channel")
    if command == "plan":
        assert run("plan", model, "-o", file, *words).code == 0
    else:
        assert run("quantize", model, "-o", out, "--plan-out", file, *words).code == 0
    assert {"version", "activation_encodings"} <= json.loads(file.read_text()).keys()
    # Other data, and the scales of the file all the same.
    few = ("--random-data", "2", "--recipe", "int8-per-channel", "--encodings", file)
    plans = []
    for more in (words, few):
        assert run("plan", model, "-o", tmp_path / "plan.json", *more).code == 0
        plans.append(QuantPlan.load(tmp_path / "plan.json"))
    for key, entry in plans[0].tensors.items():
        if entry.scale is not None:
            assert np.allclose(plans[1].tensors[key].scale, entry.scale, rtol=1e-6)
            assert np.array_equal(plans[1].tensors[key].zero_point, entry.zero_point)


def test_a_file_that_holds_no_encodings_is_told(run, model, data, tmp_path):
    (tmp_path / "no.encodings").write_text("{}")
    words = ("--data", data, "--encodings", tmp_path / "no.encodings")
    answer = run("plan", model, "-o", tmp_path / "plan.json", *words)
    assert answer.code == 1 and "has no activation_encodings" in answer.err
