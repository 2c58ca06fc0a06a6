import json

import pytest

import bitwright


def test_a_float_model_is_described(run, model):
    answer = run("inspect", model)
    assert answer.code == 0
    assert "Opsets: ai.onnx 17" in answer.out
    assert "Input: image: float[batch,1,8,8]" in answer.out
    assert "Quantized: nothing" in answer.out


def test_a_quantized_model_tells_what_and_how(run, quantized):
    answer = run("inspect", quantized)
    assert "Quantized ops: Conv x7" in answer.out
    assert "Scales: per channel" in answer.out
    assert "Recipe: int8-per-channel" in answer.out
    facts = run("inspect", quantized, "--json").json
    assert facts["is_quantized"]
    assert facts["file_bytes"] == quantized.stat().st_size
    assert facts["quantized_types"]["uint8"] > 0


def test_metadata_of_strangers_does_no_harm(run, model, tmp_path):
    import onnx

    for text in ("{", "[1]", '"x"', ""):
        proto = onnx.load(model)
        onnx.helper.set_model_props(proto, {"bitwright.recipe": text})
        path = tmp_path / "odd.onnx"
        onnx.save(proto, path)
        assert run("inspect", path).code == 0


def test_every_recipe_and_target_is_listed(run):
    answer = run("recipes")
    for name in (*bitwright.RECIPES, *bitwright.TARGETS):
        assert name in answer.out
    listed = run("recipes", "--json").json
    assert [recipe["name"] for recipe in listed["recipes"]] == list(bitwright.RECIPES)
    assert [target["name"] for target in listed["targets"]] == list(bitwright.TARGETS)


@pytest.mark.parametrize("name", bitwright.RECIPES)
def test_a_printed_recipe_is_the_recipe(run, name):
    answer = run("recipes", name)
    assert bitwright.Recipe.from_json(answer.out) == bitwright.RECIPES[name]
    assert json.loads(answer.out)["name"] == name


def test_an_unknown_recipe_gets_a_suggestion(run):
    answer = run("recipes", "int9")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == "error: unknown recipe 'int9'. Did you mean 'int8'?\n"
