"""Layers are chosen by a threshold as Quark does, by distances that are its own."""

import numpy as np
import pytest

from bitwright.compat.quark.mixing import DISTANCES, choose_layers, distance_of
from bitwright.errors import RecipeError

LOSS = {"a": 0.5, "b": 0.1, "c": 0.2}
NAMES = {name: ["narrow"] for name in LOSS}


def lost(layers):
    return sum(LOSS[name] for chosen in layers.values() for name in chosen)


def left(layers):
    return sum(LOSS.values()) - lost(layers)


@pytest.mark.parametrize(
    ("score", "threshold", "optimize", "chosen"),
    [
        (lost, 0.35, "speed", {"narrow": ["b", "c"]}),
        (lost, 0, "speed", {"narrow": ["b", "c", "a"]}),
        (lost, None, "speed", {}),
        (lambda layers: 1 + lost(layers), 0.5, "speed", {}),
        (left, 0.35, "quality", {"narrow": ["a"]}),
        (left, 0.25, "quality", {"narrow": ["a", "c"]}),
        (left, 0.9, "quality", {}),
    ],
)
def test_layers_are_added_in_the_order_of_their_scores(score, threshold, optimize, chosen):
    assert choose_layers(score, NAMES, threshold=threshold, optimize=optimize) == chosen


def test_each_layer_gets_the_configuration_that_loses_least():
    def score(layers):
        return sum(
            LOSS[name] * (2 if kind == "bad" and name != "b" else 1)
            for kind, names in layers.items()
            for name in names
        ) - 0.05 * ("b" in layers.get("bad", ()))

    several = {name: ["good", "bad"] for name in LOSS}
    assert choose_layers(score, several, threshold=0) == {"bad": ["b"], "good": ["c", "a"]}


def test_distances_are_those_of_their_formulas():
    rng = np.random.default_rng(0)
    one = rng.random((3, 7))
    other = one + 0.01 * rng.normal(size=one.shape)
    noise, signal = np.mean((one - other) ** 2), np.mean(one**2)
    p, r = one / one.sum(), other / other.sum()
    wanted = {
        "l2": np.sqrt(((one - other) ** 2).sum()),
        "kl": np.sum(p * np.log(p / r)),
        "cosine": 1 - (one * other).sum() / np.sqrt((one**2).sum() * (other**2).sum()),
        "sqnr": -10 * np.log10(signal / noise),
        "psnr": -10 * np.log10(np.abs(one).max() ** 2 / noise),
    }
    assert wanted.keys() == DISTANCES.keys()
    for name, value in wanted.items():
        found = distance_of({"metric_default": name})
        assert found([[one], [one]], [[other], [other]]) == pytest.approx(value, rel=1e-6)
        assert found([[one]], [[one]]) <= value


def test_a_function_of_the_user_s_is_the_metric():
    mean = distance_of({"metric_evaluate_fn": lambda outputs: outputs[0][0].mean()})
    assert mean([[np.array([3.0])]], [[np.array([1.0])]]) == 2
    with pytest.raises(RecipeError, match="two metrics"):
        distance_of({"metric_evaluate_fn": len, "metric_distance_fn": len})
    with pytest.raises(RecipeError, match="Did you mean 'quality'"):
        choose_layers(lost, NAMES, threshold=1, optimize="qualty")
