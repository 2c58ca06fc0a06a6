import dataclasses
import re

import msgspec
import pytest

from bitwright import (
    AWQ,
    GPTQ,
    HQQ,
    CrossLayerEqualization,
    Limits,
    MinMax,
    Percentile,
    Recipe,
    RecipeError,
    Rewrites,
    Simulation,
    SmoothQuant,
    WeightOverride,
    load_recipe,
)
from bitwright.cli.recipe_choice import RecipeChoice
from bitwright.cli.settings import change_recipe


def test_no_settings_leave_the_recipe_alone():
    assert RecipeChoice(recipe="int8").load().name == "int8"


def test_a_changed_recipe_says_so_unless_it_gets_a_name():
    assert change_recipe(Recipe(name="a"), ["per_channel=true"]).name == "a (changed)"
    assert change_recipe(Recipe(name="a"), ["per_channel=true", "name=b"]).name == "b"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["per_channel=true"], Recipe(per_channel=True)),
        (["per_channel=True"], Recipe(per_channel=True)),
        (["weight_symmetric=None"], Recipe()),
        (["min_real_range=0.001"], Recipe(min_real_range=0.001)),
        (["ranges=percentile"], Recipe(ranges=Percentile())),
        (
            ["ranges.percentile=99", "ranges.method=percentile"],
            Recipe(ranges=Percentile(percentile=99)),
        ),
        (["ranges.symmetric=true"], Recipe(ranges=MinMax(symmetric=True))),
        (["weight_ranges.method=percentile"], Recipe(weight_ranges=Percentile())),
        (["equalize={}"], Recipe(equalize=CrossLayerEqualization())),
        (["equalize.steps=-1"], Recipe(equalize=CrossLayerEqualization(steps=-1))),
        (
            ["emulate.equalize.append_bias=false", "equalize.weight_threshold=None"],
            Recipe(
                equalize=CrossLayerEqualization(weight_threshold=None),
                emulate={"equalize": {"append_bias": False}},
            ),
        ),
        (["smooth.alpha=0.3"], Recipe(smooth=SmoothQuant(alpha=0.3))),
        (
            ["limits={}", "emulate.limits.shift_cut=false", "scales=power-of-two"],
            Recipe(
                limits=Limits(),
                emulate={"limits": {"shift_cut": False}},
                scales="power-of-two",
            ),
        ),
        (["rewrite.clip6_to_relu=true"], Recipe(rewrite=Rewrites(clip6_to_relu=True))),
        (["simulate.softmax=true"], Recipe(simulate=Simulation(softmax=True))),
    ],
)
def test_fields_of_any_kind_can_be_set(settings, expected):
    assert change_recipe(Recipe(), [*settings, "name=custom"]) == expected


def test_nested_fields_lists_and_tables():
    recipe = change_recipe(
        Recipe(),
        [
            "select.op_types=Conv, MatMul",
            'select.exclude=["a,b"]',
            "emulate.dedicated_pairs=true",
            "place.unquantized_outputs=Add,Mul",
            "emulate.channel_axes.Conv=1",
            "overrides.block.0/conv.out.qtype=uint16",
            "overrides.block.0/conv.out.ranges.method=mse",
            "overrides.re:/layer4/.*.activation=uint16",
            'overrides."re:/layer1/.*".weight=int4',
            "overrides.Gemm.keep_float=true",
        ],
    )
    assert str(recipe.overrides["re:/layer4/.*"].activation) == "uint16"
    assert str(recipe.overrides["re:/layer1/.*"].weight) == "int4"
    assert recipe.overrides["Gemm"].keep_float
    assert recipe.select.op_types == ("Conv", "MatMul")
    assert recipe.select.exclude == ("a,b",)
    assert recipe.emulate.dedicated_pairs
    assert recipe.place.unquantized_outputs == ("Add", "Mul")
    assert recipe.emulate.channel_axes == {"Conv": 1}
    override = recipe.overrides["block.0/conv.out"]
    assert override.qtype.name == "uint16"
    assert type(override.ranges).__name__ == "MSE"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("per_chanel=true", "unknown option 'per_chanel'. Did you mean 'per_channel'?"),
        ("select.exclud=a", "unknown option 'exclud' in 'select'. Did you mean 'exclude'?"),
        ("equalize.step=1", "unknown option 'step' in 'equalize'. Did you mean 'steps'?"),
        ('equalize={"step":1}', "unknown option 'step' in 'equalize'. Did you mean 'steps'?"),
        ("equalize.steps=0", "steps of equalize must be positive"),
        ("place.dedicated=1", "unknown option 'dedicated' in 'place'"),
        ("overrides.x.qtyp=int8", "Did you mean 'qtype'?"),
        (
            "ranges.method=percentil",
            "unknown method 'percentil' in 'ranges'. Did you mean 'percentile'?",
        ),
        ("ranges.percentle=9", "unknown option 'percentle' in 'ranges'"),
        ("percentile=99", "unknown option 'percentile'. Did you mean 'ranges.percentile' or"),
        ("alpha=0.5", "Did you mean 'smooth.alpha'?"),
        ("activation=int9", "int9"),
        ("per_channel=maybe", "per_channel"),
        ("per_channel", "not KEY=VALUE"),
        ("=3", "not KEY=VALUE"),
        ("per_channel.x=3", "'per_channel' is one value"),
        ("restricted_asymmetric=true", "Did you mean 'emulate.restricted_asymmetric'?"),
        ("ranges=min-mse", "power-of-two"),
    ],
)
def test_a_bad_setting_is_told_in_a_sentence(setting, message):
    with pytest.raises(RecipeError) as caught:
        change_recipe(Recipe(), [setting])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_equalize_is_asked_for_in_one_word_and_refined_by_settings():
    assert RecipeChoice(recipe="int8", equalize=True).load().equalize == CrossLayerEqualization()
    refined = RecipeChoice(recipe="int8", equalize=True, settings=["equalize.steps=3"]).load()
    assert refined.equalize == CrossLayerEqualization(steps=3)
    assert RecipeChoice(recipe="int8").load().equalize is None


def weights_with(*settings):
    return change_recipe(load_recipe("int4-rtn"), settings).weights


def test_fields_of_weights_can_be_set():
    plain = load_recipe("int4-rtn").weights
    replace = msgspec.structs.replace
    assert weights_with("weights.bits=3", "weights.block_size=128") == replace(
        plain, bits=3, block_size=128
    )
    assert weights_with("weights.rounding=hqq").rounding == HQQ()
    assert weights_with("weights.rounding.method=gptq", "weights.rounding.act_order=true") == (
        replace(plain, rounding=GPTQ(act_order=True))
    )
    assert weights_with("weights.awq.grid=5").awq == AWQ(grid=5)
    assert weights_with("weights.overrides.layer.0/MatMul.bits=8").overrides == {
        "layer.0/MatMul": WeightOverride(bits=8)
    }


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("weights.bit=3", "unknown option 'bit' in 'weights'. Did you mean 'bits'?"),
        (
            "weights.rounding=gptk",
            "unknown method 'gptk' in 'weights.rounding'. Did you mean 'gptq'?",
        ),
        ("weights.overrides.head.bit=8", "unknown option 'bit' in 'weights.overrides[head]'."),
        ("weights.block_size=24", "block_size of weights must be a power of two"),
    ],
)
def test_wrong_fields_of_weights_are_named(setting, sentence):
    with pytest.raises(RecipeError, match=re.escape(sentence)):
        weights_with(setting)


def test_a_section_as_a_whole_changes_only_what_it_names():
    recipe = load_recipe("int4")
    settings = ["weights.bits=8", 'weights={"block_size": 128}', 'weights.rounding={"damping": 1}']
    changed = change_recipe(recipe, settings).weights
    assert changed == recipe.weights.replace(
        bits=8, block_size=128, rounding=recipe.weights.rounding.replace(damping=1)
    )


def test_brackets_without_end_are_one_sentence():
    with pytest.raises(RecipeError, match=r"--set: \[{20}… is nested too deeply; write fewer"):
        change_recipe(load_recipe("int8"), ["select=" + "[" * 5000])


def test_the_example_in_the_help_works():
    [option] = [f for f in dataclasses.fields(RecipeChoice) if f.name == "settings"]
    text = option.metadata["option"].help
    examples = re.findall(r"[\w.]+=[\w.]+\w", text)
    assert len(examples) == 3
    changed = change_recipe(load_recipe("int8"), examples)
    assert (changed.per_channel, changed.ranges.percentile) == (True, 99.9)


def test_an_option_of_another_method_names_the_method_to_add():
    with pytest.raises(RecipeError, match=r"has ranges=minmax; add --set ranges=percentile\."):
        change_recipe(load_recipe("int8"), ["ranges.percentile=99.9"])
    with pytest.raises(RecipeError, match=r"rounding=nearest; add --set weights\.rounding=gptq\."):
        change_recipe(load_recipe("int4-rtn"), ["weights.rounding.act_order=true"])
