"""Inputs that meet have one scale that covers all of them."""

import numpy as np
from support.models import build, make_samples, node, weight

import bitwright
from bitwright.recipe import Recipe


def make():
    """Two branches that are added, one of which is joined with a third; and a constant."""
    constants = {name: weight(4, 4, 1, 1, seed=i) for i, name in enumerate("abc")}
    constants["c"] = 20 * constants["c"]
    constants["k"] = np.full((4, 1, 1), 100, np.float32)
    nodes = [
        *(node("Conv", ["x", name], [f"{name}1"], name=f"conv_{name}") for name in "abc"),
        node("Add", ["a1", "b1"], ["s"], name="sum"),
        node("Concat", ["b1", "c1"], ["j"], name="join", axis=1),
        node("Conv", ["s", "a"], ["t"], name="conv_t"),
        node("Mul", ["t", "k"], ["m"], name="scale"),
        node("Conv", ["m", "b"], ["y"], name="conv_y"),
        node("MaxPool", ["j"], ["z"], name="pool", kernel_shape=[2, 2]),
    ]
    return build(nodes, {"x": [1, 4, 6, 6]}, {"y": [1, 4, 6, 6], "z": [1, 8, 5, 5]}, constants)


def planned(*ops, **options):
    recipe = Recipe(optimize=False, place={"same_scale_ops": ops, "isolated": True}, **options)
    model = make()
    made = bitwright.make_plan(model, data=make_samples(model, 2), recipe=recipe)
    return made.tensors


def span(plan):
    return [(end - plan.zero_point) * plan.scale for end in (0, 255)]


def test_inputs_that_meet_have_the_widest_of_their_ranges():
    alone, shared = planned(), planned("Add", "Concat", "Mul")
    assert len({alone[name].scale for name in ("a1", "b1", "c1")}) == 3
    assert len({(shared[n].scale, shared[n].zero_point) for n in ("a1", "b1", "c1")}) == 1
    low, high = span(shared["a1"])
    step = shared["a1"].scale
    for name in ("a1", "b1", "c1"):
        assert low <= span(alone[name])[0] + step and high >= span(alone[name])[1] - step


def test_what_does_not_meet_and_constants_stay():
    alone, shared = planned(), planned("Add", "Mul")
    assert shared["c1"] == alone["c1"]
    assert shared["a1"].scale == shared["b1"].scale
    assert shared["t"].scale == alone["t"].scale != shared["k"].scale


def test_symmetric_ones_stay_symmetric():
    shared = planned("Add", activation="int8", activation_symmetric=True)
    assert shared["a1"].scale == shared["b1"].scale
    assert shared["a1"].zero_point == shared["b1"].zero_point == 0
