"""Which tensors are quantized, who shares with whom, and which nodes are left float and why."""

from __future__ import annotations

import numpy as np
import pytest
from support.layouts import layout_of, quantized_nodes
from support.models import (
    build,
    info,
    make_branching_products,
    make_cnn,
    make_transformer,
    node,
    normal,
    weight,
)
from support.op_models import OP_MODELS

from bitwright.decide.ops import RULES
from bitwright.errors import RecipeError
from bitwright.numerics.types import INT4, INT8, INT32, UINT8, UINT16
from bitwright.recipe import Emulation, MinMax, Override, Placement, Selection

EVERYTHING = Selection(op_types=tuple(RULES))


def op_layout(op_type, **fields):
    return layout_of(OP_MODELS[op_type](), select=EVERYTHING, **fields)


# One rule an operator -----------------------------------------------------------------------


@pytest.mark.parametrize("op_type", sorted(op for op, r in RULES.items() if r.keeps_scale is True))
def test_an_op_that_moves_values_takes_the_scale_of_its_input(op_type):
    layout = op_layout(op_type)
    planned = layout.nodes["op"]
    assert layout.entries[planned.outputs[0]].same_as == planned.inputs[0]


COMPUTES = ["AveragePool", "Add", "Mul", "Concat", "Sigmoid", "Softmax", "LeakyRelu", "CumSum"]


@pytest.mark.parametrize("op_type", COMPUTES)
def test_an_op_that_computes_has_a_scale_of_its_own(op_type):
    layout = op_layout(op_type)
    planned = layout.nodes["op"]
    assert layout.entries[planned.outputs[0]].same_as is None
    assert None not in planned.inputs[: len(planned.inputs) if op_type != "CumSum" else 1]


@pytest.mark.parametrize(
    ("op_type", "axis", "bias"),
    [
        ("Conv", 0, True),
        ("ConvTranspose", 1, True),
        ("Gemm", 0, True),
        ("MatMul", 1, False),
        ("InstanceNormalization", None, True),
        ("LayerNormalization", None, True),
    ],
)
def test_weights_lie_along_the_output_channels_and_biases_have_the_product_scale(
    op_type, axis, bias
):
    layout = op_layout(op_type, per_channel=True)
    planned = layout.nodes["op"]
    stored = layout.entries[planned.inputs[1]]
    assert (stored.role, stored.qtype, stored.axis) == ("weight", INT8, axis)
    if bias:
        entry = layout.entries[planned.inputs[2]]
        assert (entry.role, entry.qtype) == ("bias", INT32)
        assert entry.bias_of == (planned.inputs[0], planned.inputs[1])


def test_a_softmax_lies_between_zero_and_one_without_data():
    layout = op_layout("Softmax", emulate={"known_ranges": False})
    assert layout.entries["k"].fixed_range == (0.0, 1.0)
    assert "k" not in layout.observed
    assert "k" in op_layout("Softmax").observed  # to be fitted to


def test_what_gives_integers_has_no_quantized_output():
    layout = op_layout("ArgMax")
    assert layout.nodes["op"].inputs == ("h",)
    assert layout.nodes["op"].outputs == (None,)


@pytest.mark.parametrize(
    ("mode", "shared"), [("nearest", True), ("linear", True), ("cubic", False)]
)
def test_a_resize_that_overshoots_has_a_scale_of_its_own(mode, shared):
    model = OP_MODELS["Resize"]()
    for attribute in model.graph.node[1].attribute:
        attribute.s = mode.encode()
    layout = layout_of(model, select=EVERYTHING)
    assert (layout.entries["k"].same_as == "h") == shared


@pytest.mark.parametrize(
    ("value", "mode", "shared"),
    [
        (None, "constant", True),
        (0.0, "constant", True),
        (1.5, "constant", False),
        (1.5, "reflect", True),
    ],
)
def test_a_pad_with_another_value_than_zero_has_a_scale_of_its_own(value, mode, shared):
    constants = {"w": weight(8, 3, 1, 1), "by": np.array([0, 0, 1, 1, 0, 0, 1, 1])}
    inputs = ["h", "by"]
    if value is not None:
        constants["fill"] = np.array(value, np.float32)
        inputs.append("fill")
    model = build(
        [
            node("Conv", ["x", "w"], ["h"], name="conv"),
            node("Pad", inputs, ["y"], name="op", mode=mode),
        ],
        {"x": [1, 3, 4, 4]},
        {"y": [1, 8, 6, 6]},
        constants,
    )
    assert (layout_of(model).entries["y"].same_as == "h") == shared


FOLLOWERS = sorted(
    op for op, r in RULES.items() if r.needs_quantized_input and op not in ("Squeeze", "Where")
)


@pytest.mark.parametrize("op_type", FOLLOWERS)
def test_an_op_that_follows_is_float_behind_float_unless_forced(op_type):
    model = OP_MODELS[op_type]()
    exclude = ("before",)
    select = Selection(op_types=tuple(RULES), exclude=exclude)
    plain = layout_of(model, select=select)
    assert plain.nodes["op"].action == "float"
    assert "input is not quantized" in plain.nodes["op"].reason
    forced = layout_of(model, select=select, place=Placement(force_shared=True))
    assert forced.nodes["op"].quantized


JOINERS = ["Add", "Mul", "Concat", "Sigmoid", "Softmax", "LeakyRelu", "GlobalAveragePool"]


@pytest.mark.parametrize("op_type", JOINERS)
def test_an_op_that_joins_is_float_beside_float_unless_asked(op_type):
    model = OP_MODELS[op_type]()
    select = Selection(op_types=tuple(RULES), exclude=("before",))
    plain = layout_of(model, select=select)
    assert plain.nodes["op"].action == "float"
    assert "only add rounding" in plain.nodes["op"].reason
    isolated = layout_of(model, select=select, place=Placement(isolated=True))
    assert isolated.nodes["op"].quantized


def test_an_op_whose_result_leaves_the_model_is_float():
    model = build(
        [
            node("MatMul", ["x", "w"], ["h"], name="mm"),
            node("Sigmoid", ["h"], ["y"], name="sigmoid"),
        ],
        {"x": [4, 16]},
        {"y": [4, 8]},
        {"w": weight(16, 8)},
    )
    layout = layout_of(model)
    assert "leaves the model" in layout.nodes["sigmoid"].reason
    assert layout.outputs == {"y": None}


def test_a_relu_lends_its_range_to_what_it_reads():
    layout = layout_of(make_cnn())
    assert layout.entries["c1"].same_as == "r1"
    assert layout.entries["c1"].absorbed_by == "relu1"


def test_a_relu_whose_input_others_read_lends_nothing():
    model = make_cnn()
    model.graph.output.append(info("c1"))
    layout = layout_of(model)
    assert layout.entries["c1"].same_as is None
    assert layout.entries["c1"].absorbed_by is None


@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose"])
def test_a_convolution_with_a_computed_weight_is_float_and_says_so(op_type):
    model = build(
        [node(op_type, ["x", "w"], ["y"], name="op")],
        {"x": [1, 4, 5, 5], "w": [4, 4, 1, 1]},
        {"y": [1, 4, 5, 5]},
    )
    layout = layout_of(model)
    assert layout.nodes["op"].reason == "its weight is computed at run time"


def test_a_matmul_of_two_activations_is_float_for_integer_kernels_unless_asked_for():
    layout = layout_of(make_transformer())
    assert layout.nodes["scores"].reason.startswith("both its factors are computed")
    assert layout.nodes["q_matmul"].quantized
    for asked in (
        {"select": Selection(constant_weights_only=False)},
        {"select": Selection(op_types=("MatMul",))},
        {"place": Placement(isolated=True)},
        {"activation": UINT16},
    ):
        assert layout_of(make_transformer(), **asked).nodes["scores"].quantized
    only = layout_of(make_transformer(), select=Selection(constant_weights_only=True))
    assert only.nodes["scores"].reason == "its second input is not constant"
    assert only.nodes["q_matmul"].quantized


@pytest.mark.parametrize(("shape", "index"), [((2, 16, 8), 1), ((16, 16), 0)])
def test_a_matmul_weight_that_the_kernel_takes_whole_is_per_tensor(shape, index):
    names = ["x", "w"] if index else ["w", "x"]
    model = build(
        [node("MatMul", names, ["y"], name="mm")],
        {"x": [2, 4, 16] if index else [16, 4]},
        [info("y")],
        {"w": normal(*shape)},
    )
    assert layout_of(model, per_channel=True).entries["w"].axis is None


@pytest.mark.parametrize(
    "op_type", ["LayerNormalization", "InstanceNormalization", "BatchNormalization"]
)
def test_a_norm_stays_float_unless_it_is_named_or_meant_for_other_hardware(op_type):
    width = {"x": [2, 4, 6]}
    constants = {name: 1 + normal(6 if op_type[0] == "L" else 4) ** 2 for name in "abcd"}
    names = list("abcd" if op_type[0] == "B" else "ab")
    nodes = [
        node(op_type, ["x", *names], ["n"], name="norm"),
        node("MatMul", ["n", "w"], ["y"], name="mm"),
    ]
    model = build(nodes, width, {"y": [2, 4, 5]}, {**constants, "w": weight(6, 5)})
    options = {"optimize": False}
    planned = layout_of(model, **options).nodes["norm"]
    assert planned.reason == f"ONNX Runtime has no integer {op_type}: pairs would only cost time"
    for fields in (
        {"select": Selection(op_types=(op_type, "MatMul"))},
        {"place": Placement(isolated=True)},
        {"activation": UINT16},
    ):
        assert layout_of(model, **options, **fields).nodes["norm"].action == "quantize"


def test_float_nodes_read_a_tensor_as_computed_unless_it_is_written_as_integers():
    layout = layout_of(make_transformer())
    assert layout.nodes["up_matmul"].inputs[0] == "n1"
    assert layout.nodes["residual2"].inputs == (None, None)  # n1 comes from a float norm
    layout = layout_of(make_transformer(), select=Selection(op_types=("LayerNormalization",)))
    assert layout.nodes["residual2"].inputs == (None, "n1")


def test_integers_are_not_quantized():
    model = build(
        [
            node("Shape", ["x"], ["s"], name="shape"),
            node("Add", ["s", "one"], ["t"], name="count"),
            node("MatMul", ["x", "w"], ["y"], name="mm"),
        ],
        [info("x", ["n", 16])],
        [info("y"), info("t", [2], 7)],
        {"w": weight(16, 8), "one": np.array([1, 1])},
    )
    layout = layout_of(model, select=EVERYTHING)
    assert layout.nodes["count"].reason == "it works on int64"


def test_an_op_without_a_rule_is_quantized_when_it_is_named():
    model = build(
        [
            node("MatMul", ["x", "w"], ["h"], name="mm"),
            node("Atan", ["h"], ["a"], name="odd"),
            node("MatMul", ["a", "w"], ["y"], name="mm2"),
        ],
        {"x": [4, 16]},
        {"y": [4, 16]},
        {"w": weight(16, 16)},
    )
    assert "no rule for Atan; name it in op_types" in layout_of(model).nodes["odd"].reason
    named = layout_of(model, select=Selection(op_types=("MatMul", "Atan")))
    assert named.nodes["odd"].inputs == ("h",)
    assert named.nodes["odd"].outputs == ("a",)


def test_a_node_that_only_runs_graphs_says_how_to_quantize_these():
    model = make_branching_products(16)
    outside = layout_of(model).nodes["if"].reason
    assert outside == "If only runs the graphs inside it; select.subgraphs quantizes inside them"
    inside = layout_of(model, select=Selection(subgraphs=True))
    assert inside.nodes["if"].reason == "If only runs the graphs inside it"
    assert "inside" in quantized_nodes(inside)


def test_a_constant_addend_is_stored_as_the_activations_are():
    model = build(
        [
            node("Conv", ["x", "w"], ["h"], name="conv"),
            node("Add", ["h", "c"], ["a"], name="add"),
            node("Conv", ["a", "v"], ["y"], name="head"),
        ],
        {"x": [1, 3, 4, 4]},
        {"y": [1, 8, 4, 4]},
        {"w": weight(8, 3, 1, 1), "c": normal(8, 4, 4), "v": weight(8, 8, 1, 1)},
    )
    entry = layout_of(model, activation=UINT16, per_channel=True).entries["c"]
    assert (entry.qtype, entry.axis, entry.operand) == (UINT16, None, True)


def test_one_weight_read_along_two_axes_is_stored_twice():
    model = build(
        [
            node("Gemm", ["x", "w"], ["h"], name="up"),
            node("Gemm", ["h", "w"], ["y"], name="down", transB=1),
        ],
        {"x": [4, 16]},
        {"y": [4, 16]},
        {"w": weight(16, 16)},
    )
    assert {"w", "w@down"} <= set(layout_of(model, per_channel=True).entries)
    assert "w@down" not in layout_of(model).entries


@pytest.mark.parametrize("value", [-1e4, -3.4e38, -np.inf])
def test_an_addend_as_large_as_a_mask_is_left_float(value):
    model = make_transformer(mask=np.array([[[[0, 0, 0, 0, 0, value]]]], np.float32))
    layout = layout_of(model)
    assert "'mask'" in layout.nodes["masking"].reason


# Overrides and placement --------------------------------------------------------------------


def test_overrides_choose_types_for_single_tensors():
    overrides = {"x": Override(qtype=UINT16), "w1": Override(qtype=INT4, axis=0)}
    entries = layout_of(make_cnn(), overrides=overrides).entries
    assert entries["x"].qtype == UINT16
    assert (entries["w1"].qtype, entries["w1"].axis) == (INT4, 0)
    assert (entries["r1"].qtype, entries["w2"].qtype) == (UINT8, INT8)


def test_a_shared_scale_brings_its_type_along():
    entries = layout_of(make_cnn(), overrides={"r1": Override(qtype=UINT16)}).entries
    assert entries["p1"].same_as == "r1"
    assert entries["p1"].qtype == entries["c1"].qtype == UINT16


def test_an_override_of_what_would_share_gives_it_a_scale_of_its_own():
    entries = layout_of(make_cnn(), overrides={"p1": Override(symmetric=True)}).entries
    assert entries["p1"].same_as is None


def test_an_override_with_scale_or_range_needs_no_data():
    overrides = {"x": Override(scale=0.1, zero_point=3), "r1": Override(rmin=0.0, rmax=6.0)}
    assert not {"x", "r1", "c1", "p1"} & set(layout_of(make_cnn(), overrides=overrides).observed)


def test_a_bias_with_an_override_is_an_ordinary_weight():
    entries = layout_of(make_cnn(), overrides={"b1": Override(qtype=INT8)}).entries
    assert entries["b1"].role == "weight"


@pytest.mark.parametrize("axis", [4, -5])
def test_an_axis_that_the_tensor_lacks_is_an_error(axis):
    with pytest.raises(RecipeError, match=f"override of 'w1' names axis {axis}"):
        layout_of(make_cnn(), overrides={"w1": Override(axis=axis)})


def test_unquantized_outputs_have_no_entry():
    layout = layout_of(make_cnn(), place=Placement(unquantized_outputs=("Gemm",)))
    assert layout.nodes["fc"].outputs == (None,)
    assert layout.outputs == {"y": None}


def test_dedicated_pairs_share_one_range():
    layout = layout_of(make_cnn(), emulate=Emulation(dedicated_pairs=True))
    readers = [layout.nodes["conv2"].inputs[0], layout.nodes["residual"].inputs[1]]
    assert len(set(readers)) == 2
    assert len({layout.root(key) for key in readers}) == 1


def test_blocks_take_the_summed_axis_and_leave_convolutions_alone():
    entries = layout_of(make_cnn(), block_size=4, weight=INT4).entries
    assert (entries["w3"].axis, entries["w3"].block_size) == (0, 4)
    assert entries["w1"].block_size == 0


@pytest.mark.parametrize(
    ("dilations", "fields", "kept"),
    [
        ([2, 2], {}, True),
        ([1, 1], {}, False),
        ([2, 2], {"activation": UINT16}, False),  # no integer kernel that would be made of it
        ([2, 2], {"format": "extended"}, False),
    ],
)
def test_a_dilated_average_stays_float_where_the_runtime_would_make_it_an_integer_one(
    dilations, fields, kept
):
    pool = node("AveragePool", ["a"], ["y"], name="op", kernel_shape=[2, 2], dilations=dilations)
    first = node("Conv", ["x", "w"], ["a"], name="conv")
    last = node("Conv", ["y", "w"], ["z"], name="last")
    model = build(
        [first, pool, last], {"x": [1, 4, 8, 8]}, {"z": None}, {"w": weight(4, 4, 1, 1)}, opset=19
    )
    reason = layout_of(model, **fields).nodes["op"].reason or ""
    assert ("no integer AveragePool with dilations" in reason) is kept


@pytest.mark.parametrize("chosen", [1, 2])
def test_a_float_node_reads_through_a_dedicated_pair_of_the_only_chosen_reader(chosen):
    """By ONNX Runtime's rules: with pairs of their own before several, none is left for others."""
    readers = [node("Conv", ["v", f"w{i}"], [f"c{i}"], f"conv{i}") for i in range(chosen)]
    nodes = [node("Conv", ["x", "w"], ["v"], "first"), *readers, node("Erf", ["v"], ["e"], "erf")]
    shape = [1, 3, 4, 4]
    outputs = dict.fromkeys((*(f"c{i}" for i in range(chosen)), "e"), shape)
    weights = {name: normal(3, 3, 1, 1, seed=i) for i, name in enumerate(["w", "w0", "w1"])}
    used = {name: weights[name] for name in ["w", *(f"w{i}" for i in range(chosen))]}
    model = build(nodes, {"x": shape}, outputs, used)
    emulate = Emulation(dedicated_pairs=True, conventions="onnxruntime")
    layout = layout_of(model, emulate=emulate, select=Selection(op_types=("Conv",)))
    [read] = layout.nodes["erf"].inputs
    assert (read is not None) == (chosen == 1)


@pytest.mark.parametrize("per_channel", [False, True])
def test_what_moves_channels_has_scales_of_its_own_where_each_channel_has_one(per_channel):
    nodes = [
        node("Conv", ["x", "w"], ["c"], "conv"),
        node("Transpose", ["c"], ["t"], "transpose", perm=[0, 2, 1, 3]),
        node("Conv", ["t", "w2"], ["y"], "behind"),
    ]
    constants = {"w": normal(3, 3, 1, 1), "w2": normal(3, 4, 1, 1, seed=1)}
    model = build(nodes, {"x": [1, 3, 4, 4]}, {"y": [1, 3, 3, 4]}, constants)
    ranges = MinMax(per_channel=per_channel)
    layout = layout_of(model, activation=UINT16, ranges=ranges)
    assert (layout.entries["t"].same_as is None) == per_channel


@pytest.mark.parametrize(
    ("between", "excluded", "quantized"),
    [
        ([], (), True),
        ([], ("conv",), False),
        ([("Relu", "r")], (), True),
        ([("Relu", "r")], ("conv",), False),
    ],
)
def test_the_skip_of_a_residual_is_quantized_where_the_convolution_is(between, excluded, quantized):
    """As TensorRT wants it, which adds the skip within the convolution's kernel."""
    nodes, last = [node("Conv", ["x", "w"], ["c"], "conv")], "c"
    for op, name in between:
        nodes.append(node(op, [last], [name], name))
        last = name
    nodes += [
        node("Add", [last, "x"], ["s"], "add"),
        node("Conv", ["s", "v"], ["y"], "head"),
    ]
    shape = [1, 3, 4, 4]
    constants = {"w": normal(3, 3, 1, 1), "v": normal(3, 3, 1, 1, seed=1)}
    model = build(nodes, {"x": shape}, {"y": shape}, constants)
    select = Selection(op_types=("Conv",), exclude=excluded)
    place = Placement(residual_inputs=True, unquantized_outputs=("Conv",))
    layout = layout_of(model, select=select, place=place)
    first, skip = layout.nodes["add"].inputs or (None, None)
    assert first is None and (skip is not None) == quantized
