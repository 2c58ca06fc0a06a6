"""Values with named options refuse, when they are made, what their JSON would."""

import copy
import inspect
import json
import pickle

import msgspec
import numpy as np
import pytest

import bitwright
from bitwright import (
    AWQ,
    GPTQ,
    AdaRound,
    CrossLayerEqualization,
    Entropy,
    ImagePreprocess,
    Override,
    Percentile,
    QuantPlan,
    Recipe,
    Selection,
    SmoothQuant,
    WeightOnly,
    WeightOverride,
)
from bitwright.errors import PlanError, RecipeError
from bitwright.recipe import LimitDetails
from bitwright.support.settings import FrozenDict, FrozenList, Settings, frozen

KINDS = [
    pytest.param(kind, id=name)
    for name, kind in inspect.getmembers(bitwright, inspect.isclass)
    if issubclass(kind, msgspec.Struct) and not name.endswith("Plan")
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_public_value_is_checked_as_it_is_made(kind):
    assert issubclass(kind, Settings)
    with pytest.raises(RecipeError, match=f"^{kind.__name__}: unknown option 'qqq'\\."):
        kind(qqq=1)
    with pytest.raises(RecipeError, match=f"^{kind.__name__} takes its options by name"):
        kind(1)
    for field in msgspec.structs.fields(kind):
        with pytest.raises(RecipeError, match=f"^{kind.__name__}: .*"):
            kind(**{field.name: object()})


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: Recipe(per_chanel=True),
            "Recipe: unknown option 'per_chanel'. Did you mean 'per_channel'?",
        ),
        (
            lambda: WeightOnly(bits="4"),
            "WeightOnly: option 'bits' must be a whole number, not '4'.",
        ),
        (lambda: GPTQ(damping="x"), "GPTQ: option 'damping' must be a number, not 'x'."),
        (lambda: AWQ(grid=2.5), "AWQ: option 'grid' must be a whole number, not 2.5."),
        (
            lambda: Percentile(percentile=None),
            "Percentile: option 'percentile' must be a number, not None.",
        ),
        (lambda: Entropy(bins="x"), "Entropy: option 'bins' must be a whole number, not 'x'."),
        (
            lambda: Selection(op_types="Conv"),
            "Selection: option 'op_types' must be a list or None, not 'Conv'.",
        ),
        (
            lambda: Selection(exclude=["a", 3]),
            "Selection: option 'exclude[1]' must be text, not 3.",
        ),
        (
            lambda: SmoothQuant(alpha="x"),
            "SmoothQuant: option 'alpha' cannot be 'x'. Known: auto. It may also be a number.",
        ),
        (
            lambda: LimitDetails(max_rounds=True),
            "LimitDetails: option 'max_rounds' must be a whole number, not True.",
        ),
        (
            lambda: AdaRound(iteration=3),
            "AdaRound: unknown option 'iteration'. Did you mean 'iterations'?",
        ),
        (
            lambda: AdaRound(layer_fraction=0.5),
            "AdaRound: unknown option 'layer_fraction'. Did you mean 'layerwise_fraction'?",
        ),
        (
            lambda: CrossLayerEqualization(steps="x"),
            "CrossLayerEqualization: option 'steps' must be a whole number, not 'x'.",
        ),
        (
            lambda: WeightOverride(bits="x"),
            "WeightOverride: option 'bits' must be a whole number or None, not 'x'.",
        ),
        (
            lambda: ImagePreprocess(resize="x"),
            "ImagePreprocess: option 'resize' must be a whole number, a list or None, not 'x'.",
        ),
        (lambda: Override(qtype=8), "Override: a number type is a name such as 'int8', not 8."),
        (
            lambda: Recipe().replace(name=3),
            "Recipe: option 'name' must be text, not 3.",
        ),
        (
            lambda: Recipe(weights={"overrides": {"n": {"bitz": 3}}}, mode="weight-only"),
            "Recipe: unknown option 'bitz' in 'weights.overrides[n]'. Did you mean 'bits'?",
        ),
        (
            lambda: Recipe(bias="int33"),
            "Recipe: option 'bias' cannot be 'int33'. Did you mean 'int32'?",
        ),
        (
            lambda: Recipe(emulate={"channel_axes": {"Conv": "x"}}),
            "Recipe: option 'emulate.channel_axes[Conv]' must be a whole number, not 'x'.",
        ),
        (
            lambda: Recipe(output_ranges={"Relu": (0, 1, 2)}),
            "Recipe: option 'output_ranges[Relu]' must be a list of 2, not of 3.",
        ),
        (
            lambda: Recipe(ranges={"method": ["minmax"]}),
            "Recipe: unknown method ['minmax'] in 'ranges'. Did you mean 'minmax'?",
        ),
        (
            lambda: Recipe(overrides={3: {}}),
            "Recipe: names of options are text, which 3 is not.",
        ),
    ],
)
def test_a_wrong_option_is_named_with_what_it_must_be(make, sentence):
    with pytest.raises(RecipeError) as refusal:
        make()
    assert str(refusal.value) == sentence


def test_options_get_the_types_that_a_file_gives_them():
    assert Selection(exclude=["a"]).exclude == ("a",)
    assert Override(qtype="uint16").qtype is bitwright.numerics.types.UINT16
    assert type(Percentile(percentile=np.float64(99.5)).percentile) is float
    assert WeightOnly(rounding={"method": "gptq", "damping": 0.1}).rounding == GPTQ(damping=0.1)
    assert Recipe(ranges={"method": "entropy"}).replace(fine_tune=None).ranges == Entropy()


def test_a_copy_with_an_option_changed_is_checked_again():
    with pytest.raises(RecipeError, match="weights take 2 to 8 bits, not 9"):
        WeightOnly().replace(bits=9)


JUNK = (None, True, -1, 2.5, "zzz", [3, "a"], ["a"], {"zzz": 1}, {3: 1}, {"method": "zzz"})


@pytest.mark.parametrize("kind", KINDS)
def test_no_sentence_is_left_to_the_decoder(kind):
    """Its errors have no remedy, and names of types in backticks."""
    for field in msgspec.structs.fields(kind):
        for value in JUNK:
            try:
                kind(**{field.name: value})
            except RecipeError as error:
                assert "`" not in str(error), (field.name, value)


def test_an_error_among_thousands_of_tensors_is_found_with_its_name():
    entry = {"tensor": "x", "role": "weight", "qtype": "int8", "scale": 0.5, "zero_point": 0}
    tensors = {f"t{index}": dict(entry) for index in range(5000)}
    tensors["t4321"]["axis"] = "one"
    plan = {"fingerprint": "", "recipe": {}, "nodes": {}, "tensors": tensors}
    sentence = (
        r"^plan: option 'tensors\[t4321\]\.axis' must be a whole number or None, not 'one'\.$"
    )
    with pytest.raises(PlanError, match=sentence):
        QuantPlan.from_json(msgspec.json.encode(plan))


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"fine_tune": {"method": "adaround", "scope": "segments"}}, "Did you mean 'segment'?"),
        ({"rounding": "up"}, "cannot be 'up'. Known: gptq, nearest, squant."),
    ],
)
def test_a_word_that_is_none_is_refused_with_those_that_are(options, hint):
    with pytest.raises(RecipeError) as caught:
        Recipe.from_mapping(options)
    assert hint in str(caught.value)


def test_a_dict_changes_a_section_and_a_value_replaces_it():
    recipe = Recipe(ranges=Percentile(percentile=99, symmetric=True))
    assert recipe.replace(ranges={"percentile": 98}).ranges == Percentile(
        percentile=98, symmetric=True
    )
    assert recipe.replace(ranges=Percentile(percentile=98)).ranges == Percentile(percentile=98)
    assert recipe.replace(ranges={"method": "entropy"}).ranges == Entropy()
    with pytest.raises(RecipeError, match="unknown option 'bins' in 'ranges'"):
        recipe.replace(ranges={"bins": 4})


def test_a_table_of_names_is_replaced_as_a_whole():
    recipe = Recipe(overrides={"a": Override(symmetric=True)})
    changed = recipe.replace(overrides={"b": {"symmetric": False}})
    assert changed.overrides == {"b": Override(symmetric=False)}


COPIES = [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))]
VALUE = {"a": [1, {"b": 2}], "c": (3,)}


def test_a_frozen_value_is_equal_to_what_it_was_made_of():
    found = frozen(VALUE)
    assert found == VALUE and json.dumps(found) == json.dumps(VALUE)
    assert frozen(found) is found and frozen("text") == "text"
    assert found | {"d": 4} == {**VALUE, "d": 4} and type(found | {}) is dict


@pytest.mark.parametrize("copied", COPIES)
def test_copies_are_frozen_too(copied):
    found = copied(frozen(VALUE))
    assert found == VALUE and isinstance(found, FrozenDict)
    with pytest.raises(TypeError):
        found["a"] = 1


@pytest.mark.parametrize(
    "write",
    [
        lambda d, x: d.__setitem__("a", 1),
        lambda d, x: d.__delitem__("a"),
        lambda d, x: d.pop("a"),
        lambda d, x: d.popitem(),
        lambda d, x: d.clear(),
        lambda d, x: d.update(a=1),
        lambda d, x: d.setdefault("z", 1),
        lambda d, x: d.__ior__({}),
        lambda d, x: x.__setitem__(0, 1),
        lambda d, x: x.__delitem__(0),
        lambda d, x: x.append(1),
        lambda d, x: x.extend([1]),
        lambda d, x: x.insert(0, 1),
        lambda d, x: x.pop(),
        lambda d, x: x.remove(1),
        lambda d, x: x.clear(),
        lambda d, x: x.sort(),
        lambda d, x: x.reverse(),
        lambda d, x: x.__iadd__([1]),
        lambda d, x: x.__imul__(2),
    ],
)
def test_every_change_is_refused(write):
    found = frozen(VALUE)
    with pytest.raises(TypeError, match="belongs to a frozen value and cannot be changed"):
        write(found, found["a"])
    assert found == VALUE and isinstance(found["a"], FrozenList)
