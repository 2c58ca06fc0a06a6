"""Models of every recipe beside the float model that they were made from."""

import numpy as np
import onnx_ir as ir
import pytest
from support.equalization_models import make_chain
from support.models import make_samples

import bitwright
from bitwright import graph
from bitwright.recipe import RECIPES, Selection
from bitwright.run import Session

WRITTEN = {
    # Fine-tuning changes the numbers of weights, not how they are written; and the product of
    # this model is a Gemm, which some recipes leave out.
    **{
        name: recipe.replace(fine_tune=None, select=Selection())
        for name, recipe in RECIPES.items()
        # For attention alone, see `test_caches`; and 4-bit floats take no Gemm.
        if recipe.cache is None and name != "bnb4"
    },
    "qoperator": {"base": "int8", "format": "qoperator"},
    "fix-neuron": {"base": "xint8", "format": "fix-neuron"},
}


@pytest.fixture(scope="module")
def tail():
    """The end of the demo's model, two Conv, a sum and a Gemm, and what it reads."""
    demo = bitwright.load_demo()
    model = graph.load_model(demo.model_path)
    graph.infer_shapes(model)
    pool = next(node for node in model.graph if node.op_type == "MaxPool")
    seam = pool.outputs[0].name
    head, rest = (graph.clone_model(model) for _ in range(2))
    ends = [value.name for value in model.graph.outputs]
    parts = []
    for part, inputs, outputs in (
        (head, [value.name for value in model.graph.inputs], [seam]),
        (rest, [seam], ends),
    ):
        cut = ir.convenience.extract(part.graph, inputs, outputs)
        cut.opset_imports.update(part.graph.opset_imports)
        parts.append(ir.Model(cut, ir_version=part.ir_version))
    session = Session(parts[0])
    name = session.inputs[0]
    samples = [
        session.run({name: np.asarray(picture, np.float32)[None]})
        for picture in demo.calibration[:12]
    ]
    return parts[1], samples


# Block formats run as long functions, which the runtime takes seconds to open.
SLOW = {"mxfp8e5m2", "mxfp8e4m3", "mxfp6e3m2", "mxfp6e2m3", "mxfp4e2m1", "mx4", "mx6"}


@pytest.mark.parametrize(
    "written",
    [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in WRITTEN],
)
@pytest.mark.sampled(8)
def test_models_of_every_recipe_are_compared_and_reported_on(written, tail):
    model, samples = tail
    forced = {"force_dynamic": True} if "dynamic" in written else {}
    result = bitwright.quantize(model, recipe=WRITTEN[written], data=samples, **forced)
    found = bitwright.compare(model, result.model, data=samples[:2], plan=result.plan)
    (output,) = found.outputs
    last = found.nodes[-1]
    assert last.op == "Gemm" and last.output == output.name
    # The output is a tensor like any other, and what a node does to it is measured alone, too.
    assert last.sqnr == pytest.approx(output.sqnr, abs=0.1)
    assert last.local_sqnr > last.sqnr - 6
    assert 0 < output.sqnr < 120
    report = bitwright.write_report(
        model, result.model, data=samples[:2], plan=result.plan, latency=False
    )
    assert [node.measured.name for node in report.subject.nodes] == [n.name for n in found.nodes]
    assert report.subject.outputs[0].sqnr == pytest.approx(output.sqnr, abs=0.1)
    assert "<html" in report.to_html()


@pytest.fixture(scope="module")
def imitating():
    """Uneven convolutions around a LeakyRelu and a pool that hardware computes otherwise."""
    model = make_chain([("LeakyRelu", [], {"alpha": 0.3}), ("GlobalAveragePool", [], {})], size=7)
    samples = make_samples(model, 4)
    recipe = {"base": "xint8", "equalize": {}}
    result = bitwright.quantize(model, recipe=recipe, data=samples, holdout=False)
    return model, list(result.evaluation), result


def test_equalized_models_that_imitate_hardware_are_held_against_evened_out_tensors(imitating):
    model, samples, result = imitating
    assert any("equalized" in note or "evened" in note for note in result.plan.notes)
    found = bitwright.compare(model, result.model, data=samples, plan=result.plan)
    assert all(node.sqnr > 20 for node in found.nodes if node.sqnr is not None)
    # Outputs are held against the float model itself, which imitates nothing.
    assert found.outputs[0].sqnr == pytest.approx(result.outputs[0].sqnr, abs=0.1)
    assert found.outputs[0].sqnr < found.tensors["y"].sqnr
    report = bitwright.write_report(
        model, result.model, data=samples, plan=result.plan, latency=False
    )
    assert report.subject.outputs == found.outputs


def test_nodes_of_such_models_are_put_back_in_their_evened_out_form(imitating):
    model, samples, result = imitating
    found = bitwright.find_sensitivity(model, result.plan, data=samples)
    assert all(node.without < 2 * found.quantized for node in found.nodes)
    assert found.proposal(0.99, most=1.0).regained > 0.9
