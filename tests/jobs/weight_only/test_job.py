"""Whole weight-only jobs: every method, every form, plans, interruptions and bad input."""

import subprocess
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnx.reference
import onnxruntime
import pytest
from support import models as small_models
from support.language_models import VOCABULARY, make_block, make_samples
from support.models import INT64, build, info, node, weight

import bitwright
from bitwright import QuantPlan, Recipe, load_recipe
from bitwright.errors import DataError, ModelError, PlanError, RecipeError
from bitwright.numerics.blocks import SHRINKS, BlockFormat, quantize_in_blocks
from bitwright.recipe import AWQ, GPTQ, HQQ, Nearest, WeightOnly, WeightOverride


def run(weights, model=None, *, data=None, **options):
    recipe = Recipe(mode="weight-only", weights=weights)
    model = make_block() if model is None else model
    return bitwright.quantize(model, data=data, recipe=recipe, **options)


def error_of(result, model=None):
    """Relative squared error on samples that no calibration has seen."""
    model = make_block() if model is None else model
    sessions = [
        onnxruntime.InferenceSession(proto.SerializeToString())
        for proto in (model, result.to_proto())
    ]
    lost = signal = 0.0
    for sample in make_samples(6, seed=99):
        wanted, found = (session.run(None, sample)[0].astype(np.float64) for session in sessions)
        lost += float(((wanted - found) ** 2).sum())
        signal += float((wanted**2).sum())
    return lost / signal


BITS3 = {"bits": 3, "output": "float"}  # few enough for the methods to differ clearly


@pytest.fixture(scope="module")
def errors():
    data = make_samples(16)
    recipes = {
        "plain": WeightOnly(rounding=Nearest(clip=False), **BITS3),
        "nearest": WeightOnly(rounding=Nearest(weighted=False), **BITS3),
        "weighted": WeightOnly(rounding=Nearest(weighted=True), **BITS3),
        "refined": WeightOnly(rounding=Nearest(), refine=2, **BITS3),
        "hqq": WeightOnly(rounding=HQQ(), **BITS3),
        "gptq": WeightOnly(rounding=GPTQ(), **BITS3),
        "awq": WeightOnly(rounding=Nearest(), awq=AWQ(), **BITS3),
        "propagated": WeightOnly(rounding=GPTQ(), error_propagation=0.5, **BITS3),
        "all": WeightOnly(rounding=GPTQ(), awq=AWQ(), refine=2, **BITS3),
    }
    return {name: error_of(run(recipe, data=data)) for name, recipe in recipes.items()}


@pytest.mark.parametrize("method", ["nearest", "weighted", "gptq", "awq", "all"])
@pytest.mark.slow
def test_every_method_beats_plain_rounding(errors, method):
    assert errors[method] < errors["plain"]


def test_nearest_rounding_uses_data_that_it_is_given():
    model, data = make_block(), make_samples(16)
    found = bitwright.quantize(model, data=data, recipe="int4-rtn")
    assert found.plan.recipe.weights.rounding == Nearest(weighted=True)
    alone = {"base": "int4-rtn", "weights": {"rounding": {"weighted": False}}}
    plain = bitwright.quantize(model, data=data, recipe=alone)
    assert found.judgement.loss < 0.9 * plain.judgement.loss
    # Random numbers say nothing of what a layer reads, and 8 bits need no choice.
    drawn = bitwright.quantize(model, data=bitwright.RandomData(shapes={"n": 8}), recipe="int4-rtn")
    assert drawn.plan.recipe.weights.rounding == Nearest()
    wide = bitwright.quantize(model, data=data, recipe="int8-weights")
    assert wide.plan.recipe.weights.rounding == Nearest()


def test_methods_with_data_beat_those_without(errors):
    assert errors["gptq"] < 0.8 * errors["nearest"]
    assert errors["weighted"] < 0.8 * errors["nearest"]


def test_layers_that_make_up_for_errors_before_them_come_closer(errors):
    assert errors["propagated"] < errors["gptq"]


@pytest.mark.parametrize("alone", ["gptq", "awq", "refined", "weighted"])
def test_all_methods_together_are_better_than_each_alone(errors, alone):
    assert errors["all"] < errors[alone]


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("output", ["matmul-nbits", "qdq"])
def test_packed_forms_compute_what_the_rounded_floats_do(bits, output):
    if bits == 2 and output == "qdq":
        bits = 4  # 2-bit types came later than this model's opset
    options = {"bits": bits, "block_size": 32, "embeddings": output == "matmul-nbits"}
    floats = run(WeightOnly(output="float", **options))
    packed = run(WeightOnly(output=output, accuracy_level=0, **options))
    settings = onnxruntime.SessionOptions()
    settings.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    sample = make_samples(1)[0]
    wanted, found = (
        onnxruntime.InferenceSession(r.to_proto().SerializeToString(), settings).run(None, sample)[
            0
        ]
        for r in (floats, packed)
    )
    np.testing.assert_allclose(found, wanted, atol=2e-4 * np.abs(wanted).max())
    assert packed.size < 0.6 * floats.size


def test_int4_is_smaller_and_every_float_node_says_why():
    result = run(WeightOnly())
    assert result.quantized == {"MatMul": 7}
    assert all(node.reason for node in result.plan.nodes.values() if not node.quantized)
    assert result.outputs == []  # no data, nothing measured


@pytest.mark.slow
def test_samples_are_held_back_to_measure_on():
    result = run(WeightOnly(rounding=GPTQ()), data=make_samples(16))
    assert result.samples == 2
    assert result.samples_are_unseen
    assert result.outputs[0].sqnr > 15


@pytest.mark.slow
def test_layers_are_rounded_for_the_inputs_that_rounded_layers_give():
    data = make_samples(16)
    sequential = run(WeightOnly(rounding=GPTQ(), **BITS3), data=data)
    parallel = run(WeightOnly(rounding=GPTQ(), sequential=False, **BITS3), data=data)
    first, last = "gate0_rounded", "head_rounded"
    arrays = [
        {name: value.const_value.numpy() for name, value in r.model.graph.initializers.items()}
        for r in (sequential, parallel)
    ]
    # The first layer reads the same either way; the last does not.
    np.testing.assert_array_equal(arrays[0][first], arrays[1][first])
    assert (arrays[0][last] != arrays[1][last]).any()


@pytest.mark.slow
def test_awq_leaves_what_the_float_model_computes():
    # With 8 bits nothing is lost, so a wrong scale would show.
    assert error_of(run(WeightOnly(bits=8, awq=AWQ()), data=make_samples())) < 1e-4


def test_a_plan_can_be_saved_edited_and_applied(tmp_path):
    model, data = make_block(), make_samples()
    recipe = Recipe(mode="weight-only", weights=WeightOnly(rounding=GPTQ(), awq=AWQ()))
    plan = bitwright.make_plan(model, data=data, recipe=recipe)
    plan.save(tmp_path / "plan.json")
    again = bitwright.apply_plan(QuantPlan.load(tmp_path / "plan.json"), model, data=data)
    assert set(again.plan.weights) == {*plan.weights}
    head = plan.weights["head"]
    assert (head.bits, head.nodes) == (4, ("head/MatMul",))
    eight = msgspec.structs.replace(head, bits=8)
    edited = msgspec.structs.replace(plan, weights={**plan.weights, "head": eight})
    better = bitwright.apply_plan(edited, model, data=data)
    assert error_of(better) < error_of(again)
    with pytest.raises(DataError, match="needs calibration data"):
        bitwright.apply_plan(plan, model)


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path):
    weights, data = WeightOnly(rounding=GPTQ()), make_samples()

    class Interrupted(Exception):
        pass

    def stop_after_three(done, total):
        assert total == 7
        if done == 3:
            raise Interrupted

    with pytest.raises(Interrupted):
        run(weights, data=data, work=tmp_path / "work", progress=stop_after_three)
    seen = []
    resumed = run(weights, data=data, work=tmp_path / "work", progress=lambda *n: seen.append(n))
    assert len(seen) == 4
    plain = run(weights, data=data)
    assert resumed.to_proto().SerializeToString() == plain.to_proto().SerializeToString()
    with pytest.raises(DataError, match="another model"):
        run(WeightOnly(rounding=GPTQ(), bits=8), data=data, work=tmp_path / "work")


@pytest.mark.slow
def test_a_killed_run_goes_on_where_it_stopped(tmp_path):
    """No handler runs: what is in the folder is what was renamed into it, whole."""
    model, work = tmp_path / "m.onnx", tmp_path / "work"
    model.write_bytes(make_block().SerializeToString())
    script = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
import bitwright
from bitwright import Recipe
from bitwright.recipe import GPTQ, WeightOnly
from support.language_models import make_samples
recipe = Recipe(mode="weight-only", weights=WeightOnly(rounding=GPTQ()))
bitwright.quantize(
    {str(model)!r}, {str(tmp_path / "o.onnx")!r}, recipe=recipe, data=make_samples(),
    work={str(work)!r}, progress=lambda done, total: time.sleep(600 if done == 3 else 0),
)
"""
    process = subprocess.Popen([sys.executable, "-c", script])
    deadline = time.monotonic() + 120
    while len(list(work.glob("*.safetensors"))) < 3:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    process.kill()
    process.wait()
    assert not (tmp_path / "o.onnx").exists()
    seen = []
    weights, data = WeightOnly(rounding=GPTQ()), make_samples()
    resumed = run(weights, data=data, work=work, progress=lambda *n: seen.append(n))
    assert len(seen) == 4
    plain = run(weights, data=data)
    assert resumed.to_proto().SerializeToString() == plain.to_proto().SerializeToString()


def test_overrides_choose_by_name_and_pattern():
    result = run(
        WeightOnly(
            head_bits=8,
            overrides={
                "re:gate.*": WeightOverride(bits=8, symmetric=True),
                "down0/MatMul": WeightOverride(keep_float=True),
            },
        )
    )
    weights = result.plan.weights
    assert (weights["gate1"].bits, weights["gate1"].symmetric) == (8, True)
    assert weights["head"].bits == 8
    assert weights["up0"].bits == 4
    assert "down0" not in weights
    assert result.plan.nodes["down0/MatMul"].reason == "an override keeps it float"
    with pytest.raises(RecipeError, match=r"no node is called 'hed/MatMul'\. Did you mean"):
        run(WeightOnly(overrides={"hed/MatMul": WeightOverride(bits=8)}))


def test_a_tied_embedding_and_head_are_stored_once():
    model = make_block(tied=True)
    result = run(WeightOnly(embeddings=True, bits=8), model)
    names = [name for name in result.model.graph.initializers if name.startswith("embedding")]
    assert not any(name == "embedding" for name in names)
    stored = [
        value.const_value.nbytes
        for name, value in result.model.graph.initializers.items()
        if name.startswith("embedding_q8")
    ]
    assert stored == [VOCABULARY * 64]
    assert error_of(result, model) < 1e-3


@pytest.mark.parametrize("rounding", [Nearest(), GPTQ()])
def test_an_embedding_that_reads_the_weight_of_its_head_shares_it(rounding):
    """As onnxruntime-genai's builder writes it; else the table would stay in float as well."""
    model = make_block(tied="embedding")
    weights = WeightOnly(bits=8, rounding=rounding, accuracy_level=4)
    result = run(weights, model, data=make_samples())
    ops = [node.op_type for node in result.model.graph]
    assert "GatherBlockQuantized" in ops and not {"Gather", "MatMul", "Transpose"} & {*ops}
    assert "head" not in result.model.graph.initializers
    assert error_of(result, model) < 1e-3


def test_float16_models_stay_float16():
    model = make_block(dtype=np.float16)
    result = run(WeightOnly(rounding=GPTQ(), awq=AWQ()), model, data=make_samples())
    assert result.model.graph.outputs[0].dtype.name == "FLOAT16"
    scales = result.model.graph.initializers["head_scales"]
    assert scales.dtype.name == "FLOAT16"
    assert error_of(result, model) < 0.05


@pytest.mark.slow
def test_the_same_input_gives_the_same_bytes():
    weights, data = WeightOnly(rounding=GPTQ(), awq=AWQ(), refine=1), make_samples()
    one, other = (run(weights, data=data).to_proto().SerializeToString() for _ in range(2))
    assert one == other


def test_the_given_model_is_not_changed():
    model = make_block()
    before = model.SerializeToString()
    run(WeightOnly(rounding=GPTQ(), awq=AWQ()), model, data=make_samples())
    assert model.SerializeToString() == before


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"bits": 9}, "2 to 8 bits"),
        ({"block_size": 24}, "power of two"),
        ({"accuracy_level": 7}, "0..4"),
        ({"refine": -1}, "negative"),
    ],
)
def test_impossible_recipes_are_refused_at_once(weights, message):
    with pytest.raises(RecipeError, match=message):
        WeightOnly(**weights)


def test_options_of_other_modes_are_refused():
    with pytest.raises(RecipeError, match="per_channel has no effect in weight-only mode"):
        Recipe(mode="weight-only", per_channel=True)
    with pytest.raises(RecipeError, match="set mode='weight-only'"):
        Recipe(weights=WeightOnly(bits=8))
    with pytest.raises(RecipeError, match="for weight-only recipes"):
        bitwright.quantize(make_block(), recipe="int8", work="somewhere")


def test_missing_and_broken_data_are_refused():
    with pytest.raises(DataError, match="needs calibration data"):
        run(WeightOnly(rounding=GPTQ()))
    with pytest.raises(DataError, match="needs calibration data"):
        run(WeightOnly(rounding=Nearest(weighted=True)))
    with pytest.raises(DataError):
        run(WeightOnly(rounding=GPTQ()), data=[])


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_a_broken_weight_is_named(broken):
    values = weight(16, 4)
    values[3, 1] = broken
    product = node("MatMul", ["x", "w"], ["y"], name="product")
    model = build([product], {"x": [1, 16]}, {"y": [1, 4]}, {"w": values})
    with pytest.raises(ModelError, match=r"weight 'w' holds NaN or infinite.*'product'"):
        bitwright.quantize(model, recipe="int4-rtn")


def test_a_plan_of_another_model_is_refused():
    plan = bitwright.make_plan(make_block(), recipe=Recipe(mode="weight-only"))
    with pytest.raises(PlanError, match="another model"):
        bitwright.apply_plan(plan, make_block(depth=1))


def test_awq_can_scale_only_or_clip_only_and_leave_a_node_out():
    data = make_samples(16)
    plain = run(WeightOnly(rounding=Nearest(clip=False), **BITS3))
    for awq in (AWQ(clip=False), AWQ(scale=False)):
        found = run(WeightOnly(rounding=Nearest(clip=False), awq=awq, **BITS3), data=data)
        assert bool(found.plan.smoothing) is awq.scale
        assert error_of(found) < error_of(plain)
    left = run(
        WeightOnly(
            rounding=Nearest(clip=False),
            awq=AWQ(scale=False),
            overrides={"head/MatMul": WeightOverride(awq=False)},
            **BITS3,
        ),
        data=data,
    )
    arrays = [r.model.graph.initializers["head_rounded"].const_value.numpy() for r in (left, plain)]
    np.testing.assert_array_equal(*arrays)


def test_weighted_clipping_is_better_than_by_the_diagonal_and_leaves_tables_alone():
    """The plain reference: each block the best of 21 ranges, by the mean squares of its inputs."""
    inputs = np.random.default_rng(0).normal(size=(400, 64)) @ np.random.default_rng(1).normal(
        size=(64, 64)
    )
    moment = inputs.T @ inputs / len(inputs)
    w = weight(64, 24)
    nodes = [
        node("Gather", ["table", "at"], ["rows"], name="look"),
        node("Add", ["x", "rows"], ["sum"], name="sum"),
        node("MatMul", ["sum", "w"], ["y"], name="p"),
    ]
    wanted = [info("x", ["m", 64]), info("at", ["m"], INT64)]
    constants = {"w": w, "table": np.zeros((4, 64), np.float32)}
    model = build(nodes, wanted, {"y": ["m", 24]}, constants, opset=21)
    data = [{"x": inputs.astype(np.float32), "at": np.zeros(len(inputs), np.int64)}]
    weights = WeightOnly(rounding=Nearest(weighted=True), embeddings=True, output="float")
    result = run(weights, model, data=data, holdout=False)
    found = result.model.graph.initializers["w_rounded"].const_value.numpy()
    diagonal = quantize_in_blocks(w, BlockFormat(), shrinks=SHRINKS, metric=np.diag(moment))
    errors = [
        np.einsum("kn,kl,ln->", change, moment, change)
        for change in (found - w, diagonal.dequantize() - w)
    ]
    assert errors[0] < 0.9 * errors[1]
    assert result.plan.weights["table"].rounding == Nearest()


def test_nearest_keeps_the_part_of_a_range_that_is_asked_for():
    whole, part = (
        run(WeightOnly(rounding=Nearest(clip=False, shrink=shrink)))
        .model.graph.initializers["head_scales"]
        .const_value.numpy()
        for shrink in (1.0, 0.5)
    )
    np.testing.assert_allclose(part, whole / 2, rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Nearest(shrink=0.5), "what clip searches"),
        (lambda: Nearest(clip=False, shrink=0), r"\(0, 1\]"),
        (lambda: Nearest(clip=False, weighted=True), "how clip is judged"),
        (lambda: AWQ(scale=False, clip=False), "does nothing"),
        (lambda: WeightOnly(rounding=GPTQ(per_column=False), refine=1), "one for all"),
        (lambda: WeightOnly(rounding=GPTQ(per_column=False), awq=AWQ()), "one for all"),
    ],
)
def test_contradictory_methods_are_refused(make, message):
    with pytest.raises(RecipeError, match=message):
        make()


def test_float4_weights_are_those_that_onnx_reads_and_are_measured_in_float():
    model = small_models.make_transformer()
    samples = small_models.make_samples(model, 2)
    made = bitwright.quantize(model, data=samples, target="nvidia-tensorrt:nvfp4", holdout=False)
    assert any("activations stay float" in note for note in made.plan.notes)
    assert made.model.opset_imports[""] == 23
    assert any("the same numbers in float32" in note for note in made.plan.notes)
    proto = made.to_proto()
    onnx.checker.check_model(proto, full_check=True)
    evaluated = onnx.reference.ReferenceEvaluator(proto)
    lost = signal = 0.0
    for sample in samples:
        wanted, found = small_models.run(model, sample)[0], evaluated.run(None, sample)[0]
        lost += float(((wanted - found) ** 2).sum())
        signal += float((wanted**2).sum())
    # ONNX's reference computes the file itself, ONNX Runtime the same numbers in float.
    assert made.outputs[0].sqnr == pytest.approx(10 * np.log10(signal / lost), abs=0.1)
    stored = [t for t in proto.graph.initializer if t.data_type == onnx.TensorProto.FLOAT4E2M1]
    assert len(stored) == 6


@pytest.mark.parametrize(
    "change", [{"block_size": 32}, {"bits": 8}, {"symmetric": False}, {"refine": 1}]
)
def test_float4_refuses_what_it_has_not(change):
    recipe = load_recipe(None, "nvidia-tensorrt:nvfp4")
    with pytest.raises(RecipeError, match="the output nvfp4"):
        recipe.replace(weights=change)


def test_tables_that_are_most_of_a_model_and_stay_float_are_noted():
    encoder = build(
        [
            node("Gather", ["table", "ids"], ["x"], "embed"),
            node("MatMul", ["x", "w"], ["y"], "product"),
        ],
        [info("ids", [1, "n"], INT64)],
        [info("y", [1, "n", 64])],
        {"table": weight(500, 64), "w": weight(64, 64)},
        opset=21,
    )
    note = "tables of embeddings are 89% of the weights and stay float; weights.embeddings=true"
    result = bitwright.quantize(encoder, recipe="int4-rtn")
    assert any(note in each for each in result.plan.notes)
    stored = {"base": "int4-rtn", "weights": {"embeddings": True}}
    result = bitwright.quantize(encoder, recipe=stored)
    assert not any("of the weights and stay float" in each for each in result.plan.notes)
    assert result.size < result.float_size / 4
