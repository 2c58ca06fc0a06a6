"""Every way in which a model can hold a weight: quantized, or left float with a reason."""

import gc
import tempfile

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper
from support.language_models import VOCABULARY, WIDTH, make_block, make_samples
from support.models import BOOL, INT64, build, constants_of, info, node, normal, ops, run, weight

import bitwright
from bitwright import Recipe, Selection
from bitwright.errors import DataError, ModelError, RecipeError
from bitwright.graph.branches import open_branches
from bitwright.numerics.blocks import SHRINKS, BlockFormat, quantize_in_blocks
from bitwright.recipe import AWQ, GPTQ, HQQ, Nearest, WeightOnly

OUTPUTS = pytest.mark.parametrize("output", ["matmul-nbits", "qdq", "float"])
EIGHT = {"bits": 8, "accuracy_level": 0}  # 8 bits lose so little that a wrong weight shows


def quantize(model, *, data=None, subgraphs=False, work=None, **weights):
    recipe = Recipe(
        mode="weight-only",
        weights=WeightOnly(**weights),
        select=Selection(subgraphs=subgraphs),
    )
    return bitwright.quantize(model, data=data, recipe=recipe, work=work)


def assert_same(model, result, feeds, tolerance=0.02):
    for wanted, found in zip(run(model, feeds), run(result.to_proto(), feeds), strict=True):
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, atol=tolerance * np.abs(wanted).max())


# Where a weight is, and which way round -------------------------------------------------------


def through_transpose(op="MatMul", **attributes):
    nodes = [
        node("Transpose", ["w"], ["t"], name="turn", perm=[1, 0]),
        node(op, ["x", "t"], ["y"], name="product", **attributes),
    ]
    shape = [12, 64] if not attributes else [64, 12]
    return build(nodes, {"x": ["m", 64]}, {"y": ["m", 12]}, {"w": weight(*shape)}, opset=21)


@OUTPUTS
@pytest.mark.parametrize(
    ("op", "attributes"), [("MatMul", {}), ("Gemm", {}), ("Gemm", {"transB": 1})]
)
def test_a_weight_behind_a_transpose(output, op, attributes):
    model = through_transpose(op, **attributes)
    result = quantize(model, output=output, **EIGHT)
    assert result.quantized == {op: 1}
    assert "w" not in constants_of(result.to_proto())
    assert_same(model, result, {"x": normal(5, 64)})
    if output == "matmul-nbits":
        assert ops(result.to_proto()) == {"MatMulNBits": 1}


@pytest.mark.parametrize("method", [{"rounding": GPTQ()}, {"awq": AWQ()}])
@pytest.mark.sampled(1)
def test_methods_with_data_see_weights_behind_a_transpose(method):
    model = make_block(tied="transpose")
    data = make_samples()
    result = quantize(model, data=data, embeddings=True, **method, **EIGHT)
    assert result.quantized["MatMul"] == 7
    assert_same(model, result, make_samples(1, seed=5)[0])


@OUTPUTS
@pytest.mark.parametrize("tied", ["gemm", "transpose"])
def test_a_tied_embedding_is_stored_once(output, tied):
    model = make_block(tied=tied)
    result = quantize(model, output=output, embeddings=True, **EIGHT)
    written = result.to_proto()
    assert result.quantized["Gather"] == 1
    stored = constants_of(written)
    assert "embedding" not in stored
    table = {name for name, array in stored.items() if array.size >= VOCABULARY * 64}
    assert len([name for name in table if name.startswith("embedding")]) == 1
    assert_same(model, result, make_samples(1, seed=5)[0])


@pytest.mark.parametrize("tied", ["gemm", "transpose"])
def test_a_table_that_a_head_shares_is_quantized_with_it_by_default(tied):
    model = make_block(tied=tied)
    result = quantize(model, block_size=32)
    assert result.quantized["Gather"] == 1
    assert "embedding" not in constants_of(result.to_proto())
    kept = quantize(model, block_size=32, embeddings=False)
    assert kept.quantized["Gather"] == 0
    assert kept.size - result.size > 0.9 * 4 * VOCABULARY * WIDTH  # it also has the float table


def test_a_table_that_the_user_selects_needs_no_product():
    model = make_block()
    recipe = Recipe(
        mode="weight-only", select=Selection(op_types=("Gather",)), weights=WeightOnly(bits=8)
    )
    assert bitwright.quantize(model, recipe=recipe).quantized == {"Gather": 1}


def test_a_table_has_the_bits_of_the_head_that_shares_it():
    result = quantize(make_block(tied="transpose"), embeddings=True, head_bits=8)
    assert result.plan.weights["embedding"].bits == 8
    assert result.plan.weights["embedding"].nodes == ("head/MatMul", "embed")


@OUTPUTS
@pytest.mark.parametrize("shape", [["m", 64], [2, "m", 64], [2, 1, 3, 64]])
@pytest.mark.parametrize("leading", [1, 2])
def test_a_weight_with_leading_axes_of_one(output, shape, leading):
    rank = max(len(shape), leading + 2)
    nodes = [node("MatMul", ["x", "w"], ["y"], name="product")]
    w = weight(64, 12).reshape(*[1] * leading, 64, 12)
    model = build(nodes, {"x": shape}, [info("y", [None] * rank)], {"w": w}, opset=21)
    result = quantize(model, output=output, **EIGHT)
    assert result.quantized == {"MatMul": 1}
    x = normal(*[3 if size == "m" else size for size in shape])
    assert_same(model, result, {"x": x})


def batched(shape=(4, 64, 40)):
    nodes = [
        node("MatMul", ["x", "w"], ["h"], name="batched"),
        node("MatMul", ["h", "v"], ["y"], name="plain"),
    ]
    constants = {"w": weight(*shape), "v": weight(shape[-1], 8)}
    inputs = {"x": [shape[-3], 3, shape[-2]]}
    return build(nodes, inputs, [info("y"), info("h")], constants, opset=21)


def test_a_stack_of_weights_stays_float_where_no_product_takes_it():
    result = quantize(batched())
    assert "3 axes" in result.plan.nodes["batched"].reason
    assert result.plan.nodes["plain"].quantized


@pytest.mark.parametrize("shape", [(4, 64, 40), (4, 72, 33), (2, 4, 64, 40)])
@pytest.mark.parametrize("block_size", [-1, 32])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
def test_a_stack_of_weights_is_rounded_like_each_of_its_matrices(
    shape, block_size, symmetric, bits
):
    model = batched(shape)
    form = {"bits": bits, "block_size": block_size, "symmetric": symmetric}
    result = quantize(model, output="qdq", **form)
    assert result.quantized == {"MatMul": 2}
    stored = constants_of(quantize(model, output="float", **form).to_proto())["w_rounded"]
    for index in np.ndindex(shape[:-2]):
        grid = BlockFormat(**form)
        alone = quantize_in_blocks(constants_of(model)["w"][index], grid, shrinks=SHRINKS)
        np.testing.assert_allclose(stored[index], alone.dequantize(), rtol=1e-5, atol=1e-7)
    feeds = {"x": normal(4, 3, shape[-2])}
    wanted = feeds["x"].astype(np.float64) @ stored.astype(np.float64)
    found = run(result.to_proto(), feeds)[1]
    np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.slow
def test_a_stack_of_weights_makes_the_file_smaller():
    model = batched((8, 256, 256))
    result = quantize(model, output="qdq", bits=4)
    assert len(result.to_proto().SerializeToString()) < 0.17 * model.ByteSize()


@pytest.mark.parametrize("method", [{"rounding": GPTQ()}, {"awq": AWQ()}])
def test_methods_with_data_round_a_stack_to_the_nearest(method):
    data = [{"x": normal(4, 3, 64, seed=seed)} for seed in range(3)]
    result = quantize(batched(), data=data, output="qdq", **method)
    assert isinstance(result.plan.weights["w"].rounding, Nearest)
    noted = any("1 weight of stacked matrices" in note for note in result.plan.notes)
    assert noted == ("rounding" in method)


@pytest.mark.parametrize("method", [{"rounding": GPTQ()}, {"awq": AWQ()}, {"refine": 1}])
def test_an_expert_that_no_sample_reaches_is_rounded_to_the_nearest(method):
    nodes = [
        node("Compress", ["x", "chosen"], ["tokens"], name="dispatch", axis=0),
        node("MatMul", ["tokens", "w"], ["h"], name="expert"),
        node("ReduceSum", ["h", "first"], ["s"], name="collect", keepdims=1),
        node("MatMul", ["x", "v"], ["d"], name="dense"),
        node("Add", ["d", "s"], ["y"], name="add"),
    ]
    constants = {"w": weight(64, 12), "v": weight(64, 12, seed=1), "first": np.array([0])}
    inputs = [info("x", ["m", 64]), info("chosen", ["m"], BOOL)]
    model = build(nodes, inputs, [info("y", ["m", 12])], constants, opset=21)
    data = [{"x": normal(5, 64, seed=s), "chosen": np.zeros(5, bool)} for s in range(3)]
    result = quantize(model, data=data, **method, **EIGHT)
    assert result.quantized == {"MatMul": 2}
    assert any("no sample reached the products with them: w" in n for n in result.plan.notes)
    assert_same(model, result, {"x": normal(5, 64, seed=9), "chosen": np.ones(5, bool)})


def test_a_constant_node_is_a_weight():
    held = numpy_helper.from_array(weight(64, 12), "w")
    nodes = [
        node("Constant", [], ["w"], name="constant", value=held),
        node("MatMul", ["x", "w"], ["y"], name="product"),
    ]
    model = build(nodes, {"x": ["m", 64]}, {"y": ["m", 12]}, opset=21)
    result = quantize(model, **EIGHT)
    assert ops(result.to_proto()) == {"MatMulNBits": 1}
    assert_same(model, result, {"x": normal(3, 64)})


def conditional():
    """An If whose branches multiply: one by an outer weight, one by a weight of its own."""
    own = numpy_helper.from_array(weight(64, 12, seed=3), "own")
    branches = [
        helper.make_graph(
            [node("MatMul", ["x", "w"], ["a"], name="")], "then", [], [info("a", ["m", 12])]
        ),
        helper.make_graph(
            [node("MatMul", ["x", "own"], ["b"], name="")],
            "else",
            [],
            [info("b", ["m", 12])],
            [own],
        ),
    ]
    choice = node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])
    inputs = [info("x", ["m", 64]), info("c", [], BOOL)]
    return build([choice], inputs, [info("y", ["m", 12])], {"w": weight(64, 12)}, opset=21)


@OUTPUTS
@pytest.mark.parametrize("rounding", [Nearest(), HQQ(), GPTQ()])
def test_products_inside_bodies(output, rounding):
    model = conditional()
    data = [{"x": normal(4, 64, seed=seed), "c": np.array(True)} for seed in range(3)]
    result = quantize(model, data=data, subgraphs=True, output=output, rounding=rounding, **EIGHT)
    assert result.quantized == {"MatMul": 2}
    for choice in (True, False):
        assert_same(model, result, {"x": normal(3, 64, seed=9), "c": np.array(choice)})


def test_products_inside_bodies_are_left_with_a_reason_unless_asked_for():
    with pytest.raises(ModelError, match=r"MatMul: it is inside the body .* select\.subgraphs"):
        quantize(conditional())
    model = conditional()
    model.graph.node.append(node("MatMul", ["y", "v"], ["z"], name="main"))
    model.graph.initializer.append(numpy_helper.from_array(weight(12, 8), "v"))
    model.graph.output[0].CopyFrom(info("z", ["m", 8]))
    result = quantize(model)
    assert result.quantized == {"MatMul": 1}
    left = [n.reason for n in result.plan.nodes.values() if n.op == "MatMul" and not n.quantized]
    assert len(left) == 2 and all("inside the body" in reason for reason in left)
    again = bitwright.apply_plan(result.plan, model)
    assert again.to_proto().SerializeToString() == result.to_proto().SerializeToString()


def merged_decoder(width=256):
    """Two branches, with and without a cache, that share every weight: a table, a layer, a head."""

    def branch(name, *, cached):
        nodes = [
            node("Gather", ["table", "ids"], [f"{name}_e"], name=f"{name}/embed"),
            node("MatMul", [f"{name}_e", "w"], [f"{name}_h"], name=f"{name}/layer"),
            node("Add" if cached else "Sub", [f"{name}_h", "past"], [f"{name}_s"], name=name),
            node("Transpose", ["table"], [f"{name}_t"], name=f"{name}/turn", perm=[1, 0]),
            node("MatMul", [f"{name}_s", f"{name}_t"], [f"{name}_y"], name=f"{name}/head"),
        ]
        return helper.make_graph(nodes, name, [], [info(f"{name}_y", [1, "n", 96])])

    choice = node(
        "If", ["use_cache_branch"], ["logits"], name="choose",
        then_branch=branch("with_past", cached=True), else_branch=branch("first", cached=False),
    )  # fmt: skip
    inputs = [
        info("ids", [1, "n"], INT64),
        info("past", [width]),
        info("use_cache_branch", [], BOOL),
    ]
    constants = {"table": weight(96, width, seed=1), "w": weight(width, width, seed=2)}
    return build([choice], inputs, [info("logits", [1, "n", 96])], constants, opset=21)


@pytest.mark.parametrize(
    ("recipe", "ratio"), [("int4-rtn", 0.25), ("int4-gptq", 0.25), ("int8-dynamic", 0.45)]
)
def test_branches_of_a_merged_decoder_are_quantized_by_default(recipe, ratio):
    model = merged_decoder()
    feeds = [
        {
            "ids": np.arange(4 * seed, 4 * seed + 7)[None] % 96,
            "past": normal(256, seed=seed),
            "use_cache_branch": np.array(bool(seed % 2)),
        }
        for seed in range(6)
    ]
    result = bitwright.quantize(model, data=feeds, recipe=recipe)
    assert result.quantized["MatMul"] == 4
    assert result.size < ratio * result.float_size
    for sample in feeds[:2]:
        assert_same(model, result, sample, tolerance=0.25)
    assert result.outputs[0].sqnr > 10
    left_out = [note for note in result.plan.notes if "not used to round" in note]
    assert len(left_out) == (recipe != "int8-dynamic")  # those that take the other branch


def test_heads_inside_branches_keep_the_bits_of_heads():
    weights = {"head_bits": 8}
    result = bitwright.quantize(merged_decoder(), recipe={"base": "int4-rtn", "weights": weights})
    assert {name: one.bits for name, one in result.plan.weights.items()} == {"table": 8, "w": 4}


def test_branches_that_an_input_chooses_are_rounded_as_if_they_stood_alone():
    """What a branch reads is seen: GPTQ gives the bytes that the opened model gets."""
    model = merged_decoder()
    feeds = [
        {
            "ids": np.arange(9 * seed, 9 * seed + 40)[None] % 96,
            "past": normal(256, seed=seed),
            "use_cache_branch": np.array(False),
        }
        for seed in range(4)
    ]
    alone = open_branches(ir.from_proto(model), feeds[0])
    assert "If" not in {node.op_type for node in alone.graph}
    results = [
        bitwright.quantize(each, data=feeds, recipe="int4-gptq", holdout=False)
        for each in (model, ir.to_proto(alone))
    ]
    for sample in feeds:
        assert_same(model, results[0], sample, tolerance=0.25)
        both = [run(result.to_proto(), sample) for result in results]
        np.testing.assert_array_equal(*both)
    assert not [note for note in results[0].plan.notes if "nearest" in note]


def repeated():
    """A Loop that multiplies its state three times."""
    body = helper.make_graph(
        [
            node("MatMul", ["state", "w"], ["next"], name="step"),
            node("Identity", ["go"], ["on"], name="on"),
        ],
        "body",
        [info("i", [], INT64), info("go", [], BOOL), info("state", [2, 32])],
        [info("on", [], BOOL), info("next", [2, 32])],
    )
    loop = node("Loop", ["times", "", "x"], ["y"], name="loop", body=body)
    constants = {"times": np.array(3), "w": weight(32, 32)}
    return build([loop], {"x": [2, 32]}, {"y": [2, 32]}, constants, opset=21)


def test_products_inside_loops():
    model = repeated()
    result = quantize(model, subgraphs=True, **EIGHT)
    assert result.quantized == {"MatMul": 1}
    assert_same(model, result, {"x": normal(2, 32)}, tolerance=0.05)


@OUTPUTS
def test_unnamed_nodes_and_shared_weights(output):
    nodes = [
        node("MatMul", ["x", "w"], ["a"], name=""),
        node("Relu", ["a"], ["b"], name=""),
        node("MatMul", ["b", "w"], ["y"], name=""),
    ]
    model = build(nodes, {"x": ["m", 32]}, {"y": ["m", 32]}, {"w": weight(32, 32)}, opset=21)
    result = quantize(model, output=output, **EIGHT)
    assert result.quantized == {"MatMul": 2}
    assert "w" not in constants_of(result.to_proto())
    assert_same(model, result, {"x": normal(3, 32)})


def test_a_weight_that_is_read_both_ways_round_is_stored_once_and_left_float_for_the_other():
    nodes = [
        node("MatMul", ["x", "w"], ["a"], name="straight"),
        node("Gemm", ["a", "w"], ["y"], name="turned", transB=1),
    ]
    model = build(nodes, {"x": ["m", 64]}, {"y": ["m", 64]}, {"w": weight(64, 64)}, opset=21)
    result = quantize(model, **EIGHT)
    assert "the other way round" in result.plan.nodes["turned"].reason
    assert_same(model, result, {"x": normal(3, 64)})


def test_every_node_that_stays_float_says_why():
    result = quantize(make_block(depth=1))
    reasons = {n.op: n.reason for n in result.plan.nodes.values() if not n.quantized}
    assert reasons["LayerNormalization"].startswith("only weights of MatMul, Gemm, Gather")
    assert "weights.embeddings" in reasons["Gather"]


@pytest.mark.parametrize("block_size", [64, -1])
@pytest.mark.parametrize("bits", [3, 5, 6, 7])
def test_widths_without_kernels_are_stored_in_the_next_and_the_notes_say_so(bits, block_size):
    nodes = [node("MatMul", ["x", "w"], ["y"], name="p")]
    model = build(nodes, {"x": ["m", 150]}, {"y": ["m", 7]}, {"w": weight(150, 7)}, opset=21)
    packed = quantize(model, bits=bits, block_size=block_size, accuracy_level=0)
    rounded = quantize(model, bits=bits, block_size=block_size, output="float")
    attributes = {a.name: a.i for a in packed.to_proto().graph.node[0].attribute}
    assert attributes["bits"] == (4 if bits == 3 else 8)
    assert attributes["block_size"] == (128 if block_size == -1 else block_size)
    assert any(f"has {bits} bits and is stored in" in note for note in packed.plan.notes)
    assert_same(rounded.to_proto(), packed, {"x": normal(4, 150)}, tolerance=1e-5)
    imports = {entry.domain: entry.version for entry in packed.to_proto().opset_import}
    assert imports["com.microsoft"] == 1
    onnx.checker.check_model(packed.to_proto())


def test_names_that_no_node_has_are_refused():
    recipe = Recipe(mode="weight-only", select=Selection(exclude=("hed/MatMul",)))
    with pytest.raises(RecipeError, match=r"no node is called 'hed/MatMul'\. Did you mean"):
        bitwright.quantize(make_block(), recipe=recipe)


# Groups of every kind -------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("kind", ["positive", "negative", "constant", "zero"])
def test_no_weight_is_further_off_than_a_step(bits, symmetric, kind):
    w = {
        "positive": 1 + np.abs(normal(64, 6)),
        "negative": -1 - np.abs(normal(64, 6)),
        "constant": np.full((64, 6), 0.5, np.float32),
        "zero": np.zeros((64, 6), np.float32),
    }[kind]
    model = build(
        [node("MatMul", ["x", "w"], ["y"], name="p")], {"x": [64, 64]}, {"y": [64, 6]}, {"w": w}
    )
    plain = Nearest(clip=False)
    result = quantize(model, bits=bits, symmetric=symmetric, rounding=plain, accuracy_level=0)
    (found,) = run(result.to_proto(), {"x": np.eye(64, dtype=np.float32)})
    scales = constants_of(result.to_proto())["w_scales"]
    step = np.abs(np.repeat(scales.T, 32, axis=0))
    assert (np.abs(found - w) <= step * 1.001 + 1e-6).all()


# Calls that must not hang together ------------------------------------------------------------


def test_two_calls_share_no_settings():
    model = make_block()
    first = quantize(model, bits=8, block_size=64, symmetric=True)
    second = quantize(model)
    assert {w.bits for w in first.plan.weights.values()} == {8}
    assert {(w.bits, w.block_size, w.symmetric) for w in second.plan.weights.values()} == {
        (4, 32, False)
    }


# Data that is not what it should be -----------------------------------------------------------


@pytest.mark.parametrize("weights", [{"rounding": GPTQ()}, {"awq": AWQ()}, {"refine": 1}])
def test_not_a_number_in_the_data_is_refused(weights):
    model = build(
        [node("MatMul", ["x", "w"], ["y"], name="p")],
        {"x": ["m", 32]},
        {"y": ["m", 8]},
        {"w": weight(32, 8)},
        opset=21,
    )
    data = [{"x": np.full((4, 32), np.nan, np.float32)}]
    with pytest.raises(DataError, match="NaN"):
        quantize(model, data=data, **weights)


def test_not_a_number_in_a_weight_is_refused():
    w = weight(32, 8)
    w[3, 4] = np.nan
    model = build(
        [node("MatMul", ["x", "w"], ["y"], name="p")], {"x": ["m", 32]}, {"y": ["m", 8]}, {"w": w}
    )
    with pytest.raises(ModelError, match="NaN or infinite"):
        quantize(model)


def test_inputs_that_are_always_zero_are_refused_and_idle_channels_are_not():
    model = build(
        [node("MatMul", ["x", "w"], ["y"], name="p")],
        {"x": ["m", 32]},
        {"y": ["m", 8]},
        {"w": weight(32, 8)},
        opset=21,
    )
    with pytest.raises(DataError, match="all zero"):
        quantize(model, data=[{"x": np.zeros((4, 32), np.float32)}], rounding=GPTQ())
    idle = normal(40, 32)
    idle[:, 5:] = 0
    assert_same(
        model, quantize(model, data=[{"x": idle}], rounding=GPTQ(), **EIGHT), {"x": normal(3, 32)}
    )


@pytest.mark.slow
def test_data_that_can_be_read_once_serves_both_passes_of_awq():
    data = make_samples()
    once = quantize(make_block(depth=1), data=iter(data), awq=AWQ())
    again = quantize(make_block(depth=1), data=data, awq=AWQ())
    assert once.plan.smoothing and once.plan.smoothing == again.plan.smoothing


# What is left behind --------------------------------------------------------------------------


@pytest.mark.slow
def test_no_file_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    quantize(make_block(), data=make_samples(), rounding=GPTQ(), awq=AWQ()).save(
        tmp_path / "m.onnx"
    )
    gc.collect()  # weights on disk live as long as the result
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]
    onnx.checker.check_model(onnx.load(tmp_path / "m.onnx"))


def test_products_whose_inputs_another_node_reads_first():
    """One node reads the inputs of both products before either of them does."""
    nodes = [
        node("Relu", ["x"], ["a"], name="relu"),
        node("Tanh", ["x"], ["b"], name="tanh"),
        node("Add", ["a", "b"], ["c"], name="both"),
        node("MatMul", ["a", "w"], ["p"], name="first"),
        node("MatMul", ["b", "v"], ["q"], name="second"),
        node("Sum", ["c", "p", "q"], ["y"], name="sum"),
    ]
    constants = {"w": weight(32, 32), "v": weight(32, 32, seed=1)}
    model = build(nodes, {"x": ["m", 32]}, {"y": ["m", 32]}, constants, opset=21)
    data = [{"x": normal(16, 32, seed=seed)} for seed in range(3)]
    for weights in ({"rounding": GPTQ()}, {"awq": AWQ()}):
        result = quantize(model, data=data, **weights, **EIGHT)
        assert result.quantized == {"MatMul": 2}
        assert_same(model, result, {"x": normal(4, 32, seed=9)})
