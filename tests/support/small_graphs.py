"""Small models, and where the real ones are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from support.ocr_models import ocr_path, real_model

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def info(name, dtype=FLOAT, shape=None):
    return helper.make_tensor_value_info(name, dtype, shape)


def build(nodes, inputs, outputs, initializers=None, *, opset=17, ir_version=8, **extra):
    tensors = [numpy_helper.from_array(array, name) for name, array in (initializers or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    imports = [helper.make_opsetid("", opset)]
    imports += [helper.make_opsetid(domain, 1) for domain in extra.pop("domains", ())]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir_version, **extra)


def make_mlp(size=64, **options):
    rng = np.random.default_rng(0)
    weights = {
        "w1": rng.standard_normal((size, size)).astype(np.float32),
        "b1": rng.standard_normal(size).astype(np.float32),
        "w2": rng.standard_normal((size, 4)).astype(np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h"], name="first"),
        helper.make_node("Add", ["h", "b1"], ["a"], name="bias"),
        helper.make_node("Relu", ["a"], ["r"], name="act"),
        helper.make_node("MatMul", ["r", "w2"], ["y"], name="second"),
    ]
    return build(
        nodes, [info("x", FLOAT, ["n", size])], [info("y", FLOAT, ["n", 4])], weights, **options
    )


def make_branches():
    """An If whose branches use the same tensor name; the then branch holds a big weight."""
    weight = np.arange(24 * 24, dtype=np.float32).reshape(24, 24) / 100
    then_branch = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["t"], name="mm"),
            helper.make_node("Relu", ["t"], ["then_out"], name="relu"),
        ],
        "then",
        [],
        [info("then_out")],
        [numpy_helper.from_array(weight, "w")],
    )
    else_branch = helper.make_graph(
        [
            helper.make_node("Neg", ["x"], ["t"], name="neg"),
            helper.make_node("Abs", ["t"], ["else_out"], name="abs"),
        ],
        "else",
        [],
        [info("else_out")],
    )
    choose = helper.make_node(
        "If", ["c"], ["y"], name="choose", then_branch=then_branch, else_branch=else_branch
    )
    return build([choose], [info("c", BOOL, []), info("x", FLOAT, [2, 24])], [info("y")])


def make_loop(*, growing=False, inner_if=False):
    """A Loop that doubles its state; `d` inside it has a fixed or a growing shape."""
    body_nodes = [
        helper.make_node("Identity", ["keep"], ["keep_out"], name="keep"),
        helper.make_node("Add", ["s", "s"], ["d"], name="double"),
    ]
    if inner_if:
        yes = helper.make_graph(
            [helper.make_node("Exp", ["d"], ["e"], name="exp")], "yes", [], [info("e")]
        )
        no = helper.make_graph(
            [helper.make_node("Neg", ["d"], ["e2"], name="neg")], "no", [], [info("e2")]
        )
        body_nodes += [
            helper.make_node("Mod", ["i", "two"], ["parity"], name="mod"),
            helper.make_node("Cast", ["parity"], ["odd"], name="cast", to=BOOL),
            helper.make_node("If", ["odd"], ["z"], name="inner", then_branch=yes, else_branch=no),
        ]
    if growing:
        body_nodes.append(helper.make_node("Concat", ["d", "d"], ["s_out"], name="grow", axis=0))
    else:
        body_nodes.append(helper.make_node("Identity", ["d"], ["s_out"], name="pass"))
    shape = ["k"] if growing else [3]
    outputs = [info("keep_out", BOOL, []), info("s_out", FLOAT, shape)]
    outputs.append(info("z" if inner_if else "d", FLOAT, shape) if not growing else info("total"))
    if growing:
        body_nodes.append(helper.make_node("ReduceSum", ["d"], ["total"], name="sum", keepdims=0))
    body = helper.make_graph(
        body_nodes,
        "body",
        [info("i", INT64, []), info("keep", BOOL, []), info("s", FLOAT, shape)],
        outputs,
    )
    loop = helper.make_node("Loop", ["m", "", "x"], ["final", "scan"], name="loop", body=body)
    return build(
        [loop],
        [info("x", FLOAT, [3])],
        [info("final", FLOAT), info("scan", FLOAT)],
        {"m": np.array(3), "two": np.array(2)},
    )


def save_external(model, folder, name="model.onnx", data="model.data"):
    path = Path(folder) / name
    model = onnx.ModelProto.FromString(model.SerializeToString())  # saving changes it
    onnx.save(model, path, save_as_external_data=True, location=data, size_threshold=0)
    return path


OCR_SHAPES = {"cls": (1, 3, 48, 192), "det": (1, 3, 320, 320), "rec": (1, 3, 48, 320)}


@pytest.fixture(params=sorted(OCR_SHAPES))
def ocr_model(request):
    return ocr_path(request.param), OCR_SHAPES[request.param]


@pytest.fixture
def silero():
    return real_model("silero_vad", "data/silero_vad.onnx")


@pytest.fixture
def builders():
    """The functions above, for test modules (which pytest imports by path)."""
    return _Builders


class _Builders:
    info = staticmethod(info)
    build = staticmethod(build)
    mlp = staticmethod(make_mlp)
    branches = staticmethod(make_branches)
    loop = staticmethod(make_loop)
    save_external = staticmethod(save_external)
