"""Models of every recipe beside the float model that they were made from."""

import numpy as np
import onnx_ir as ir
import pytest

import bitwright
from bitwright import graph
from bitwright.recipe import RECIPES

WRITTEN = {
    **{name: name for name in RECIPES},
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
    session = graph.open_session(parts[0])
    name = session.get_inputs()[0].name
    samples = [
        graph.run_session(session, {name: np.asarray(picture, np.float32)[None]})
        for picture in demo.calibration[:12]
    ]
    return parts[1], samples


# Block formats run as long functions, which the runtime takes seconds to open.
SLOW = {"mxfp8e5m2", "mxfp8e4m3", "mxfp6e3m2", "mxfp6e2m3", "mxfp4e2m1", "mx4", "mx6"}


@pytest.mark.parametrize(
    "written",
    [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in WRITTEN],
)
def test_models_of_every_recipe_are_compared_and_reported_on(written, tail):
    model, samples = tail
    result = bitwright.quantize(model, recipe=WRITTEN[written], data=samples)
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
