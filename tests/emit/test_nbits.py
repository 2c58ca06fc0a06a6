"""Block-wise weights in the graph: what each form computes in ONNX Runtime, and what it stores."""

import itertools

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper
from support.models import (
    FLOAT16,
    INT64,
    build,
    constants_of,
    info,
    make_branching_products,
    node,
    normal,
    ops,
    run,
    weight,
)

from bitwright import graph
from bitwright.emit.nbits import emit_blocks
from bitwright.errors import PlanError, TargetError
from bitwright.numerics.blocks import BlockFormat, BlockScales, quantize_in_blocks, round_to_codes

RUNNING = ("matmul-nbits", "qdq", "float")
outputs_that_run = pytest.mark.parametrize("output", RUNNING)


def emit(model, weights, **options):
    """Return the model with its weights in blocks, as a message, and the notes."""
    work = graph.load_model(model)
    graph.normalize(work)
    notes = emit_blocks(work, weights, **options)
    graph.check_model(work)
    return ir.to_proto(work), notes


def blocks_of(array, **format):
    return quantize_in_blocks(array, BlockFormat(**format))


def one_product(k, n, *, op="MatMul", transposed=False, bias=None, opset=21, constants=None):
    w = weight(k, n)
    held = {"w": w.T.copy() if transposed else w, **({} if bias is None else {"c": bias})}
    names = ["x", "w"] + ([] if bias is None else ["c"])
    attributes = {"transB": 1} if transposed else {}
    nodes = [node(op, names, ["y"], name="product", **attributes)]
    return w, build(nodes, {"x": ["m", k]}, {"y": ["m", n]}, held, opset=opset, ir_version=10)


SHAPES = (
    pytest.param(512, 32, id="full-blocks"),
    pytest.param(150, 7, id="ends-in-a-block"),
    pytest.param(144, 1, id="odd-number-of-blocks"),
)


@outputs_that_run
@pytest.mark.parametrize("level", [0, 4])
@pytest.mark.parametrize(("k", "n"), SHAPES)
@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.sampled(40)
def test_every_width_and_block_computes_what_is_stored(output, level, k, n, bits):
    """To 1e-5 in float, to 1e-2 where inputs are rounded to 8 bits."""
    w, model = one_product(k, n)
    x = normal(8, k, seed=1)
    # The level of blocked pairs is not the model's: the runtime fuses them at the session's.
    config = {"session.qdq_matmulnbits_accuracy_level": str(level)}
    for block_size, symmetric in itertools.product((16, 32, 64, 128, 256, -1), (True, False)):
        blocks = blocks_of(w, bits=bits, block_size=block_size, symmetric=symmetric)
        written, _ = emit(model, {"w": blocks}, output=output, accuracy_level=level)
        expected = x.astype(np.float64) @ blocks.dequantize()
        (actual,) = run(written, {"x": x}, config=config)
        if level == 0:
            np.testing.assert_allclose(actual, expected, atol=1e-5 * np.abs(expected).max())
        assert np.linalg.norm(actual - expected) <= 1e-2 * np.linalg.norm(expected)


@pytest.mark.parametrize("opset", [21, 25])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_pairs_hold_the_smallest_standard_type(bits, opset):
    w, model = one_product(64, 8, opset=opset)
    for symmetric in (True, False):
        blocks = blocks_of(w, bits=bits, symmetric=symmetric)
        written, _ = emit(model, {"w": blocks}, output="qdq")
        stored = {t.name: t.data_type for t in written.graph.initializer}["w_quantized"]
        width = 4 if bits == 3 or (bits == 2 and opset < 25) else bits
        sign = "" if symmetric and width == bits else "U"
        assert stored == getattr(onnx.TensorProto, f"{sign}INT{width}")
        graph.check_model(graph.load_model(written))
        x = normal(3, 64)
        (actual,) = run(written, {"x": x}, config={"session.qdq_matmulnbits_accuracy_level": "0"})
        np.testing.assert_allclose(actual, x @ blocks.dequantize(), atol=1e-5)


def test_a_product_says_its_sizes_and_keeps_its_name():
    w, model = one_product(100, 8, opset=17)
    written, notes = emit(model, {"w": blocks_of(w)})
    (only,) = written.graph.node
    assert (only.op_type, only.domain, only.name) == ("MatMulNBits", "com.microsoft", "product")
    assert list(only.input) == ["x", "w_q4", "w_scales", "w_zero_points"]
    attributes = {a.name: helper.get_attribute_value(a) for a in only.attribute}
    assert attributes == {"K": 100, "N": 8, "bits": 4, "block_size": 32}
    assert {t.name: tuple(t.dims) for t in written.graph.initializer} == {
        "w_q4": (8, 4, 16),
        "w_scales": (8, 4),
        "w_zero_points": (8, 2),
    }
    assert {i.domain: i.version for i in written.opset_import} == {"": 17, "com.microsoft": 1}
    assert notes == []


@outputs_that_run
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("bias_shape", [None, (6,), (1, 6), (1,), (), (3, 1), (3, 6)])
def test_gemm_either_way_round_with_any_bias(output, transposed, bias_shape):
    bias = None if bias_shape is None else normal(*bias_shape, seed=4) * np.float32(1)
    w, model = one_product(
        48, 6, op="Gemm", transposed=transposed, bias=None if bias is None else np.asarray(bias)
    )
    blocks = blocks_of(w, block_size=16)
    written, _ = emit(model, {"w": blocks}, output=output)
    x = normal(3, 48, seed=1)
    expected = x @ blocks.dequantize() + (0 if bias is None else bias)
    (actual,) = run(written, {"x": x})
    tolerance = 3e-2 if output == "qdq" else 1e-5
    np.testing.assert_allclose(actual, expected, atol=tolerance * np.abs(expected).max())
    if output == "matmul-nbits":
        added = bias_shape in ((3, 1), (3, 6))
        assert ops(written) == {"MatMulNBits": 1, **({"Add": 1} if added else {})}


def test_a_bias_that_is_computed_is_added_behind():
    nodes = [
        node("Relu", ["b"], ["c"], name="relu"),
        node("Gemm", ["x", "w", "c"], ["y"], name="fc"),
    ]
    w = weight(32, 4)
    model = build(nodes, {"x": [2, 32], "b": [4]}, {"y": [2, 4]}, {"w": w})
    blocks = blocks_of(w)
    written, _ = emit(model, {"w": blocks})
    assert ops(written) == {"Relu": 1, "MatMulNBits": 1, "Add": 1}
    x, b = normal(2, 32), normal(4, seed=2)
    expected = x @ blocks.dequantize() + np.maximum(b, 0)
    np.testing.assert_allclose(run(written, {"x": x, "b": b})[0], expected, atol=1e-5)


def tied(width=64, entries=20):
    nodes = [
        node("Gather", ["table", "at"], ["e"], name="embedding"),
        node("Gemm", ["e", "table"], ["y"], name="head", transB=1),
    ]
    table = normal(entries, width)
    inputs, outputs = [info("at", ["m"], INT64)], [info("y", ["m", entries])]
    return table, build(nodes, inputs, outputs, {"table": table}, opset=21, ir_version=10)


@outputs_that_run
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("width", [64, 80])
def test_a_head_and_its_embedding(output, symmetric, bits, width):
    table, model = tied(width)
    blocks = blocks_of(table.T, bits=bits, symmetric=symmetric)
    written, _ = emit(model, {"table": blocks}, output=output, accuracy_level=0)
    at = np.array([3, 0, 19, 3])
    stored = blocks.dequantize()
    expected = stored.T[at] @ stored
    (actual,) = run(written, {"at": at})
    np.testing.assert_allclose(actual, expected, atol=2e-2 * np.abs(expected).max())
    if output == "matmul-nbits":
        assert "table" not in constants_of(written)
        copies = [
            t for t in written.graph.initializer if t.name.startswith("table_") and "q" in t.name
        ]
        # Where blocks are full, one copy serves both.
        assert len(copies) == (1 if width % 32 == 0 else 2)
        assert ops(written)["GatherBlockQuantized"] == ops(written)["MatMulNBits"] == 1


@outputs_that_run
def test_a_head_and_an_embedding_that_reads_it_transposed(output):
    """As onnxruntime-genai's builder writes models with one weight for both."""
    nodes = [
        node("Transpose", ["head"], ["table"], name="turn", perm=[1, 0]),
        node("Gather", ["table", "at"], ["e"], name="embedding"),
        node("MatMul", ["e", "head"], ["y"], name="product"),
    ]
    head = normal(64, 20)
    inputs, outputs = [info("at", ["m"], INT64)], [info("y", ["m", 20])]
    model = build(nodes, inputs, outputs, {"head": head}, opset=21, ir_version=10)
    blocks = blocks_of(head)
    written, notes = emit(model, {"head": blocks}, output=output, accuracy_level=0)
    at = np.array([3, 0, 19, 3])
    stored = blocks.dequantize()
    expected = stored.T[at] @ stored
    (actual,) = run(written, {"at": at})
    np.testing.assert_allclose(actual, expected, atol=2e-2 * np.abs(expected).max())
    assert notes == [] and "head" not in constants_of(written)
    if output == "matmul-nbits":
        assert ops(written)["GatherBlockQuantized"] == ops(written)["MatMulNBits"] == 1


def test_a_table_alone_is_stored_as_a_table():
    table = normal(20, 48)
    model = build(
        [node("Gather", ["table", "at"], ["y"], name="g")],
        [info("at", ["m", 2], INT64)],
        [info("y", ["m", 2, 48])],
        {"table": table},
    )
    blocks = blocks_of(table.T, block_size=16)
    written, _ = emit(model, {"table": blocks})
    at = np.array([[3, 0], [19, 3]])
    np.testing.assert_allclose(
        run(written, {"at": at})[0], blocks.dequantize().T[at], rtol=1e-5, atol=1e-6
    )
    assert ops(written) == {"GatherBlockQuantized": 1}


@outputs_that_run
def test_a_weight_that_several_products_read_is_stored_once(output):
    nodes = [
        node("MatMul", ["x", "w"], ["a"], name="one"),
        node("MatMul", ["a", "w"], ["y"], name="two"),
    ]
    w = weight(32, 32)
    model = build(nodes, {"x": [2, 32]}, {"y": [2, 32]}, {"w": w}, opset=21, ir_version=10)
    blocks = blocks_of(w)
    written, _ = emit(model, {"w": blocks}, output=output)
    assert "w" not in constants_of(written)
    stored = blocks.dequantize()
    x = normal(2, 32)
    np.testing.assert_allclose(run(written, {"x": x})[0], x @ stored @ stored, atol=2e-2)


def test_readers_that_are_not_named_keep_their_floats():
    nodes = [
        node("MatMul", ["x", "w"], ["a"], name="one"),
        node("MatMul", ["a", "w"], ["y"], name="two"),
    ]
    w = weight(32, 32)
    model = build(nodes, {"x": [2, 32]}, {"y": [2, 32]}, {"w": w})
    blocks = blocks_of(w)
    written, notes = emit(model, {"w": blocks}, readers={"w": ["one"]})
    assert ops(written) == {"MatMulNBits": 1, "MatMul": 1}
    assert notes == ["weight 'w' stays in the model as floats as well, for ['two']."]
    x = normal(2, 32)
    np.testing.assert_allclose(run(written, {"x": x})[0], x @ blocks.dequantize() @ w, atol=1e-5)


@outputs_that_run
def test_half_floats_stay_half_floats(output):
    w = weight(64, 8).astype(np.float16)
    model = build(
        [node("MatMul", ["x", "w"], ["y"], name="product")],
        [info("x", ["m", 64], FLOAT16)],
        [info("y", ["m", 8], FLOAT16)],
        {"w": w},
        opset=21,
        ir_version=10,
    )
    blocks = blocks_of(w, scale_type="float16")
    written, _ = emit(model, {"w": blocks}, output=output)
    x = normal(3, 64, dtype=np.float16)
    (actual,) = run(written, {"x": x})
    assert actual.dtype == np.float16
    expected = x.astype(np.float64) @ blocks.dequantize()
    np.testing.assert_allclose(actual, expected, atol=3e-2 * np.abs(expected).max())


def test_bfloat16_weights_are_written():
    w = weight(64, 8).astype(ml_dtypes.bfloat16)
    model = build(
        [node("MatMul", ["x", "w"], ["y"], name="product")],
        [info("x", ["m", 64], onnx.TensorProto.BFLOAT16)],
        [info("y", ["m", 8], onnx.TensorProto.BFLOAT16)],
        {"w": w},
        opset=21,
        ir_version=10,
    )
    blocks = blocks_of(w, scale_type="bfloat16")
    for output in RUNNING:
        written, _ = emit(model, {"w": blocks}, output=output)
        kinds = {t.name: t.data_type for t in written.graph.initializer}
        name = "w_rounded" if output == "float" else "w_scales"
        assert kinds[name] == onnx.TensorProto.BFLOAT16


@outputs_that_run
def test_products_in_branches(output):
    outer, inner = weight(32, 8, seed=1), weight(32, 8, seed=2)
    model = make_branching_products(32, opset=21, ir_version=10)
    stored = {"w": blocks_of(outer), "if/else_branch:v": blocks_of(inner)}
    written, _ = emit(model, stored, output=output)
    x = normal(2, 32)
    for condition, name in ((True, "w"), (False, "if/else_branch:v")):
        expected = x @ stored[name].dequantize()
        (actual,) = run(written, {"x": x, "c": np.array(condition)})
        np.testing.assert_allclose(actual, expected, atol=2e-2)


@pytest.mark.parametrize(("bits", "level"), [(2, 4), (4, None), (8, 4)])
def test_the_accuracy_level_is_4_where_nothing_else_is_fast(bits, level):
    w, model = one_product(64, 8)
    written, notes = emit(model, {"w": blocks_of(w, bits=bits)})
    attributes = {a.name: a.i for a in written.graph.node[0].attribute}
    assert attributes.get("accuracy_level") == level and notes == []


def test_slow_forms_and_wider_storage_are_said():
    w, model = one_product(64, 8)
    _, notes = emit(model, {"w": blocks_of(w, bits=8)}, accuracy_level=0)
    assert notes == [
        "weight 'w' will be slow on CPUs: 8-bit weights are fast at accuracy level 4 only."
    ]
    _, notes = emit(model, {"w": blocks_of(w, bits=3)})
    assert notes[0].startswith("weight 'w' has 3 bits and is stored in 4")
    grid = BlockScales(np.full((2, 8), 0.1, np.float32), np.full((2, 8), 7.5, np.float32))
    floats = round_to_codes(w, grid, BlockFormat())
    written, notes = emit(model, {"w": floats})
    assert "zero points that are floats" in notes[0]
    x = normal(3, 64)
    np.testing.assert_allclose(run(written, {"x": x})[0], x @ floats.dequantize(), atol=1e-4)


def test_weights_are_asked_for_one_at_a_time_and_not_kept():
    class Shelf(dict):
        taken = 0

        def __getitem__(self, name):
            self.taken += 1
            return super().__getitem__(name)

    w, model = one_product(64, 8)
    shelf = Shelf(w=blocks_of(w))
    work = graph.load_model(model)
    graph.normalize(work)
    emit_blocks(work, shelf)
    assert shelf.taken == 1
    assert isinstance(work.graph.initializers["w_q4"].const_value, ir.LazyTensor)
    ir.to_proto(work)
    assert shelf.taken == 2  # once for codes, scales and zero points


def test_bytes_are_the_same_each_time(tmp_path):
    w, model = one_product(64, 8)
    files = []
    for number in range(2):
        work = graph.load_model(model)
        graph.normalize(work)
        emit_blocks(work, {"w": blocks_of(w)})
        graph.save_model(work, tmp_path / f"{number}.onnx")
        files.append((tmp_path / f"{number}.onnx").read_bytes())
    assert files[0] == files[1]


def test_what_does_not_fit_is_refused():
    w, model = one_product(64, 8, opset=17)
    blocks = blocks_of(w)
    with pytest.raises(PlanError, match=r"no constant 'v'. Known: w, x, y"):
        emit(model, {"v": blocks})
    with pytest.raises(PlanError, match="need opset 21, and the model has 17"):
        emit(model, {"w": blocks}, output="qdq")
    with pytest.raises(PlanError, match=r"has shape \(64, 8\), its blocks \(8, 64\)"):
        emit(model, {"w": blocks_of(w.T)})
    with pytest.raises(PlanError, match="'product' is not to read it so"):
        emit(model, {"w": blocks}, readers={"w": ["other"]})
    floats = BlockScales(np.ones((2, 8), np.float32), np.full((2, 8), 0.5, np.float32))
    with pytest.raises(TargetError, match="DequantizeLinear does not take"):
        emit(
            one_product(64, 8)[1],
            {"w": round_to_codes(w, floats, BlockFormat())},
            output="qdq",
        )
    left = build(
        [node("MatMul", ["w", "x"], ["y"], name="left")], {"x": [8, 2]}, {"y": [64, 2]}, {"w": w}
    )
    with pytest.raises(PlanError, match="reads it as another input than its weight"):
        emit(left, {"w": blocks})
    stack = np.stack([w, w])
    nodes = [node("MatMul", ["x", "s"], ["y"], name="stacked")]
    stacked = build(nodes, {"x": [2, 4, 64]}, {"y": [2, 4, 8]}, {"s": stack})
    with pytest.raises(PlanError, match="is a stack of matrices, which MatMulNBits has not"):
        emit(stacked, {"s": blocks_of(np.concatenate([w, w], axis=1))})
