"""Values with named options refuse, when they are made, what their JSON would."""

import inspect

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
    Limits,
    Override,
    Percentile,
    Recipe,
    Selection,
    SmoothQuant,
    WeightOnly,
    WeightOverride,
)
from bitwright.errors import RecipeError
from bitwright.support.settings import Settings

KINDS = [
    pytest.param(kind, id=name)
    for name, kind in inspect.getmembers(bitwright, inspect.isclass)
    if issubclass(kind, msgspec.Struct) and not name.endswith("Plan")
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_public_value_is_checked_as_it_is_made(kind):
    assert issubclass(kind, Settings)
    with pytest.raises(RecipeError, match=f"^{kind.__name__}: unknown option 'qqq'. "):
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
            "WeightOnly: option 'bits' must be a whole number, not text.",
        ),
        (lambda: GPTQ(damping="x"), "GPTQ: option 'damping' must be a number, not text."),
        (lambda: AWQ(grid=2.5), "AWQ: option 'grid' must be a whole number, not a number."),
        (
            lambda: Percentile(percentile=None),
            "Percentile: option 'percentile' must be a number, not nothing.",
        ),
        (lambda: Entropy(bins="x"), "Entropy: option 'bins' must be a whole number, not text."),
        (
            lambda: Selection(op_types="Conv"),
            "Selection: option 'op_types' must be a list or nothing, not text.",
        ),
        (
            lambda: Selection(exclude=["a", 3]),
            "Selection: option 'exclude[1]' must be text, not a whole number.",
        ),
        (
            lambda: SmoothQuant(alpha="x"),
            "SmoothQuant: option 'alpha' must be a number, not text.",
        ),
        (
            lambda: Limits(max_rounds=True),
            "Limits: option 'max_rounds' must be a whole number, not true or false.",
        ),
        (
            lambda: AdaRound(iteration=3),
            "AdaRound: unknown option 'iteration'. Did you mean 'iterations'?",
        ),
        (
            lambda: CrossLayerEqualization(steps="x"),
            "CrossLayerEqualization: option 'steps' must be a whole number, not text.",
        ),
        (
            lambda: WeightOverride(bits="x"),
            "WeightOverride: option 'bits' must be a whole number or nothing, not text.",
        ),
        (
            lambda: ImagePreprocess(resize="x"),
            "ImagePreprocess: option 'resize' must be a whole number or a list or nothing, "
            "not text.",
        ),
        (lambda: Override(qtype=8), "Override: a number type is a name such as 'int8', not 8."),
        (
            lambda: Recipe().replace(name=3),
            "Recipe: option 'name' must be text, not a whole number.",
        ),
        (
            lambda: Recipe(weights={"overrides": {"n": {"bitz": 3}}}, mode="weight-only"),
            "Recipe: unknown option 'bitz' in 'weights.overrides[...]'. Did you mean 'bits'?",
        ),
        (
            lambda: Recipe(bias="int33"),
            "Recipe: option 'bias' cannot be 'int33'. Known: int32, int16, weight.",
        ),
        (
            lambda: Recipe(place={"channel_axes": {"Conv": "x"}}),
            "Recipe: option 'place.channel_axes[...]' must be a whole number, not text.",
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
