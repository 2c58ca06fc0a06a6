"""What consoles, notebooks and `print` show of results: a line, tables, and the summary."""

import bitwright


def test_results_are_one_line_tables_and_a_summary():
    demo = bitwright.load_demo()
    data = demo.calibration[:8]
    result = bitwright.quantize(demo.model_path, data=data, recipe="int8")
    model = result.to_proto()
    shown = [
        result,
        result.plan,
        result.plan.recipe,
        bitwright.inspect(model),
        bitwright.compare(demo.model_path, model, data=data),
        bitwright.find_sensitivity(demo.model_path, result.plan, data=data, candidates=1),
    ]
    for one in shown:
        line = repr(one)
        assert len(line) < 200 and "\n" not in line, line
        assert one._repr_html_().startswith("<div><table")
        if not isinstance(one, bitwright.Recipe):
            assert str(one) == one.summary() != line
    assert repr(result.plan) == "<QuantPlan: recipe int8, 20 of 20 nodes quantized, 29 tensors>"
    assert repr(bitwright.load_recipe("int8-per-channel")) == (
        "Recipe(name='int8-per-channel', per_channel=True)"
    )
