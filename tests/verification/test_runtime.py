"""Which float weights the installed runtime rounds: one model for each condition of it.

So a condition that the runtime gives up, or a new one, fails here.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.models import build, make_samples, node, normal, weight
from support.pair_models import Pairs

import bitwright
from bitwright import graph
from bitwright.plan import QuantPlan
from bitwright.recipe import Recipe
from bitwright.run import Session
from bitwright.run.optimized import optimize_model
from bitwright.verification.runtime import find_rounded, note_rounded


def make_layer(
    op="Conv", *, before=(), behind=(), bias=None, paired=True, channels=None, read_by=None
):
    """A layer with float weights between two pairs, and nodes between it and them."""
    pairs = Pairs()
    scale = 0.05 if channels is None else [0.05] * channels
    made = pairs.pair("x", scale=scale, zero_point=128, axis=1) if paired else "x"
    for place, moving in enumerate(before):
        more = {"kernel_shape": [1, 1]} if moving == "MaxPool" else {}
        made = pairs.add(moving, [made], f"before{place}", **more)
    flat = op in ("Gemm", "MatMul")
    inputs = [made, pairs.constant("w", normal(4, 4) if flat else normal(4, 4, 3, 3))]
    if bias == "int32":
        inputs.append(pairs.stored("b", np.ones(4), "int32", 0.001))
    elif bias is not None:
        inputs.append(pairs.constant("b", np.ones(bias, np.float32)))
    made = pairs.add(op, inputs, "layer")
    outputs = [] if read_by is None else [pairs.add(read_by, [made], "other")]
    for place, following in enumerate(behind):
        more = [pairs.constant("vector", np.ones(4, np.float32))] if following == "Add" else []
        made = pairs.add(following, [made, *more], f"behind{place}")
    outputs.append(pairs.pair(made, scale=0.1, zero_point=128))
    return graph.load_model(pairs.model(outputs, {"x": [2, 4] if flat else [1, 4, 6, 6]}))


ROUNDED = {
    "conv": make_layer(),
    "conv with a bias": make_layer(bias=[4]),
    "transposed conv": make_layer("ConvTranspose"),
    "gemm": make_layer("Gemm"),
    "matmul and a vector, which become a gemm": make_layer("MatMul", behind=["Add"]),
    "behind it a relu": make_layer(behind=["Relu"]),
    "behind it a clip": make_layer(behind=["Clip"]),
    "before it what only moves values": make_layer(before=["MaxPool"]),
}

KEPT = {
    "matmul": make_layer("MatMul"),
    "no pair before it": make_layer(paired=False),
    "a scale for each channel before it": make_layer(channels=4),
    "before it what computes": make_layer(before=["Sigmoid"]),
    "behind it what computes": make_layer(behind=["Sigmoid"]),
    "another reader": make_layer(read_by="Neg"),
    "a stored bias": make_layer(bias="int32"),
    "a bias with two axes": make_layer("Gemm", bias=[1, 4]),
}


@pytest.mark.parametrize("level", ["basic", "extended"])
@pytest.mark.parametrize("case", ROUNDED)
def test_the_runtime_rounds(case, level):
    assert find_rounded(optimize_model(ROUNDED[case], level=level)) == ["layer"]


@pytest.mark.parametrize("case", KEPT)
def test_the_runtime_keeps(case):
    assert find_rounded(optimize_model(KEPT[case])) == []


EMPTY = QuantPlan(fingerprint="", recipe=Recipe(), tensors={}, nodes={}, notes=["one"])


def test_what_is_rounded_is_noted_once_and_what_is_not_no_more():
    for model in ROUNDED.values():
        noted = note_rounded(EMPTY, model)
        assert noted.notes[0] == "one"
        assert "float weights of layer in 8 bits" in noted.notes[1]
        assert noted.rounded_by_runtime == ("layer",)
        assert note_rounded(noted, model).notes == noted.notes
    for model in KEPT.values():
        assert note_rounded(noted, model).notes == ["one"]


def test_the_entry_that_the_note_names_keeps_the_weights():
    model = ROUNDED["conv with a bias"]
    (note,) = note_rounded(EMPTY, model).notes[1:]
    name, value = note.split()[-1].split("=")
    sample = {"x": normal(1, 4, 6, 6)}
    exact, kept, rounded = (
        next(iter(Session(model, **options).run(sample).values()))
        for options in ({"level": "disabled"}, {"entries": {name: value}}, {})
    )
    np.testing.assert_array_equal(kept, exact)
    assert (rounded != exact).any()


def make_chain(op="ConvTranspose"):
    nodes = [
        node("Conv", ["x", "w1"], ["a"], name="first"),
        node("Relu", ["a"], ["r"], name="relu"),
        node(op, ["r", "w2"], ["b"], name="middle"),
        node("Conv", ["b", "w3"], ["y"], name="last"),
    ]
    constants = {
        "w1": weight(4, 3, 3, 3, seed=1),
        "w2": weight(4, 4, 3, 3, seed=2),
        "w3": weight(4, 4, 3, 3, seed=3),
    }
    return build(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 4, None, None]}, constants)


@pytest.mark.parametrize("format", ["qdq", "qoperator"])
def test_a_model_whose_float_weights_are_rounded_says_so(format):
    model = make_chain()
    samples = make_samples(model, 4)
    recipe = {"format": format, "select": {"op_types": ["Conv", "Relu"]}}
    (note,) = bitwright.quantize(model, data=samples, recipe=recipe).plan.notes
    assert note.startswith("ONNX Runtime stores the float weights of middle in 8 bits")


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("format", ["qdq", "qoperator"])
def test_what_is_excluded_by_name_keeps_its_weights(op, format):
    model = make_chain(op)
    samples = make_samples(model, 4)
    recipe = {"format": format, "select": {"exclude": ["middle"]}}
    result = bitwright.quantize(model, data=samples, recipe=recipe)
    assert result.plan.notes == []
    assert find_rounded(optimize_model(result.model)) == []


@pytest.mark.parametrize("format", ["qdq", "qoperator"])
def test_pooling_before_it_is_to_be_excluded_as_well(format):
    model = make_chain("Conv")
    model.graph.node[2].input[0] = "p"
    model.graph.node.insert(2, node("MaxPool", ["r"], ["p"], name="pool", kernel_shape=[2, 2]))
    samples = make_samples(model, 4)
    for excluded, notes in ((["middle"], 1), (["pool", "middle"], 0)):
        recipe = {"format": format, "select": {"exclude": excluded}}
        found = bitwright.quantize(model, data=samples, recipe=recipe).plan.notes
        assert sum("of middle in 8 bits" in note for note in found) == notes


def test_verification_finds_them_in_models_of_others():
    found = bitwright.verify(ROUNDED["conv"], cpu="vnni")
    (finding,) = found.findings
    assert (finding.rule, finding.node, finding.level) == ("float_weights", "layer", "warning")
    assert "WeightBiasQuantization" in finding.remedy


def test_a_product_of_activations_may_be_deep_in_a_network():
    nodes = [node("Relu", ["x" if i == 0 else f"r{i - 1}"], [f"r{i}"]) for i in range(1500)]
    nodes.append(node("MatMul", ["x", "r1499"], ["y"]))
    model = graph.load_model(build(nodes, {"x": [2, 2]}, {"y": [2, 2]}))
    plan = QuantPlan(recipe=Recipe(), fingerprint="", tensors={}, nodes={})
    assert note_rounded(plan, model).rounded_by_runtime == ()
