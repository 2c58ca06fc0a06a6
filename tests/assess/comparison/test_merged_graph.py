"""Models in parts, against the same models in one graph."""

import math

import numpy as np
import pytest
from support.models import build, make_cnn, make_samples, make_transformer, node, weight

import bitwright
from bitwright.assess import open_units
from bitwright.assess.comparison import side_by_side
from bitwright.assess.comparison.merged_graph import MergedGraph
from bitwright.assess.sensitivity import variants
from bitwright.graph import load_model


def residual_blocks():
    """Two blocks with a float sum around each: its tensor passes several parts."""
    nodes, weights, x = [], {}, "x"
    for block in range(3):
        a, b, y = f"a{block}", f"b{block}", f"y{block}"
        nodes.append(node("Conv", [x, f"w{block}"], [a], pads=[1, 1, 1, 1]))
        nodes.append(node("Relu", [a], [b]))
        nodes.append(node("Add", [b, x], [y]))
        weights[f"w{block}"] = weight(4, 4, 3, 3, seed=block)
        x = y
    nodes.append(node("Sigmoid", [x], ["out"]))
    return build(nodes, {"x": [1, 4, 6, 6]}, {"out": [1, 4, 6, 6]}, weights)


RECIPES = {
    "pairs": "int8",
    "integer operators": {"base": "int8", "format": "qoperator"},
    "float sums": {"base": "int8", "select": {"exclude_op_types": ["Add"]}},
    "bfloat16": "bfloat16",
}
MODELS = {"cnn": make_cnn, "blocks": residual_blocks, "transformer": make_transformer}


SIZES = pytest.mark.parametrize("most", [1, 5], ids=["a cut each", "a few nodes each"])


def cut_finely(monkeypatch, most):
    monkeypatch.setattr(side_by_side, "_MOST_NODES", most)
    monkeypatch.setattr(variants, "most_nodes", lambda nodes: most)


def quantized(model, recipe):
    samples = make_samples(model, 3)
    return bitwright.quantize(model, data=samples, recipe=recipe, holdout=False), samples


@SIZES
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
@pytest.mark.sampled(8)
def test_parts_compare_as_one_graph_does(make, recipe, most, monkeypatch):
    model = make()
    result, samples = quantized(model, recipe)
    whole = bitwright.compare(model, result.model, data=samples)
    cut_finely(monkeypatch, most)
    found = bitwright.compare(model, result.model, data=samples)
    for one, other in zip(whole.outputs, found.outputs, strict=True):
        assert other.name == one.name and other.sqnr == pytest.approx(one.sqnr, abs=0.01)
    for name, tensor in whole.tensors.items():
        other = found.tensors[name]
        assert (other.local_sqnr is None) == (tensor.local_sqnr is None)
        # Where nothing rounds, the runtime may move a quantizer ahead of transposes, in one graph.
        if tensor.local_sqnr is not None:
            assert other.sqnr == pytest.approx(tensor.sqnr, abs=0.01)
            assert other.local_sqnr == pytest.approx(tensor.local_sqnr, abs=0.01)


@SIZES
@pytest.mark.parametrize("recipe", list(RECIPES.values())[:3], ids=list(RECIPES)[:3])
@pytest.mark.parametrize("make", [make_cnn, residual_blocks], ids=["cnn", "blocks"])
@pytest.mark.sampled(4)
def test_variants_in_parts_are_those_of_one_graph(make, recipe, most, monkeypatch):
    model = make()
    result, samples = quantized(model, recipe)
    whole = bitwright.find_sensitivity(model, result.plan, data=samples)
    neighbours = [tuple(node.name for node in whole.nodes[i : i + 2]) for i in range(2)]
    sets = [*neighbours, tuple(node.name for node in whole.nodes[::2])]
    expected = whole._propose.__self__.without(sets)
    cut_finely(monkeypatch, most)
    found = bitwright.find_sensitivity(model, result.plan, data=samples)
    assert found.quantized == pytest.approx(whole.quantized, rel=1e-3)
    for one, other in zip(whole.nodes, found.nodes, strict=True):
        assert other.alone == pytest.approx(one.alone, rel=1e-3)
        assert other.without == pytest.approx(one.without, rel=1e-3)
    for one, other in zip(expected, found._propose.__self__.without(sets), strict=True):
        assert other.noise == pytest.approx(one.noise, rel=1e-3)


def test_only_tensors_of_cuts_pass_from_part_to_part():
    model = residual_blocks()
    result, _ = quantized(model, "int8")
    units = open_units(load_model(model), load_model(result.model))
    for most in (1, 4, 9, math.inf):
        graph = MergedGraph(units, most)
        allowed = {"x"}
        for cut in units.cuts:
            graph.begin(cut)
            graph.add_float(cut)
            graph.add_quantized(cut)
            known = graph.quantized
            allowed.add(graph.floats[cut.float_value].name)
            allowed |= {known[cut.value].name, known[cut.measured].name}
        _, parts = graph.finish([])
        made = {}
        for place, part in enumerate(parts):
            assert {made.get(name, -1) for name in part.inputs} <= set(range(-1, place))
            assert allowed.issuperset(part.inputs)
            made |= dict.fromkeys(part.outputs, place)
        assert made.keys() == {name for part in parts for name in part.inputs} - {"x"}
    assert len(parts) == 1


def test_wrong_sizes_inside_a_file_do_not_count_between_parts(monkeypatch):
    model = residual_blocks()
    result, samples = quantized(model, "int8")
    whole = bitwright.compare(model, result.model, data=samples)
    wrong = load_model(model)
    for each in wrong.graph:
        if each.outputs[0].name == "y0":
            each.outputs[0].shape = type(each.outputs[0].shape or wrong.graph.inputs[0].shape)(
                [1, 9, 9, 9]
            )
    monkeypatch.setattr(side_by_side, "_MOST_NODES", 1)
    found = bitwright.compare(wrong, result.model, data=samples)
    assert found.outputs[0].sqnr == pytest.approx(whole.outputs[0].sqnr, abs=0.01)
    assert np.isfinite(found.tensors["y0"].sqnr)
