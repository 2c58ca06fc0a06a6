"""Which nodes a dynamic recipe takes, which it leaves, and what it says about those."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from onnx import TensorProto
from support.dynamic_models import (
    make_attention,
    make_branches,
    make_embedding,
    make_gather,
    make_gemm,
    make_lstm,
    make_matmul,
)
from support.models import build, info, make_cnn, make_mlp, make_transformer, node, normal, weight

import bitwright
from bitwright import ModelError, QuantPlan, RecipeError
from bitwright.numerics.types import FLOAT8E4M3FN, INT4, INT8, INT16, UINT8, UINT16
from bitwright.plan import NodePlan
from bitwright.recipe import Emulation, Override, Percentile, Placement, Recipe, Selection


def plan_of(model, **changes):
    recipe = Recipe(mode="dynamic", **{"optimize": False, **changes})
    return bitwright.make_plan(model, recipe=recipe, force_dynamic=True)


def fates(model, **changes):
    return {
        name: node.reason or node.action for name, node in plan_of(model, **changes).nodes.items()
    }


def test_only_weights_have_entries_and_no_data_is_needed():
    plan = plan_of(make_transformer(), per_channel=True)
    assert set(plan.tensors) == {"w_q", "w_k", "w_v", "w_o", "w_up", "w_down"}
    for entry in plan.tensors.values():
        assert (entry.role, entry.qtype, entry.axis) == ("weight", INT8, 1)


def test_a_plan_can_be_kept_changed_and_applied():
    model = make_mlp()
    plan = plan_of(model)
    again = QuantPlan.from_json(plan.to_json())
    assert again == plan
    second = NodePlan(op="MatMul", action="float", reason="no")
    changed = msgspec.structs.replace(again, nodes={**again.nodes, "second": second})
    result = bitwright.apply_plan(changed, model)
    assert result.quantized == {"MatMul": 1}


def test_a_plan_belongs_to_its_model():
    with pytest.raises(bitwright.PlanError, match="another model"):
        bitwright.apply_plan(plan_of(make_mlp()), make_cnn())


def test_every_node_has_a_fate():
    reasons = fates(make_cnn())
    assert reasons["conv1"] == reasons["conv2"] == reasons["fc"] == "quantize"
    assert reasons["relu1"] == "there is no Relu whose input is quantized at run time"
    assert len(reasons) == 9


def test_the_default_leaves_products_of_activations():
    model = make_transformer()
    assert fates(model)["scores"] == "its second input is not constant"
    both = Selection(constant_weights_only=False)
    why = "one scale for the whole activation: its second input is no constant matrix"
    assert fates(model, select=both)["scores"] == why
    assert fates(model, select=both, dynamic_scale="tensor")["scores"] == "quantize"


def test_what_an_operator_of_the_runtime_lacks_is_left_float():
    batch_first = make_lstm()
    batch_first.graph.node[0].attribute.append(node("LSTM", [], [], layout=1).attribute[0])
    with pytest.raises(ModelError, match="batch first"):
        plan_of(batch_first)
    with pytest.raises(ModelError, match="qkv_hidden_sizes"):
        plan_of(make_attention(qkv_hidden_sizes=[16, 16, 16]))
    model = make_embedding()
    model.graph.node[0].output.append("sum")
    model.graph.output.append(info("sum", [2, 6, 16]))
    with pytest.raises(ModelError, match="sum of the embeddings"):
        plan_of(model)
    model = build(
        [node("Conv", ["x", "w"], ["y"], name="op")],
        {"x": [1, 2, 6, 6], "w": [2, 2, 3, 3]},
        {"y": None},
    )
    with pytest.raises(ModelError, match="its weight is computed at run time"):
        plan_of(model)


def test_integers_and_constants_are_no_matter_for_a_quantizer():
    nodes = [
        node("MatMul", ["a", "b"], ["c"], name="constant"),
        node("MatMul", ["x", "c"], ["y"], name="first"),
        node("MatMul", ["i", "j"], ["k"], name="whole"),
        node("MatMul", ["y", "w"], ["z"], name="second"),
    ]
    constants = {"a": normal(4, 4), "b": normal(4, 4), "w": weight(4, 4), "j": np.ones((4, 4), int)}
    model = build(
        nodes,
        [info("x", [2, 4]), info("i", [2, 4], TensorProto.INT64)],
        [info("z", [2, 4]), info("k", [2, 4], TensorProto.INT64)],
        constants,
    )
    reasons = fates(model)
    assert reasons["constant"] == "all its inputs are constant"
    assert reasons["first"] == "its second input is not constant"
    assert reasons["whole"] == "it works on int64"
    assert reasons["second"] == "quantize"


def test_an_operator_of_the_same_name_in_another_domain_is_another():
    model = build(
        [
            node("MatMul", ["x", "w"], ["h"], name="ours"),
            node("Gather", ["h", "w"], ["y"], name="o"),
        ],
        {"x": [3, 16]},
        {"y": None},
        {"w": weight(16, 8)},
        domains=["custom"],
    )
    model.graph.node[1].domain = "custom"
    assert "domain 'custom'" in fates(model)["o"]


def test_movement_follows_what_is_stored():
    assert fates(make_gather(), dynamic_scale="tensor") == {
        "op": "quantize",
        "first": "quantize",
        "turn": "quantize",
        "second": "quantize",
        "copy": "there is no Identity whose input is quantized at run time",
    }
    alone = build(
        [
            node("Transpose", ["x"], ["t"], name="turn", perm=[1, 0]),
            node("MatMul", ["t", "w"], ["y"], name="op"),
            node("Gather", ["y", "ids"], ["z"], name="pick"),
        ],
        {"x": [16, 3]},
        {"z": None},
        {"w": weight(16, 8), "ids": np.array([0, 2])},
    )
    reasons = fates(alone)
    assert (
        reasons["turn"] == "its input is not quantized, so quantizing it alone would gain nothing"
    )
    assert reasons["pick"] == "its table is not constant"


def test_products_with_a_stored_matrix_have_a_scale_for_each_row_and_others_say_why_not():
    nodes = [
        node("MatMul", ["x", "w"], ["a"], name="matrix"),
        node("MatMul", ["stack", "a"], ["b"], name="constant_first"),
        node("MatMul", ["a", "stack"], ["c"], name="stack_of_matrices"),
        node("Gemm", ["x", "v"], ["d"], name="transposed", transA=1),
        node("Transpose", ["u"], ["t"], name="turn", perm=[1, 0]),
        node("Gemm", ["x", "t"], ["e"], name="scaled", alpha=2.0),
        node("Gemm", ["x", "v", "d"], ["f"], name="scaled_bias", beta=0.5),
    ]
    constants = {"w": weight(8, 8), "stack": weight(2, 8, 8), "v": weight(8, 4), "u": weight(4, 8)}
    model = build(nodes, {"x": [8, 8]}, dict.fromkeys("bcdef"), constants)
    plans = plan_of(model, select=Selection(constant_weights_only=False)).nodes
    assert {name: planned.per_token for name, planned in plans.items()} == {
        "matrix": True,
        "constant_first": False,
        "stack_of_matrices": False,
        "transposed": False,
        "turn": False,
        "scaled": False,
        "scaled_bias": False,
    }
    assert plans["constant_first"].reason.endswith("its first input is constant")
    assert plans["stack_of_matrices"].reason.endswith("its second input is no constant matrix")
    assert plans["transposed"].reason.endswith("its first input is transposed")
    assert plans["scaled"].reason == plans["scaled_bias"].reason
    assert plans["scaled"].reason.endswith("its alpha or beta multiplies what is computed")


@pytest.mark.parametrize(("place", "moves"), [(0, True), (2, False)])
def test_what_a_product_adds_is_not_moved_as_integers(place, moves):
    """A Transpose of an activation, read as a factor and as an addend."""
    read = ["h", "w2", "b"]
    read[place] = "t"
    nodes = [
        node("MatMul", ["x", "w"], ["h"], name="first"),
        node("Transpose", ["x"], ["t"], name="turn", perm=[1, 0]),
        node("Gemm", read, ["y"], name="last"),
    ]
    constants = {"w": weight(8, 8), "w2": weight(8, 8, seed=1), "b": normal(8, 8)}
    constants = {name: constants[name] for name in constants if name in (*read, "w")}
    model = build(nodes, {"x": [8, 8]}, {"y": None, "h": None}, constants)
    reason = "its input is not quantized, so quantizing it alone would gain nothing"
    assert fates(model, dynamic_scale="tensor")["turn"] == ("quantize" if moves else reason)


def test_small_tables_stay_float_and_large_ones_have_a_scale_for_each_row():
    nodes = [
        node("Gather", ["words", "ids"], ["a"], name="words"),
        node("Gather", ["kinds", "ids"], ["b"], name="kinds"),
        node("Add", ["a", "b"], ["c"], name="sum"),
        node("MatMul", ["c", "w"], ["y"], name="op"),
    ]
    constants = {"words": weight(300, 64), "kinds": weight(2, 64), "w": weight(64, 8)}
    ids = info("ids", [1, 4], TensorProto.INT64)
    model = build(nodes, [ids], {"y": None}, constants)
    plan = plan_of(model)
    assert plan.nodes["words"].per_token
    assert plan.tensors["words"].axis == 0
    assert plan.nodes["kinds"].reason == "its table is so small that 8 bits would save nothing"
    assert plan_of(model, dynamic_scale="tensor").nodes["kinds"].quantized


def test_a_turned_constant_only_when_forced():
    nodes = [
        node("Transpose", ["w"], ["t"], name="turn", perm=[1, 0]),
        node("MatMul", ["x", "v"], ["h"], name="op"),
        node("MatMul", ["h", "t"], ["y"], name="tied"),
    ]
    model = build(nodes, {"x": [2, 4]}, {"y": None}, {"w": weight(5, 6), "v": weight(4, 6, seed=1)})
    assert fates(model)["turn"] == "its input is constant"
    assert fates(model, place=Placement(force_shared=True))["turn"] == "quantize"


def test_selection_by_name_and_type():
    model = make_cnn()
    assert fates(model, select=Selection(exclude=("conv1",)))["conv1"] == "it is excluded by name"
    by_type = fates(model, select=Selection(op_types=("Conv",)))
    assert by_type["fc"] == "Gemm is not among the op types to quantize"
    assert by_type["conv1"] == "quantize"
    with pytest.raises(RecipeError, match="Did you mean 'conv1'"):
        fates(model, select=Selection(nodes=("conv11",)))


def test_bodies_are_quantized_unless_the_recipe_leaves_them_out():
    with pytest.raises(ModelError, match=r"nothing in this model was quantized.*select\.subgraphs"):
        plan_of(make_branches(), select=Selection(subgraphs=False))
    reasons = fates(make_branches())
    assert reasons["then_own"] == reasons["other_shared"] == "quantize"


def test_axes_of_channels():
    entries = plan_of(make_gemm(transB=1), per_channel=True).tensors
    assert (entries["w"].axis, np.shape(entries["w"].scale)) == (0, (5,))
    entries = plan_of(make_matmul((2, 16, 8), (2, 3, 16)), per_channel=True).tensors
    assert (entries["w"].axis, np.shape(entries["w"].scale)) == (2, (8,))
    # The one axis of a vector is summed over.
    assert np.shape(plan_of(make_matmul((16,)), per_channel=True).tensors["w"].scale) == ()


@pytest.mark.parametrize("qtype", [INT16, UINT16, INT4, FLOAT8E4M3FN], ids=str)
def test_weights_that_no_integer_operator_takes_are_refused(qtype):
    with pytest.raises(RecipeError, match=f"weights in int8 or uint8, not {qtype}"):
        Recipe(mode="dynamic", weight=qtype)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"activation": UINT16}, "activations in uint8, not uint16"),
        ({"activation_symmetric": True}, "activation_symmetric has no effect"),
        ({"ranges": Percentile()}, "ranges has no effect"),
        ({"format": "qoperator"}, "format has no effect"),
        ({"block_size": 32}, "block_size has no effect"),
        ({"emulate": Emulation(dedicated_pairs=True)}, r"emulate\.dedicated_pairs has no effect"),
    ],
)
def test_fields_without_an_effect_are_refused(changes, told):
    with pytest.raises(RecipeError, match=told):
        Recipe(mode="dynamic", **changes)


def test_overrides_are_for_weights():
    entries = plan_of(make_mlp(), overrides={"w1": Override(qtype=UINT8)}).tensors
    assert (entries["w1"].qtype, entries["w2"].qtype) == (UINT8, INT8)
    for name, override, told in (
        ("a", Override(symmetric=True), "is no weight that is quantized"),
        ("w11", Override(symmetric=True), "Did you mean 'w1'"),
        ("w1", Override(qtype=INT16), "int8 or uint8, not int16"),
        ("w1", Override(block_size=4, axis=0), "no blocks"),
        ("w1", Override(axis=0), "names axis 0"),
    ):
        with pytest.raises(RecipeError, match=told):
            plan_of(make_mlp(), overrides={name: override})


def test_a_weight_with_a_scale_of_its_own_keeps_it_and_other_overrides_are_filled_in():
    given = Override(scale=0.25, zero_point=3, qtype=UINT8)
    entries = plan_of(make_mlp(), overrides={"w1": given, "w2": Override(qtype=UINT8)}).tensors
    assert (entries["w1"].scale, entries["w1"].zero_point) == (0.25, 3)
    w2 = plan_of(make_mlp(), weight=UINT8).tensors["w2"]
    assert (entries["w2"].scale, entries["w2"].zero_point) == (w2.scale, w2.zero_point)


def test_nothing_quantized_is_an_error_with_the_reasons():
    model = build([node("Relu", ["x"], ["y"], name="r")], {"x": [3]}, {"y": [3]})
    with pytest.raises(ModelError, match="nothing in this model was quantized"):
        plan_of(model)


def test_weights_that_are_not_finite_are_refused():
    model = build(
        [node("MatMul", ["x", "w"], ["y"], name="op")],
        {"x": [2, 2]},
        {"y": None},
        {"w": np.array([[1, np.inf], [0, 1]], np.float32)},
    )
    with pytest.raises(ModelError, match="'w' holds NaN or infinite values"):
        plan_of(model)
