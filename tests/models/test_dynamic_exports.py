"""Dynamic int8 of what torch's two exporters make of branches, loops and recurrent layers."""

from __future__ import annotations

import warnings

import onnx
import pytest
from onnx import helper
from support.models import normal, quality

import bitwright

torch = pytest.importorskip("torch", reason="only torch has these exporters")
nn = torch.nn
WIDTH = 48


class Branches(nn.Module):
    """A product, and behind it one of two others."""

    def __init__(self):
        super().__init__()
        self.first, self.short = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.long = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        hidden = torch.relu(self.first(x))
        if x.sum() > 0:
            return self.short(hidden)
        return self.long(hidden) + x


class TracedBranches(Branches):
    def forward(self, x):
        hidden = torch.relu(self.first(x))
        ways = (lambda h, _: self.short(h), lambda h, x: self.long(h) + x)
        return torch.cond(x.sum() > 0, *ways, (hidden, x))


class Steps(nn.Module):
    """One product, again and again."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        for _ in range(x.size(0)):
            x = torch.tanh(self.up(x)) + x
        return x


class TracedSteps(Steps):
    def forward(self, x):
        from torch._higher_order_ops.while_loop import while_loop

        def step(index, x):
            return index + 1, torch.tanh(self.up(x)) + x

        return while_loop(lambda index, _: index < 3, step, (torch.tensor(0), x))[1]


class Recurrent(nn.Module):
    """An LSTM in both directions, and a head."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * WIDTH, 8)

    def forward(self, x):
        return self.head(self.lstm(x)[0])


def export(network, shape, path, *, dynamo):
    torch.manual_seed(0)
    example = (torch.randn(*shape),)
    options = {"external_data": False} if dynamo else {}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network, example, path, input_names=["x"], output_names=["y"], dynamo=dynamo, **options
        )
    return path


def check(path, shape, products, holder):
    """Quantize a model, and hold it against float on inputs of both signs."""
    assert holder in {node.op_type for node in onnx.load(path).graph.node}
    result = bitwright.quantize(path, recipe="int8-dynamic", progress=False)
    planned = [node for node in result.plan.nodes.values() if node.op in ("MatMul", "Gemm")]
    assert len(planned) == products and all(node.per_token for node in planned)
    samples = [{"x": (-1) ** seed * abs(normal(*shape, seed=seed))} for seed in range(6)]
    assert quality(path, result.model, samples) > 35


@pytest.mark.parametrize(
    ("make", "shape", "products", "holder"),
    [(Branches, (3, WIDTH), 3, "If"), (Steps, (3, WIDTH), 1, "Loop")],
)
def test_products_in_bodies_of_a_scripted_module_have_rows(make, shape, products, holder, tmp_path):
    torch.manual_seed(0)
    path = export(torch.jit.script(make().eval()), shape, tmp_path / "m.onnx", dynamo=False)
    check(path, shape, products, holder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "shape", "products", "holder"),
    [(TracedBranches, (3, WIDTH), 3, "If"), (TracedSteps, (3, WIDTH), 1, "Loop")],
)
def test_products_in_bodies_of_a_dynamo_export_have_rows(make, shape, products, holder, tmp_path):
    torch.manual_seed(0)
    path = export(make().eval(), shape, tmp_path / "m.onnx", dynamo=True)
    check(path, shape, products, holder)


@pytest.mark.parametrize("dynamo", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_an_lstm_keeps_the_runtimes_form_and_its_head_has_rows(dynamo, tmp_path):
    torch.manual_seed(0)
    shape = (1, 5, WIDTH)
    path = export(Recurrent().eval(), shape, tmp_path / "m.onnx", dynamo=dynamo)
    check(path, shape, 1, "LSTM")
    result = bitwright.quantize(path, recipe="int8-dynamic", progress=False)
    assert "DynamicQuantizeLSTM" in {node.op_type for node in result.to_proto().graph.node}


def test_products_inside_functions_have_rows(tmp_path):
    """Both exporters write functions where they are asked to; each call has its own weights."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    body = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Tanh", ["h"], ["y"])]
    function = helper.make_function("own", "Layer", ["x", "w"], ["y"], body, opsets[:1])
    calls = [
        helper.make_node("Layer", ["x", "w1"], ["h"], domain="own"),
        helper.make_node("Layer", ["h", "w2"], ["y"], domain="own"),
    ]
    graph = helper.make_graph(
        calls,
        "calls",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [3, WIDTH])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [3, WIDTH])],
        [
            onnx.numpy_helper.from_array(normal(WIDTH, WIDTH, seed=i, size=0.1), f"w{i}")
            for i in (1, 2)
        ],
    )
    model = helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=9)
    onnx.save(model, tmp_path / "m.onnx")
    check(tmp_path / "m.onnx", (3, WIDTH), 2, "Layer")
