"""Nodes with types of their own: what tensors between them become, and what is converted."""

from __future__ import annotations

import onnx
import pytest
from support.layouts import layout_of, quantized_nodes
from support.models import (
    as_proto,
    build,
    make_cnn,
    make_samples,
    make_transformer,
    node,
    ops,
    run,
    sqnr,
    weight,
)
from support.ocr_models import ocr_case

import bitwright
from bitwright import load_recipe
from bitwright.errors import RecipeError
from bitwright.numerics.types import INT4, INT8, UINT8, UINT16
from bitwright.recipe import MSE, Override, Recipe


def types_of(layout, *tensors):
    return [str(layout.entries[name].qtype) for name in tensors]


def make_fan(*, readers=4):
    """One Conv whose result several others read, and one that reads them all."""
    names = [f"reader{i}" for i in range(readers)]
    nodes = [node("Conv", ["x", "w"], ["t"], name="stem")]
    nodes += [node("Conv", ["t", f"w_{name}"], [name], name=name) for name in names]
    nodes += [node("Concat", names, ["all"], name="join", axis=1)]
    nodes += [node("Conv", ["all", "w_last"], ["y"], name="last")]
    constants = {"w": weight(4, 3, 1, 1), "w_last": weight(4, 4 * readers, 1, 1)}
    constants |= {f"w_{name}": weight(4, 4, 1, 1, seed=i) for i, name in enumerate(names)}
    return build(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 4, 8, 8]}, constants, opset=21)


def quantize(model, *, samples=None, **fields):
    recipe = Recipe(per_channel=True, **fields)
    samples = make_samples(model) if samples is None else samples
    return bitwright.quantize(model, data=samples, recipe=recipe, holdout=False, progress=False)


# Types ----------------------------------------------------------------------------------------


def test_a_node_reads_and_writes_its_own_type_and_others_read_one_conversion():
    layout = layout_of(make_fan(), overrides={"re:reader[01]": Override(activation=UINT16)})
    # The widest who reads it decides: what 16-bit nodes read was not rounded to 8 bits before.
    assert types_of(layout, "t", "x", "reader0", "reader1") == ["uint16", "uint8", *["uint16"] * 2]
    assert layout.nodes["reader0"].inputs[0] == layout.nodes["reader1"].inputs[0] == "t"
    converted = {layout.nodes[f"reader{i}"].inputs[0] for i in (2, 3)}
    assert converted == {"t@uint8"} and layout.entries["t@uint8"].source == "t"


def test_conversions_are_written_once_for_each_tensor_and_type():
    plain = ops(quantize(make_fan()).model)
    found = quantize(make_fan(), overrides={"re:reader[01]": Override(activation=UINT16)})
    counts = ops(found.model)
    # Of `t` for two 8-bit readers, and of two 16-bit results for the Concat: three conversions.
    assert counts["QuantizeLinear"] == plain["QuantizeLinear"] + 3
    pairs = {n.input[0] for n in as_proto(found.model).graph.node if n.op_type == "QuantizeLinear"}
    assert len(pairs) == counts["QuantizeLinear"]


def test_what_only_moves_or_clips_values_takes_the_type_of_its_readers():
    layout = layout_of(make_cnn(), overrides={"conv2": Override(activation=UINT16)})
    # conv1 -> relu1 -> pool1 -> conv2: sixteen bits behind eight would hold nothing more.
    assert types_of(layout, "x", "c1", "r1", "p1", "c2") == ["uint8"] + ["uint16"] * 4
    assert layout.entries["p1"].same_as == "r1"


def test_a_product_and_its_bias_have_one_type():
    model = build(
        [
            node("MatMul", ["x", "w1"], ["m"], name="product"),
            node("Add", ["m", "b"], ["s"], name="sum"),
            node("Relu", ["s"], ["r"], name="relu"),
            node("MatMul", ["r", "w2"], ["y"], name="last"),
        ],
        {"x": [2, 8]},
        {"y": [2, 8]},
        {"w1": weight(8, 8), "w2": weight(8, 8, seed=1), "b": weight(8, seed=2)},
    )
    layout = layout_of(model, overrides={"product": Override(activation=UINT16)})
    assert types_of(layout, "x", "r", "r@uint8") == ["uint16", "uint16", "uint8"]
    assert layout.nodes["last"].inputs[0] == "r@uint8"


def test_a_constant_beside_activations_has_the_type_of_its_node():
    model = build(
        [
            node("Conv", ["x", "w"], ["c"], name="conv"),
            node("Mul", ["c", "k"], ["m"], name="scale"),
            node("Conv", ["m", "w"], ["y"], name="last"),
        ],
        {"x": [1, 3, 8, 8]},
        {"y": [1, 3, 8, 8]},
        {"w": weight(3, 3, 1, 1), "k": weight(1, 3, 1, 1)},
    )
    overrides = {"scale": Override(activation=UINT16)}
    layout = layout_of(model, overrides=overrides, optimize=False)
    assert types_of(layout, "c", "k", "m") == ["uint16"] * 3


def test_weights_have_a_type_and_blocks_by_pattern():
    overrides = {"Gemm": Override(weight=INT4, block_size=4), "re:conv2": Override(weight=INT4)}
    layout = layout_of(make_cnn(), overrides=overrides)
    assert types_of(layout, "w1", "w2", "w3") == ["int8", "int4", "int4"]
    assert (layout.entries["w3"].axis, layout.entries["w3"].block_size) == (0, 4)
    assert layout.entries["w2"].block_size == 0


def test_nodes_are_left_float_by_name_pattern_and_op_type():
    overrides = {"re:conv.": Override(keep_float=True), "Gemm": Override(keep_float=True)}
    layout = layout_of(make_cnn(), overrides=overrides, place={"isolated": True})
    assert not {"conv1", "conv2", "fc"} & quantized_nodes(layout)
    assert layout.nodes["conv2"].reason == "an override keeps it float"
    assert layout.nodes["conv2"].inputs == (None, None, None)


def test_the_closer_description_counts_and_fields_of_others_stay():
    overrides = {
        "conv2": Override(weight=INT8),
        "re:conv.*": Override(weight=INT4, activation=UINT16),
        "Conv": Override(activation=INT8),
    }
    layout = layout_of(make_cnn(), overrides=overrides)
    assert types_of(layout, "w1", "w2", "x", "c2") == ["int4", "int8", "uint16", "uint16"]


def test_a_tensor_of_its_own_type_is_read_so_by_all():
    overrides = {"re:reader.": Override(activation=UINT16), "t": Override(qtype=UINT8)}
    layout = layout_of(make_fan(), overrides=overrides)
    assert {layout.nodes[f"reader{i}"].inputs[0] for i in range(4)} == {"t"}
    assert types_of(layout, "t", "reader1") == ["uint8", "uint16"]


def test_a_conversion_has_the_range_method_of_its_tensor():
    overrides = {"reader0": Override(activation=UINT16), "re:t": Override(ranges=MSE())}
    layout = layout_of(make_fan(), overrides=overrides)
    assert layout.entries["t@uint8"].override.ranges == layout.entries["t"].override.ranges == MSE()


def test_modules_of_torch_stand_for_their_nodes():
    model = make_cnn()
    for item in model.graph.node:
        if item.name in ("conv2", "residual"):
            scopes = f"['', 'body', 'body.0', '{item.name}']"
            item.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=scopes)
    for name in ("body", "body.0", "re:body\\..*"):
        layout = layout_of(model, overrides={name: Override(keep_float=True)})
        assert not {"conv2", "residual"} & quantized_nodes(layout)
        assert "conv1" in quantized_nodes(layout)


# Refusals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("conv.*", "no node is called 'conv.*'. Did you mean 're:conv.*'?"),
        ("conv*", "no node is called 'conv*'. Did you mean 're:conv.*'?"),
        ("cnov1", "no node is called 'cnov1'. Did you mean 'conv1'?"),
        (
            "re:onv1",
            "no node fits 're:onv1'. A pattern fits whole names; did you mean 're:.*onv1'?",
        ),
        ("re:layer4.*", "no node fits 're:layer4.*'."),
        ("re:(", "'re:(' is not a regular expression"),
    ],
)
def test_a_name_that_fits_nothing_is_refused_with_what_was_meant(name, sentence):
    with pytest.raises(RecipeError) as error:
        layout_of(make_cnn(), overrides={name: Override(activation=UINT16)})
    assert sentence in str(error.value)


def test_types_that_the_runtime_has_not_are_refused_for_nodes_too():
    with pytest.raises(RecipeError, match="no kernels for activations in float8e4m3fn"):
        layout_of(make_cnn(), overrides={"Conv": Override(activation="float8e4m3fn")})
    with pytest.raises(RecipeError, match="QOperator holds int8 and uint8 only, and 'Conv' is"):
        layout_of(make_cnn(), format="qoperator", overrides={"Conv": Override(activation=UINT16)})


def test_conversions_and_dedicated_pairs_exclude_each_other():
    overrides = {"reader0": Override(activation=UINT16)}
    with pytest.raises(RecipeError, match="dedicated_pairs gives each reader one"):
        layout_of(make_fan(), overrides=overrides, emulate={"dedicated_pairs": True})


def test_float_and_a_type_contradict_each_other():
    with pytest.raises(RecipeError, match="keep_float has no types to give"):
        Override(keep_float=True, weight=INT4)
    overrides = {"Conv": Override(keep_float=True), "conv1": Override(weight=INT4)}
    with pytest.raises(RecipeError, match=r"overrides of node 'conv1': .* keep_float"):
        layout_of(make_cnn(), overrides=overrides)


# Other modes and formats ------------------------------------------------------------------------


def test_dynamic_models_take_types_of_weights_and_float_nodes():
    def plan(**override):
        recipe = load_recipe("int8-dynamic").replace(
            overrides={"re:[qk]_matmul": Override(**override)}
        )
        return bitwright.quantize(make_transformer(), recipe=recipe, progress=False).plan

    assert plan(weight="uint8").tensors["w_q"].qtype == UINT8
    assert plan(keep_float=True).nodes["q_matmul"].reason == "an override keeps it float"
    with pytest.raises(RecipeError, match="activation has no effect in dynamic mode"):
        plan(activation=UINT16)
    with pytest.raises(RecipeError, match="weights in int8 or uint8, not int4"):
        plan(weight=INT4)


def test_vendor_formats_have_one_type_for_a_tensor():
    overrides = {"reader0": Override(activation=UINT16)}
    result = quantize(make_fan(), format="extended", overrides=overrides)
    assert result.plan.tensors["t"].qtype == UINT16
    assert result.plan.nodes["reader3"].inputs[0] == "t"


def test_weight_only_overrides_take_op_types():
    recipe = Recipe(mode="weight-only", weights={"overrides": {"Gemm": {"bits": 8}}})
    model = build(
        [node("MatMul", ["x", "w1"], ["m"], name="first"), node("Gemm", ["m", "w2"], ["y"])],
        {"x": [2, 32]},
        {"y": [2, 32]},
        {"w1": weight(32, 32), "w2": weight(32, 32, seed=1)},
    )
    plan = bitwright.quantize(model, recipe=recipe, progress=False).plan
    assert {name: one.bits for name, one in plan.weights.items()} == {"w1": 4, "w2": 8}


# Numbers ----------------------------------------------------------------------------------------

INT8_KERNELS = [{"session.qdqisint8allowed": allowed} for allowed in ("0", "1")]


def quality_by_part(path, samples, calibration, patterns):
    """Return, for each kind of kernels, the SQNR with ever more layers in 16 bits."""
    exact = run(onnx.load(path), samples)
    found = [[] for _ in INT8_KERNELS]
    for pattern in patterns:
        overrides = {pattern: Override(activation=UINT16)} if pattern else {}
        model = as_proto(quantize(path, samples=calibration, overrides=overrides).model)
        pairs = [item.input[0] for item in model.graph.node if item.op_type == "QuantizeLinear"]
        assert len(pairs) == len(set(pairs))
        for figures, config in zip(found, INT8_KERNELS, strict=True):
            figures.append(sqnr(exact, run(model, samples, config=config)))
    return found


def test_digits_run_with_mixed_types_and_every_promoted_part_lowers_the_error():
    demo = bitwright.load_demo()
    samples = [{"image": image[None]} for image in demo.images[:40]]
    patterns = (None, "re:deep_.*", "re:(deep|pointwise|depthwise)_.*", "re:.*")
    for quality in quality_by_part(demo.model_path, samples, demo.calibration[:32], patterns):
        assert quality == sorted(quality) and quality[-1] > quality[0] + 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cls", "det", "rec"])
def test_real_text_models_are_closer_to_float_where_layers_are_promoted(kind):
    path, samples, _ = ocr_case(kind, 4)
    for plain, promoted in quality_by_part(path, samples, samples, (None, "Conv")):
        assert promoted > plain + 3
