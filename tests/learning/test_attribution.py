"""Errors by gradients are those of running each part by itself, to first order."""

import numpy as np
import pytest
from support.models import INT64, build, info, make_cnn, make_samples, node, weight

import bitwright
from bitwright.errors import ModelError
from bitwright.jobs.output import Planned, emit_model
from bitwright.jobs.qat import open_for_plan
from bitwright.jobs.tuning.units import open_unit_variants

pytest.importorskip("torch")
from bitwright.learning.attribution import Part, attribute_errors
from bitwright.learning.torch_graph.executor import TorchGraph


def variants_of(model, samples):
    plan = bitwright.make_plan(model, data=samples, recipe="int8-per-channel", effort="low")
    prepared = open_for_plan(model, plan)
    quantized = emit_model(prepared, Planned(plan)).model
    return open_unit_variants(prepared, plan, quantized, samples)


def attributed(variants):
    cuts = variants.units.cuts
    parts = {
        name: Part(cuts[place].float_nodes, cuts[place].float_value.name)
        for name, place in variants.unit_of.items()
    }
    return attribute_errors(variants.units.float_model, variants.plan, parts, variants.samples)


def chain(depth):
    """Products one after the other, with nothing else: each error reaches the output as it is."""
    names = [f"t{index}" for index in range(depth + 1)]
    nodes = [
        node("MatMul", [names[index], f"w{index}"], [names[index + 1]], f"product{index}")
        for index in range(depth)
    ]
    weights = {f"w{index}": weight(16, 16, seed=index) for index in range(depth)}
    return build(nodes, {"t0": (8, 16)}, {names[-1]: (8, 16)}, weights)


@pytest.mark.parametrize("make", [lambda: chain(6), make_cnn])
def test_errors_are_near_the_exact_ones(make):
    model = make()
    variants = variants_of(model, make_samples(model, 8))
    found = attributed(variants)
    exact = variants.run("alone")
    pairs = [(found[name], exact[place,].loss) for name, place in variants.unit_of.items()]
    guessed, true = np.array(pairs).T
    assert 1 / 3 < guessed.sum() / true.sum() < 3
    assert np.argmax(guessed) in np.argsort(-true)[:2]
    assert np.corrcoef(np.log(guessed + 1e-12), np.log(true + 1e-12))[0, 1] > 0.7


def test_what_does_not_depend_on_the_inputs_has_no_error():
    model = build(
        [
            node("Shape", ["x"], ["s"], "shape"),
            node("ConstantOfShape", ["s"], ["o"], "zeros"),
            node("MatMul", ["o", "v"], ["b"], "still"),
            node("MatMul", ["x", "w"], ["y"], "product"),
            node("Add", ["y", "b"], ["z"], "sum"),
        ],
        {"x": ("n", 4)},
        {"z": ("n", 4)},
        {"w": weight(4, 4), "v": weight(4, 4, seed=1)},
    )
    found = attributed(variants_of(model, make_samples(model, 2)))
    assert found["product"] > 0
    assert found.get("still", 0) == 0


def test_the_same_errors_each_time():
    model = chain(3)
    variants = variants_of(model, make_samples(model, 2))
    assert attributed(variants) == attributed(variants)


def test_what_torch_cannot_run_is_said():
    model = build(
        [node("MatMul", ["x", "w"], ["y"], "product"), node("Det", ["y"], ["d"], "det")],
        {"x": (4, 4)},
        {"d": ()},
        {"w": weight(4, 4)},
    )
    variants = variants_of(model, make_samples(model, 2))
    with pytest.raises(ModelError, match="'det' cannot run in torch"):
        attributed(variants)


def test_what_torch_has_no_memory_for_is_said(monkeypatch):
    model = make_cnn()
    variants = variants_of(model, make_samples(model, 2))

    def fail(*_, **__):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(TorchGraph, "run", fail)
    with pytest.raises(ModelError, match="torch cannot run the model: Default"):
        attributed(variants)


def test_outputs_without_a_gradient_are_said():
    """Whole numbers: no direction of them moves anything."""
    model = build(
        [
            node("MatMul", ["x", "w"], ["y"], "product"),
            node("Cast", ["y"], ["k"], "cast", to=INT64),
        ],
        {"x": (4, 4)},
        [info("k", (4, 4), INT64)],
        {"w": weight(4, 4)},
    )
    variants = variants_of(model, make_samples(model, 2))
    with pytest.raises(ModelError, match="no output of the model has a gradient"):
        attributed(variants)
