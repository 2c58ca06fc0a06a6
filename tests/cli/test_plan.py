import bitwright


def test_a_plan_is_written_summarised_and_readable(run, model, data, tmp_path):
    path = tmp_path / "plan.json"
    answer = run("plan", model, "--data", data, "-o", path, "--json")
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
