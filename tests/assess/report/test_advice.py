import shlex
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from support.report_examples import activation, measured, output, subject, weight, with_fix

from bitwright import load_demo, load_recipe
from bitwright.assess.clock import read_clock
from bitwright.assess.report.advice import advise, say_verdict
from bitwright.assess.report.subject import ReportNode
from bitwright.plan import QuantPlan
from bitwright.recipe import Percentile, Recipe

POOR = [output(8.0, 0.4)]


def commands(given):
    return {advice.title: advice.command for advice in advise(given)}


def nodes_with(local):
    return [measured(name=f"n{place}", local_sqnr=value) for place, value in enumerate(local)]


def with_outliers(name="x"):
    return activation(name, np.append(np.random.default_rng(0).standard_normal(20_000), 400.0))


def uneven(name="w", **changes):
    array = np.random.default_rng(0).standard_normal((16, 4, 3, 3))
    array[5] *= 1000
    return weight(name, array, **changes)


def test_a_good_model_has_nothing_to_fix():
    [advice] = advise(subject())
    assert advice.title == "Nothing to fix"
    assert advice.command == "bitwright check model.onnx model-int8.onnx --data images"


def test_a_larger_model_is_not_one_with_nothing_to_fix():
    [advice] = advise(replace(subject(), float_bytes=1000, quantized_bytes=2000))
    assert advice.title == "Keep the float model"


def test_three_lines_say_whether_to_ship_whether_it_is_faster_and_what_is_next():
    clock = read_clock([(2.0, 1.0)] * 5)
    ship, time, step = say_verdict(subject(clock=clock))
    assert ship.startswith("Ship it: yes") and step.startswith("Next: Nothing to fix: bitwright ")
    assert time == f"Time: {clock.in_words_and_figures()}"
    poor = subject(nodes_with([40, 41, 9, 42]), worst=[2, 0, 1, 3], outputs=POOR, recipe=None)
    ship, time, step = say_verdict(poor)
    assert ship.startswith("Ship it: no") and step.startswith(
        "Next: Leave this node float: bitwright"
    )
    assert time == "Time: not measured: it was not asked for"


def test_a_model_that_its_target_does_not_run_is_not_to_be_shipped():
    target = {"name": "webgpu", "level": "poor", "sentence": "webgpu does not run it as it is"}
    ship, *_ = say_verdict(subject(target=target))
    assert ship == "Ship it: no, webgpu does not run it as it is"


def test_a_node_far_below_the_others_is_left_float():
    given = subject(nodes_with([40, 41, 9, 42]), worst=[2, 0, 1, 3], outputs=POOR, recipe=None)
    command = commands(given)["Leave this node float"]
    assert command.endswith("--data images --exclude n2")
    assert "n0" not in command


def test_where_nodes_can_be_tried_out_none_is_blamed_for_its_own_error():
    given = subject(nodes_with([40, 41, 9, 42]), worst=[2, 0, 1, 3], outputs=POOR)
    assert "Leave this node float" not in commands(given)
    assert "Find the fewest nodes that need a fallback" in commands(given)


def test_nodes_that_are_all_alike_are_not_blamed():
    given = subject(nodes_with([40, 41, 39, 42]), outputs=POOR, recipe=None)
    assert not any("float" in title for title in commands(given))


def test_what_was_measured_to_help_comes_first_with_its_plan():
    given = with_fix(subject(outputs=POOR), "conv 1", plan_name="out/r.plan.json")
    first = advise(given)[0]
    assert first.title == "Fall back to float for this node"
    assert "regain 85 % of the loss: 10.0 dB → 18.2 dB" in first.why and "conv 1" in first.why
    assert first.command == "bitwright apply out/r.plan.json model.onnx -o better.onnx"
    others = {"Leave this node float", "Find the fewest nodes that need a fallback"}
    assert not others & set(commands(given))


def test_a_proposal_that_falls_short_says_why():
    given = with_fix(subject(outputs=POOR), "conv0", "conv2", to="uint16", reached=False)
    first = advise(given)[0]
    assert first.title == "Fall back to 16 bits for these 2 nodes"
    assert "spread over many" in first.why


def test_plans_that_round_by_data_are_applied_with_data():
    given = with_fix(subject(outputs=POOR, recipe=load_recipe("int4-gptq")))
    assert advise(given)[0].command.endswith("-o better.onnx --data images")


def test_sensitivity_is_proposed_where_it_was_not_measured():
    title = "Find the fewest nodes that need a fallback"
    plan = QuantPlan(recipe=load_recipe("int8"), fingerprint="", tensors={}, nodes={})
    given = subject(outputs=POOR, plan=plan, plan_name="my plan.json")
    words = "bitwright sensitivity model.onnx --plan 'my plan.json' --data images -o better.json"
    assert commands(given)[title] == words
    alone = commands(subject(outputs=POOR))[title]
    assert alone.startswith("bitwright plan model.onnx -o plan.json --data images --recipe int8 &&")
    assert title not in commands(subject(outputs=POOR, recipe=None))
    assert title not in commands(subject())


def test_names_are_quoted_for_the_shell():
    names = "a b; rm -rf ~", "it's", "$(whoami)"
    nodes = [measured(name=name, local_sqnr=5.0) for name in names]
    nodes += nodes_with([40.0] * 60)
    given = subject(nodes, outputs=POOR, float_name="my model.onnx", recipe=None)
    words = shlex.split(commands(given)["Leave these 3 nodes float"])
    assert [words[i + 1] for i, word in enumerate(words) if word == "--exclude"] == list(names)
    assert words[2] == "my model.onnx"


def test_a_large_channel_asks_for_a_scale_of_its_own():
    given = subject(tensors=[uneven()])
    assert (
        "--set per_channel=true" in commands(given)["Give each channel of a weight its own scale"]
    )
    assert "Channel 5 of w" in advise(given)[0].why


@pytest.mark.parametrize("view", [weight(), uneven(per_channel=True)])
def test_even_channels_and_channels_with_scales_do_not(view):
    assert list(commands(subject(tensors=[view]))) == ["Nothing to fix"]


def test_hardware_with_one_scale_per_weight_equalizes_channels():
    given = subject(tensors=[uneven()], recipe=load_recipe("npu-cnn"))
    found = commands(given)
    assert found["Equalize channels between layers"].endswith("--recipe npu-cnn --equalize")
    assert "Give each channel of a weight its own scale" not in found
    assert "Equalize channels between layers" not in commands(
        subject(tensors=[uneven()], recipe=load_recipe("xint8"))
    )


def test_outliers_are_cut_off():
    given = subject(tensors=[with_outliers(), activation("usual")], outputs=POOR)
    assert commands(given)["Cut off outliers"].endswith("--ranges mse")
    assert "Cut off outliers" not in commands(subject(tensors=[activation()], outputs=POOR))
    clipping = load_recipe("int8").replace(ranges=Percentile())
    assert "Cut off outliers" not in commands(
        subject(tensors=[with_outliers()], outputs=POOR, recipe=clipping)
    )


def test_values_that_are_cut_off_are_kept_by_minmax():
    narrow = activation(top=1.0)
    assert narrow.clipped > 0.01
    recipe = load_recipe("int8").replace(ranges=Percentile(percentile=60))
    assert commands(subject(tensors=[narrow], recipe=recipe))["Keep large values"].endswith(
        "--recipe recipe.json --ranges minmax"
    )
    # Min-max cuts nothing off that calibration has seen: other data is needed.
    assert "--data PATH" in commands(subject(tensors=[narrow]))["Calibrate on more varied data"]


def test_transformers_with_outliers_are_smoothed():
    nodes = [
        ReportNode(measured=measured(name=f"mm{n}", op="MatMul"), tensors=[("input", "x")])
        for n in range(5)
    ]
    given = subject(nodes, tensors=[with_outliers()], outputs=POOR)
    title = "Let weights take over large activations"
    assert commands(given)[title].endswith("--set smooth={}")
    assert title not in commands(subject(nodes, tensors=[activation("x")], outputs=POOR))


def test_a_poor_model_gets_activations_of_16_bits():
    assert commands(subject(outputs=POOR))["Give activations 16 bits"].endswith("--recipe a16w8")
    wide = subject(outputs=POOR, recipe=load_recipe("a16w8"))
    assert "Give activations 16 bits" not in commands(wide)


@pytest.mark.parametrize(
    ("recipe", "option"),
    [
        (load_recipe("a8w4"), "--set weight=int8"),
        (load_recipe("int4"), "--recipe int8-weights"),
    ],
)
def test_weights_of_few_bits_get_more(recipe, option):
    command = commands(subject(outputs=POOR, recipe=recipe))["Store weights in 8 bits"]
    assert command.endswith(option)
    assert "Store weights in 8 bits" not in commands(subject(recipe=recipe))


def test_random_data_is_distinguished_from_real_data():
    plan = QuantPlan(
        fingerprint="",
        recipe=Recipe(),
        tensors={},
        nodes={},
        random_data=True,
    )
    assert "--data PATH" in commands(subject(plan=plan))["Calibrate on real data"]


def test_a_slower_model_is_profiled():
    slow = read_clock([(1.0, 2.0)] * 5)
    assert commands(subject(clock=slow)) == {
        "Find out what is slow": "bitwright bench model.onnx model-int8.onnx"
    }
    for rounds in ([(2.0, 1.0)] * 5, [(1.0, 0.9), (1.0, 1.1), (1.0, 2.0)]):
        assert "Find out what is slow" not in commands(subject(clock=read_clock(rounds)))


def test_recipes_without_calibration_need_no_data():
    given = subject(tensors=[uneven()], recipe=Recipe(mode="dynamic"))
    assert "--data" not in commands(given)["Give each channel of a weight its own scale"]


def test_without_a_recipe_the_command_names_none():
    given = subject(nodes_with([40, 9, 41]), worst=[1], outputs=POOR, recipe=None)
    assert "--recipe" not in commands(given)["Leave this node float"]


def test_every_command_is_one_that_the_command_line_takes(monkeypatch):
    import typer

    from bitwright import api
    from bitwright.cli import main

    asked = {}

    def quantize(model, output, *, recipe, **options):
        asked[recipe.to_json()] = recipe
        raise typer.Exit(0)

    def leave(*_, **__):
        raise typer.Exit(0)

    monkeypatch.setattr(api, "quantize", quantize)
    monkeypatch.setattr(api, "make_plan", leave)
    monkeypatch.setattr(api, "find_sensitivity", leave)
    poor = {"outputs": POOR, "float_name": str(load_demo().model_path)}
    products = [
        ReportNode(measured=measured(name=f"m{n}", op="MatMul"), tensors=[("input", "x")])
        for n in range(4)
    ]
    subjects = [
        subject(nodes_with([5, 40, 40]), tensors=[uneven(), with_outliers()], **poor),
        subject(products, tensors=[with_outliers()], **poor),
        subject(recipe=load_recipe("a8w4"), **poor),
        subject(recipe=load_recipe("int4"), **poor),
        subject(tensors=[uneven()], recipe=load_recipe("npu-cnn"), **poor),
    ]
    told = chain.from_iterable(commands(given).values() for given in subjects)
    lines = {line for command in told for line in command.split(" && ")}
    for line in sorted(lines):
        words = shlex.split(line.replace("--recipe recipe.json", "--recipe int8"))
        assert main(words[1:]) == 0, line
    # Each command asks for something else.
    assert len(asked) == sum(line.startswith("bitwright quantize") for line in lines) >= 7
    assert sum(line.startswith("bitwright sensitivity") for line in lines) == 1
