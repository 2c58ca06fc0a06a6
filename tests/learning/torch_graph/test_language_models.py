"""Operators of language models against ONNX Runtime's kernels."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto
from support.models import build, info, node, normal, run

pytest.importorskip("torch", reason="the executor is torch code")

from support.torch_graphs import run_in_torch

from bitwright.learning.torch_graph.table import why_not

SIZE, LENGTH = 32, 7


def attention(*, past=0, batch=2, packed=False, rotary=None, heads=4, groups=2, **attributes):
    """Return a model of one GroupQueryAttention, and what to feed it."""
    widths = {"q": heads * SIZE, "k": groups * SIZE, "v": groups * SIZE}
    if packed:
        widths = {"q": sum(widths.values())}
    feeds = {n: normal(batch, LENGTH, w, seed=i) for i, (n, w) in enumerate(widths.items())}
    feeds |= {n: normal(batch, groups, past, SIZE, seed=5 + i) for i, n in enumerate(("pk", "pv"))}
    constants = {
        "lengths": np.full(batch, past + LENGTH - 1, np.int32),
        "total": np.array(past + LENGTH, np.int32),
    }
    names = ["q", "" if packed else "k", "" if packed else "v", "pk", "pv", "lengths", "total"]
    if rotary:
        angles = np.outer(np.arange(32), 0.3 ** np.arange(rotary // 2)).astype(np.float32)
        constants |= {"cos": np.cos(angles), "sin": np.sin(angles)}
        names += ["cos", "sin"]
        attributes["do_rotary"] = 1
    only = node(
        "GroupQueryAttention",
        names,
        ["y", "nk", "nv"],
        "attention",
        domain="com.microsoft",
        num_heads=heads,
        kv_num_heads=groups,
        **attributes,
    )
    inputs = [info(name, list(array.shape)) for name, array in feeds.items()]
    outputs = [info(name, None) for name in ("y", "nk", "nv")]
    return build([only], inputs, outputs, constants, domains=["com.microsoft"]), feeds


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"packed": True, "rotary": SIZE},
        {"rotary": SIZE // 2},
        {"past": 3, "batch": 1, "rotary": SIZE},
        {"local_window_size": 3},
        {"scale": 0.5, "groups": 4},
    ],
)
def test_attention_is_the_runtimes(options):
    model, feeds = attention(**options)
    for found, expected in zip(run_in_torch(model, feeds), run(model, feeds), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("bias", [False, True])
def test_the_norm_of_a_sum_is_the_runtimes(bias):
    feeds = {"x": normal(2, 5, 8, seed=1), "skip": normal(2, 5, 8, seed=2)}
    constants = {"gain": normal(8, seed=3)} | ({"b": normal(8, seed=4)} if bias else {})
    only = node(
        "SkipSimplifiedLayerNormalization",
        ["x", "skip", *constants],
        ["y", "", "", "sum"],
        "norm",
        domain="com.microsoft",
        epsilon=1e-3,
    )
    inputs = [info(name, [2, 5, 8]) for name in feeds]
    outputs = [info("y", None), info("sum", None)]
    model = build([only], inputs, outputs, constants, domains=["com.microsoft"])
    for found, expected in zip(run_in_torch(model, feeds), run(model, feeds), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_norm_is_the_runtimes():
    feeds = {"x": normal(2, 5, 8, seed=1)}
    only = node("SimplifiedLayerNormalization", ["x", "gain"], ["y"], "norm", axis=-1, epsilon=1e-3)
    model = build([only], [info("x", [2, 5, 8])], [info("y", None)], {"gain": normal(8, seed=3)})
    (found,), (expected,) = run_in_torch(model, feeds), run(model, feeds)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_what_is_not_written_here_is_refused():
    values = [ir.Value(name=str(i), type=ir.TensorType(TensorProto.FLOAT)) for i in range(11)]
    biased = ir.node("GroupQueryAttention", values, domain="com.microsoft")
    assert "a bias" in why_not(biased, 21)
    capped = ir.node("GroupQueryAttention", values[:7], {"softcap": 5.0}, domain="com.microsoft")
    assert "softcap" in why_not(capped, 21)
    norm = ir.node("SkipSimplifiedLayerNormalization", values[:3], num_outputs=2)
    ir.node("Relu", [norm.outputs[1]])
    assert "output 1" in why_not(norm, 21)
