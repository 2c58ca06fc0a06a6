"""The rules of a target read forward: its own recipe, and what becomes of a recipe for it."""

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from support.models import (
    build,
    make_cnn,
    make_mlp,
    make_samples,
    make_transformer,
    node,
    normal,
    weight,
)
from support.target_models import fix_batch, make_gates, make_yolo

import bitwright
from bitwright import load_recipe
from bitwright.errors import TargetError
from bitwright.numerics.types import FLOAT8E4M3FN, INT8, UINT8, UINT16
from bitwright.recipe import RECIPES, Recipe, host, named_recipe
from bitwright.targets import TARGETS, find_target
from bitwright.verification.fitting import fit_recipe, why_unfit

EVERY = [
    f"{name}:{variant}" if variant else name
    for name, target in TARGETS.items()
    for variant in ("", *target.variants)
    if target.modes != ()
]


@pytest.mark.parametrize("name", EVERY)
def test_the_recipe_of_every_target_and_variant_keeps_its_own_rules(name):
    recipe = load_recipe(None, name)
    target = find_target(name)
    assert recipe.name == (name if target.rules else target.recipe)
    assert Recipe.from_json(recipe.to_json()) == recipe
    assert load_recipe(recipe, name) == recipe


def test_a_target_that_runs_nothing_quantized_has_no_recipe():
    with pytest.raises(TargetError, match="coreml runs nothing that is quantized"):
        load_recipe(None, "coreml")


def test_low_bit_weights_have_the_scales_that_a_target_takes():
    assert load_recipe("int4", "nvidia-tensorrt:int4").weights.positive_scales
    assert not load_recipe("int4", "cpu").weights.positive_scales


def test_channels_are_where_the_architecture_has_them():
    assert "MatMul" in load_recipe("int8-per-channel", "qualcomm-htp:v68").place.per_tensor_ops
    assert "Conv" in load_recipe(None, "qualcomm-htp:v66").place.per_tensor_ops
    assert "MatMul" not in load_recipe(None, "qualcomm-htp:v69").place.per_tensor_ops


def test_known_results_have_the_scale_of_the_hardware():
    ranges = load_recipe("a16w8", "qualcomm-htp").output_ranges
    assert ranges["Sigmoid"] == (0.0, 65535 / 65536)
    assert ranges["Tanh"] == (-1.0, 32767 / 32768)


def test_tensorrt_has_float_biases_and_symmetric_activations():
    recipe = load_recipe(None, "nvidia-tensorrt")
    assert (recipe.activation, recipe.activation_symmetric) == (INT8, True)
    assert not recipe.quantize_bias
    assert load_recipe(None, "nvidia-tensorrt:fp8").weight == FLOAT8E4M3FN


@pytest.mark.parametrize(
    ("recipe", "target", "said"),
    [
        ("int8", "nvidia-tensorrt", "uint8 activations, and not int8"),
        (Recipe(activation=INT8), "nvidia-tensorrt", "asymmetric activations"),
        ("int8-symmetric", "qualcomm-htp", "int8 activations, and not uint8 or uint16"),
        ("int8-dynamic", "qualcomm-htp", "the mode dynamic"),
        ("int8", "webgpu", "the mode static"),
        (Recipe(format="qoperator"), "nvidia-tensorrt", "the format qoperator"),
    ],
)
def test_a_recipe_that_a_target_does_not_take_is_refused_with_the_reason(recipe, target, said):
    with pytest.raises(TargetError, match=said):
        load_recipe(recipe, target)


def test_a_file_that_contradicts_itself_is_refused(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'name = "mine"\ndescription = "A test."\nrecipe = "int8"\n'
        '[settings]\nactivation = "int16"\n'
        '[rules.types]\nkind = "types"\nconsequence = "refused"\nrole = "activation"\n'
        'types = ["uint8"]\n'
    )
    with pytest.raises(TargetError, match="contradicts itself: its recipe has int16 activations"):
        load_recipe(None, str(path))


def test_other_limits_than_those_of_the_npu_are_not_planned_for(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'name = "mine"\ndescription = "A test."\nrecipe = "npu-cnn"\n'
        '[[limits]]\nname = "shift_cut"\n'
        'ops = ["Conv"]\nbounds = [{ sum = "weight + input - output", gives_way = ["weight"] }]\n'
    )
    with pytest.raises(TargetError, match="can be verified, but not planned for"):
        load_recipe("npu-cnn", str(path))


def test_the_opset_is_chosen_by_the_target():
    model = make_cnn(opset=13)
    given = {"data": make_samples(model, 2), "holdout": False, "effort": "low"}
    for target, opset in (("arm-cpu", 13), ("nvidia-tensorrt", 19), ("nvidia-tensorrt:fp8", 19)):
        made = bitwright.quantize(model, target=target, **given)
        assert made.model.opset_imports[""] == opset
    assert load_recipe("int8-symmetric", "nvidia-tensorrt").opset == 19
    higher = load_recipe("int8-symmetric").replace(opset=20)
    assert load_recipe(higher, "nvidia-tensorrt").opset == 20
    assert bitwright.quantize(model, recipe=higher, **given).model.opset_imports[""] == 20
    assert load_recipe(None, "nvidia-tensorrt:int4").opset == 19  # and int4 itself asks for 21


def test_open_sizes_are_told_where_the_target_takes_none():
    model = make_mlp()
    given = {"data": make_samples(model, 2), "holdout": False, "effort": "low"}
    for target in ("qualcomm-htp", "intel-openvino:npu"):
        made = bitwright.quantize(model, target=target, **given)
        assert any("has open sizes" in note and "--fix-shape" in note for note in made.plan.notes)
        assert {f.rule for f in bitwright.verify(made.model, target).errors} == {"static_shapes"}
        recipe = load_recipe(None, target)
        recipe = recipe.replace(rewrite={"fix_shapes": {"n": 4}})
        fixed = bitwright.quantize(model, recipe=recipe, **given)
        assert not any("has open sizes" in note for note in fixed.plan.notes)
        assert bitwright.verify(fixed.model, target).ok
    plain = bitwright.quantize(model, target="arm-cpu", **given)
    assert not any("open sizes" in note for note in plain.plan.notes)


def test_the_skip_of_a_residual_is_quantized_for_tensorrt_and_nothing_else_of_it():
    model = make_cnn(channels=16)
    made = bitwright.quantize(
        model, data=make_samples(model, 2), target="nvidia-tensorrt", holdout=False, effort="low"
    )
    add = next(node for node in made.model.graph if node.op_type == "Add")
    assert [value.producer().op_type for value in add.inputs] == ["Conv", "DequantizeLinear"]
    assert made.plan.nodes[add.name].outputs == (None,)
    skip = add.inputs[1].producer().inputs[0].producer().inputs[0].name
    # The same pair that the convolution reads.
    assert skip in made.plan.nodes["conv2"].inputs
    found = bitwright.verify(made.model, "nvidia-tensorrt").findings
    assert "residual" not in {finding.rule for finding in found}
    recipe = load_recipe(None, "nvidia-tensorrt").replace(place={"residual_inputs": False})
    other = bitwright.quantize(model, data=make_samples(model, 2), recipe=recipe, holdout=False)
    found = bitwright.verify(other.model, "nvidia-tensorrt").warnings
    told = [(f.node, f.found) for f in found if f.rule == "residual"]
    assert told == [(add.name, f"the skip {skip!r} in float")]


def made_without_target(recipe, monkeypatch, cpu):
    monkeypatch.setattr(host, "detect_cpu", lambda: cpu)
    model = make_cnn()
    return bitwright.quantize(model, data=make_samples(model, 2), recipe=recipe, holdout=False)


@pytest.mark.parametrize("format", ["qdq", "qoperator"])
@pytest.mark.parametrize(("cpu", "expected"), [("vnni", UINT8), ("avx2", UINT8), ("arm", INT8)])
def test_without_a_target_the_machine_decides_and_a_note_says_so(
    monkeypatch, cpu, expected, format
):
    recipe = load_recipe("int8-symmetric").replace(format=format)
    plan = made_without_target(recipe, monkeypatch, cpu).plan
    assert {t.qtype for t in plan.tensors.values() if t.role == "activation"} == {expected}
    told = [note for note in plan.notes if "as uint8" in note]
    assert bool(told) == (expected == UINT8)
    assert not told or "the target arm-cpu keeps int8" in told[0]


def test_what_is_said_or_placed_for_an_accelerator_stays_int8(monkeypatch):
    for recipe in (
        load_recipe("int8-symmetric").replace(place={"unsigned_activations": False}),
        load_recipe("a8w8"),  # Quark's
        load_recipe("int8-symmetric", "npu-transformer"),
        load_recipe(None, "nvidia-tensorrt"),
    ):
        plan = made_without_target(recipe, monkeypatch, "vnni").plan
        assert INT8 in {t.qtype for t in plan.tensors.values() if t.role == "activation"}
        assert not any("as uint8" in note for note in plan.notes)


def test_int8_activations_become_uint8_for_x86_with_the_same_numbers():
    model = make_cnn()
    name = model.graph.input[0].name
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    data = [{name: normal(*shape, seed=seed)} for seed in range(4)]
    made = {
        target: bitwright.quantize(
            model, data=data, recipe="int8-symmetric", target=target, holdout=False
        )
        for target in ("arm-cpu", "x86-vnni")
    }
    types = {
        target: {t.qtype for t in one.plan.tensors.values() if t.role == "activation"}
        for target, one in made.items()
    }
    assert types == {"arm-cpu": {INT8}, "x86-vnni": {UINT8}}
    for key, entry in made["arm-cpu"].plan.tensors.items():
        moved = made["x86-vnni"].plan.tensors[key]
        assert moved.scale == entry.scale
        if entry.role == "activation" and entry.zero_point is not None:
            assert moved.zero_point == entry.zero_point + 128
    outputs = []
    for one in made.values():
        options = onnxruntime.SessionOptions()
        # Pair by pair, so that both compute the same float arithmetic.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        proto = ir.to_proto(one.model).SerializeToString()
        session = onnxruntime.InferenceSession(proto, options)
        outputs.append(session.run(None, data[0])[0])
    assert np.array_equal(*outputs)
    # Symmetric as they are, they leave the Relu to do its work; all else is integers on x86.
    found = bitwright.verify(made["x86-vnni"].model, "x86-vnni").findings
    assert {(finding.rule, finding.values["op"]) for finding in found} == {("unfused", "Relu")}
    signed = bitwright.verify(made["arm-cpu"].model, "x86-vnni").findings
    assert {finding.rule for finding in signed} == {"unfused", "signed_readers"}
    assert {"Conv", "Add"} <= {finding.values.get("op") for finding in signed}


def test_names_of_recipes_and_targets_do_not_collide_by_accident():
    same = {*RECIPES} & {*TARGETS}
    assert same == {"npu-cnn", "npu-transformer"}
    assert load_recipe("a16w8", "qualcomm-htp").activation == UINT16


def test_a_target_of_node_units_gets_pairs_on_all_sides(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'name = "mine"\ndescription = "A test."\nrecipe = "int8"\nextends = "node-units"\n'
    )
    model = make_gates()
    made = bitwright.quantize(model, data=make_samples(model, 2), target=str(path), effort="low")
    assert bitwright.verify(made.model, str(path)).ok
    plain = bitwright.quantize(model, data=make_samples(model, 2), recipe="int8")
    broken = {finding.rule for finding in bitwright.verify(plain.model, str(path)).errors}
    assert broken == {"node_unit"}


def quantized_for(model, target, recipe=None, **options):
    return bitwright.quantize(
        model,
        data=make_samples(model, 2),
        target=target,
        recipe=recipe,
        holdout=False,
        effort="low",
        **options,
    )


def test_norms_have_asymmetric_weights_on_htp():
    made = quantized_for(make_transformer(), "qualcomm-htp")
    norms = [n for n in made.plan.nodes.values() if n.op == "LayerNormalization"]
    assert norms
    for norm in norms:
        stored = made.plan.tensors[norm.inputs[1]]
        assert (stored.qtype, stored.axis) == (UINT8, None)
    assert made.plan.tensors["w_q"].qtype == INT8


def test_second_factors_of_wide_products_are_read_in_8_bits_on_htp():
    made = quantized_for(make_transformer(), "qualcomm-htp", "a16w8")
    found = {name: node.inputs for name, node in made.plan.nodes.items() if node.op == "MatMul"}
    for name in ("scores", "context_matmul"):
        first, second = (made.plan.tensors[key] for key in found[name])
        assert (first.qtype, second.qtype) == (UINT16, UINT8)
        assert second.source is not None  # one more pair behind that of 16 bits
    assert bitwright.verify(made.model, "qualcomm-htp").ok
    plain = quantized_for(make_transformer(), None, "a16w8")
    rules = {f.rule for f in bitwright.verify(plain.model, "qualcomm-htp").errors}
    assert "wide_products" in rules


def test_wide_weights_beside_wide_activations_are_refused_for_htp():
    recipe = load_recipe("a16w8").replace(weight="int16")
    with pytest.raises(TargetError, match="uint16 activations with int16 weights"):
        load_recipe(recipe, "qualcomm-htp")


def test_blocks_are_for_wide_activations_on_htp():
    blocks = load_recipe("a16w8").replace(weight="int4", block_size=16)
    made = quantized_for(make_transformer(), "qualcomm-htp", blocks)
    assert not bitwright.verify(made.model, "qualcomm-htp").findings
    assert bitwright.inspect(made.model).scales["per block"] == 6
    for other, said in (
        (blocks.replace(activation="uint8"), "blocks beside uint8 activations"),
        (blocks.replace(block_size=12), "int4 weights in blocks of 12"),
    ):
        with pytest.raises(TargetError, match=said):
            load_recipe(other, "qualcomm-htp")


def test_inputs_of_sums_have_one_scale_on_intels_npu():
    model = make_cnn()
    scales = {}
    for variant in ("cpu", "npu"):
        plan = quantized_for(model, f"intel-openvino:{variant}").plan
        add = next(node for node in plan.nodes.values() if node.op == "Add")
        scales[variant] = {plan.tensors[plan.root(key)].scale for key in add.inputs}
    assert len(scales["cpu"]) == 2 and len(scales["npu"]) == 1


def test_products_that_are_too_small_stay_float_for_tensorrt_unless_there_are_no_others():
    made = quantized_for(make_cnn(channels=16), "nvidia-tensorrt")
    assert made.plan.nodes["conv2"].action == "quantize"
    assert "16 values a channel, 10 channels" in made.plan.nodes["fc"].reason
    made = quantized_for(make_gates(), "nvidia-tensorrt")
    assert made.plan.nodes["first"].action == "quantize"
    assert any("too small to be faster" in note for note in made.plan.notes)
    kept = load_recipe(None, "nvidia-tensorrt").replace(select={"sizes": ()})
    model = make_cnn(channels=16)
    plan = bitwright.make_plan(model, data=make_samples(model, 2), recipe=kept)
    assert plan.nodes["fc"].action == "quantize"


def test_masks_stay_float_on_htp_and_are_named():
    model = make_transformer(mask=-10000.0)
    made = quantized_for(model, "qualcomm-htp")
    found = bitwright.verify(made.model, "qualcomm-htp")
    assert found.ok
    kept = {name for name, one in made.plan.nodes.items() if one.action == "float"}
    assert kept and {finding.node for finding in found.warnings} <= kept
    assert {finding.rule for finding in found.warnings} <= {"node_unit", "float_operators"}


def test_forms_that_htp_does_not_take_are_rewritten():
    made = quantized_for(make_yolo(), "qualcomm-htp")
    resize = next(node for node in made.model.graph if node.op_type == "Resize")
    assert resize.attributes.get_string("nearest_mode") == "floor"
    rewrite = load_recipe("a16w8", "qualcomm-htp").rewrite
    assert rewrite.pads_of_all_axes and rewrite.positive_indices


def test_htp_gets_pairs_on_operators_that_others_leave_float():
    nodes = [
        node("MatMul", ["x", "w"], ["a"], name="product"),
        node("Exp", ["a"], ["b"], name="exp"),
        node("Sqrt", ["b"], ["c"], name="sqrt"),
        node("Max", ["c", "a"], ["y"], name="max"),
    ]
    model = build(nodes, {"x": [4, 8]}, {"y": [4, 8]}, {"w": weight(8, 8, seed=1)})
    made = quantized_for(model, "qualcomm-htp")
    assert all(one.action == "quantize" for one in made.plan.nodes.values())
    found = bitwright.verify(made.model, "qualcomm-htp")
    assert not found.findings
    plain = quantized_for(model, None, "int8")
    rules = {f.rule for f in bitwright.verify(plain.model, "qualcomm-htp").findings}
    assert "float_operators" in rules


@pytest.mark.parametrize(
    ("target", "output", "block_size", "symmetric"),
    [
        ("cpu", "matmul-nbits", 32, False),
        ("nvidia-tensorrt", "qdq", 32, True),
        ("intel-openvino:cpu", "matmul-nbits", 32, False),
        ("intel-openvino:npu", "qdq-transposed", -1, True),
    ],
)
def test_low_bit_weights_are_written_as_a_target_takes_them(target, output, block_size, symmetric):
    weights = load_recipe("int4-rtn", target).weights
    assert (weights.output, weights.block_size) == (output, block_size)
    assert weights.symmetric == symmetric
    made = bitwright.quantize(fix_batch(make_mlp()), recipe="int4-rtn", target=target)
    assert not bitwright.verify(made.model, target).findings


def test_low_bit_weights_that_a_target_has_no_form_for_are_refused():
    recipe = load_recipe("int4-rtn").replace(weights={"bits": 2})
    with pytest.raises(TargetError, match="weights of 2 bits, and not 4 or 8"):
        load_recipe(recipe, "webgpu")


def test_recipes_are_fitted_to_rules_or_said_to_be_unfit():
    fitted = fit_recipe(named_recipe("a16w8"), find_target("qualcomm-htp:v68"))
    assert fitted.place.per_tensor_ops == (
        "Gemm",
        "InstanceNormalization",
        "LayerNormalization",
        "MatMul",
        "RMSNormalization",
    )
    assert why_unfit(named_recipe("int8"), find_target("nvidia-tensorrt")) == (
        "uint8 activations, and not int8, float8e4m3fn or float4e2m1"
    )
