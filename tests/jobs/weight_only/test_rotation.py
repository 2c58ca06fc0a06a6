"""Rotation as a step of weight-only jobs: asked for, chosen by samples, kept in the plan."""

from __future__ import annotations

import msgspec
import numpy as np
import onnx
import pytest
from support.language_models import GROUPS, HEAD, make_block, make_llama, make_samples
from support.models import constants_of, info, tensors

import bitwright
from bitwright import PlanError, QuantPlan, RandomData, Recipe
from bitwright.plan import Rotation
from bitwright.recipe import AWQ, GPTQ, Nearest, WeightOnly

ROTATED = Rotation(seed=0, streams=("hadamard",), attentions=1)
SAMPLES = make_samples(4, length=24)
CACHED = [
    sample
    | {
        f"past.attention0.{part}": np.zeros((1, GROUPS, 0, HEAD), np.float32)
        for part in ("key", "value")
    }
    for sample in SAMPLES
]


def recipe_of(**options):
    return Recipe(mode="weight-only", weights=WeightOnly(**options))


def run(model, data=None, **options):
    data = SAMPLES if data is None else data
    return bitwright.quantize(model, data=data, recipe=recipe_of(**options))


def notes_of(result, start):
    return [note for note in result.plan.notes if note.startswith(start)]


def on_a_grid(model):
    """Give a model weights that 4 bits hold exactly: to rotate them can only do harm."""
    rng = np.random.default_rng(0)
    for name, array in constants_of(model).items():
        if array.ndim == 2:
            codes = rng.integers(0, 16, array.shape)
            codes[0::16], codes[1::16] = 0, 15
            values = ((codes - 8) / 64).astype(np.float32)
            (tensor,) = tensors({name: values})
            next(t for t in model.graph.initializer if t.name == name).CopyFrom(tensor)
    return model


def test_a_rotated_model_with_outliers_loses_less():
    model = make_llama(depth=1, tied=True)
    plain, rotated = (run(model, rotate=rotate) for rotate in (False, True))
    assert plain.plan.rotation is None and rotated.plan.rotation == ROTATED
    assert rotated.outputs[0].sqnr > plain.outputs[0].sqnr + 5
    assert notes_of(rotated, "rotated the residual stream, width 64 (hadamard)")


def test_auto_rotates_where_less_is_lost_and_gives_both_figures():
    model = make_llama(depth=1, tied=True)
    result = run(model, rotate="auto")
    assert result.plan.rotation == ROTATED
    (note,) = notes_of(result, "rotated: ")
    before, after = (
        run(model, rotate=rotate, rounding=Nearest(weighted=False), output="float")
        .outputs[0]
        .judged
        for rotate in (False, True)
    )
    for judged in (before, after):
        assert f"{100 * judged.loss:#.3g}" in note
        assert f"{judged.worst.figure:.3g}" in note


def test_auto_leaves_a_model_as_it_is_where_a_rotation_does_harm():
    model = on_a_grid(make_llama(depth=1))
    result = run(model, rotate="auto")
    assert result.plan.rotation is None and notes_of(result, "not rotated: rounded to nearest")
    assert result.outputs[0].sqnr > run(model, rotate=True).outputs[0].sqnr + 20
    found, expected = (constants_of(each.to_proto()) for each in (result, run(model)))
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], expected[name]) for name in found)


@pytest.mark.parametrize("data", [None, RandomData(shapes={"ids": (1, 8)})])
def test_without_real_samples_auto_does_not_rotate(data):
    result = bitwright.quantize(make_llama(depth=1), data=data, recipe=recipe_of(rotate="auto"))
    assert result.plan.rotation is None
    assert notes_of(result, "not rotated: there are no real samples")


def test_a_model_too_large_to_run_is_not_tried(monkeypatch):
    monkeypatch.setattr(bitwright.graph, "MAX_HELD_BYTES", 0)
    result = run(make_llama(depth=1), rotate="auto")
    assert result.plan.rotation is None and notes_of(result, "not rotated: too large")


@pytest.mark.slow
def test_data_that_can_be_read_once_is_enough():
    result = run(make_llama(depth=1), data=iter(SAMPLES), rotate="auto", rounding=GPTQ())
    again = run(make_llama(depth=1), rotate="auto", rounding=GPTQ())
    assert result.plan == again.plan


@pytest.mark.slow
def test_a_plan_gives_the_same_bytes_again(tmp_path):
    model, data = make_llama(depth=1, tied=True), SAMPLES
    recipe = recipe_of(rotate="auto", rounding=GPTQ(), awq=AWQ())
    first = bitwright.quantize(model, data=data, recipe=recipe)
    first.plan.save(tmp_path / "plan.json")
    plan = QuantPlan.load(tmp_path / "plan.json")
    assert plan.rotation == ROTATED
    again = bitwright.apply_plan(plan, model, data=data)
    assert again.to_proto().SerializeToString() == first.to_proto().SerializeToString()


def test_a_plan_that_rotates_something_else_is_refused():
    model = make_llama(depth=1)
    plan = bitwright.make_plan(model, recipe=recipe_of(rotate=True))
    other = msgspec.structs.replace(plan, rotation=Rotation(seed=0, attentions=5))
    wanted = "rotates 0 residual streams and 5 attentions, .* 1 residual stream and 1 attention "
    with pytest.raises(PlanError, match=wanted):
        bitwright.apply_plan(other, model)


def test_models_that_share_a_cache_keep_it_as_it_is(tmp_path):
    model = make_llama(depth=1, cache=True)
    result = run(model, rotate=True, rotate_caches=False, data=CACHED)
    assert result.plan.rotation == Rotation(seed=0, streams=("hadamard",), attentions=0)
    for name in ("decoder.onnx", "decoder_with_past.onnx"):
        onnx.save(model, tmp_path / name)
    both = bitwright.quantize(tmp_path, recipe=recipe_of(rotate=True))
    rotations = [each.plan.rotation for each in both.results.values()]
    assert rotations == [result.plan.rotation] * 2
    (tmp_path / "decoder.onnx").unlink()
    alone = bitwright.quantize(tmp_path, recipe=recipe_of(rotate=True))
    assert alone.results["decoder_with_past.onnx"].plan.rotation == ROTATED


def test_what_is_in_the_way_is_a_note():
    model = make_block()
    model.graph.output.append(info("x1"))
    result = run(model, rotate=True)
    assert notes_of(result, "the residual stream is not rotated: 'x1' is an output of the model")
    assert result.plan.rotation is None


def test_tables_of_a_head_that_was_tied_stay_quantized():
    rotated = run(make_llama(depth=1, tied=True), rotate=True).to_proto()
    kinds = {node.op_type for node in rotated.graph.node}
    assert "GatherBlockQuantized" in kinds
    given = run(make_llama(depth=1, tied=True), rotate=True, embeddings=False).to_proto()
    assert "Gather" in {node.op_type for node in given.graph.node}
    assert "GatherBlockQuantized" not in {node.op_type for node in given.graph.node}
