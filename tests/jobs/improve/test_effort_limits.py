"""What no effort can be asked for is refused before any work is done."""

import importlib.util

import pytest
from support.models import make_cnn, make_samples

import bitwright
from bitwright import AdaRound, load_recipe
from bitwright.errors import DataError, MissingPackageError, RecipeError

HAS_TORCH = importlib.util.find_spec("torch") is not None


def quantized(effort, model, data, recipe="int8", **options):
    return bitwright.quantize(
        model, data=data, recipe=recipe, effort=effort, progress=False, **options
    )


@pytest.mark.parametrize(
    ("effort", "options", "error", "words"),
    [
        ("medum", {}, RecipeError, "unknown effort 'medum'. Did you mean 'medium'"),
        ("medium", {"recipe": "int4-rtn"}, RecipeError, "is weight-only"),
        ("low", {"recipe": "int8-dynamic"}, RecipeError, "measures its own ranges"),
        ("medium", {"sketches": "s.safetensors"}, RecipeError, "tries several"),
        ("medium", {"device": "cuda"}, RecipeError, "leave it out"),
        ("medium", {"work": "folder"}, RecipeError, "leave it out"),
        ("medium", {"data": make_samples(make_cnn(), 7)}, DataError, "8 samples.* there are 7"),
    ],
)
def test_what_no_effort_can_do_is_refused(effort, options, error, words):
    with pytest.raises(error, match=words):
        quantized(effort, make_cnn(), **{"data": make_samples(make_cnn(), 8), **options})


def test_effort_without_data_is_refused():
    with pytest.raises(DataError, match=r"effort 'medium' .* needs data"):
        bitwright.quantize(make_cnn(), recipe="int8", effort="medium")


def test_fine_tuning_is_a_step_of_high_alone():
    recipe = load_recipe("int8").replace(fine_tune=AdaRound())
    with pytest.raises(RecipeError, match="a step of effort 'high'"):
        quantized("medium", make_cnn(), make_samples(make_cnn(), 8), recipe)


@pytest.mark.skipif(HAS_TORCH, reason="torch is installed")
def test_high_without_torch_says_so_before_any_work():
    with pytest.raises(MissingPackageError, match="needs torch"):
        quantized("high", "no such model.onnx", make_samples(make_cnn(), 8))
