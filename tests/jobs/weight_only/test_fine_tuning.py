"""AdaRound and SignRound for weights in blocks of few bits."""

from __future__ import annotations

import json

import numpy as np
import onnxruntime
import pytest
from support.language_models import make_block, make_samples

import bitwright
from bitwright.errors import DataError, RecipeError
from bitwright.numerics.blocks import QuantizedBlocks
from bitwright.recipe import GPTQ, HQQ, AdaQuant, AdaRound, Nearest, Recipe, SignRound, WeightOnly
from bitwright.rounding.store import BlockStore

pytest.importorskip("torch", reason="fine-tuning needs torch")

LEARN = AdaRound(iterations=60, batch_size=8)
SIGNS = SignRound(iterations=60)


def run(rounding, learn=LEARN, *, bits=4, output="matmul-nbits", data=24, emulate=None, **options):
    weights = WeightOnly(bits=bits, block_size=32, rounding=rounding, output=output)
    recipe = Recipe(mode="weight-only", weights=weights, fine_tune=learn, emulate=emulate or {})
    samples = make_samples(data) if data else None
    return bitwright.quantize(
        make_block(), data=samples, recipe=recipe, holdout=False, progress=False, **options
    )


def error_of(result):
    """Relative squared error in ONNX Runtime, on samples that nothing was learned from."""
    sessions = [
        onnxruntime.InferenceSession(proto.SerializeToString())
        for proto in (make_block(), result.to_proto())
    ]
    lost = signal = 0.0
    for sample in make_samples(6, seed=99):
        wanted, found = (session.run(None, sample)[0].astype(np.float64) for session in sessions)
        lost += float(((wanted - found) ** 2).sum())
        signal += float((wanted**2).sum())
    return lost / signal


@pytest.mark.parametrize("output", ["matmul-nbits", "qdq"])
@pytest.mark.sampled(1)
def test_learned_roundings_lose_less_than_the_nearest(output):
    plain, learned = (run(Nearest(), method, output=output) for method in (None, LEARN))
    assert error_of(learned) < 0.8 * error_of(plain)
    assert any(note.startswith("fine-tuned") for note in learned.plan.notes)
    ops = {node.op_type for node in learned.to_proto().graph.node}
    assert ("MatMulNBits" if output == "matmul-nbits" else "DequantizeLinear") in ops


@pytest.mark.slow
def test_a_work_folder_keeps_what_was_learned(tmp_path):
    first = run(Nearest(), work=tmp_path / "work")
    store = tmp_path / "work" / "tuned"
    before = {path: path.stat().st_mtime_ns for path in store.iterdir()}
    again = run(Nearest(), work=tmp_path / "work")
    assert before == {path: path.stat().st_mtime_ns for path in store.iterdir()}
    assert again.to_proto().graph == first.to_proto().graph


@pytest.mark.slow
def test_scales_stay_and_codes_move_by_one_at_most(tmp_path):
    run(Nearest(), work=tmp_path / "work")
    folders = (tmp_path / "work", tmp_path / "work" / "tuned")
    job = json.loads((folders[0] / "job.json").read_text())["job"]
    rounded, tuned = (BlockStore(folder, job=job) for folder in folders)
    moved = 0
    for name in ("gate0", "up1", "down1", "head"):
        pair: list[QuantizedBlocks] = [store.get(name) for store in (rounded, tuned)]
        np.testing.assert_array_equal(pair[0].scales, pair[1].scales)
        steps = np.abs(pair[0].codes.astype(int) - pair[1].codes)
        assert steps.max() <= 1
        moved += int(steps.sum())
    assert moved > 0


@pytest.mark.slow
def test_signround_loses_clearly_less_than_gptq_at_2_bits():
    plain, learned, again = (run(GPTQ(), method, bits=2) for method in (None, SIGNS, SIGNS))
    assert error_of(learned) < 0.8 * error_of(plain)
    assert learned.to_proto().graph == again.to_proto().graph  # of one seed
    assert "fine-tuned 1 of 1 segment" in learned.plan.notes


@pytest.mark.slow
def test_signround_leaves_a_head_of_8_bits():
    weights = WeightOnly(bits=2, rounding=Nearest(weighted=True), head_bits=8, output="float")
    recipe = Recipe(mode="weight-only", weights=weights, fine_tune=SIGNS)
    plain, learned = (
        bitwright.quantize(make_block(), data=make_samples(8), recipe=r, holdout=False)
        for r in (recipe.replace(fine_tune=None), recipe)
    )
    note = "fine-tuning: head/MatMul: left as it was, weights of 8 bits have next to nothing"
    assert any(n.startswith(note) for n in learned.plan.notes)
    assert "fine-tuned 1 of 2 segments" in learned.plan.notes
    initializers = (r.to_proto().graph.initializer for r in (plain, learned))
    same = {one.name: one == other for one, other in zip(*initializers, strict=True)}
    changed = {name.partition("_")[0] for name, is_same in same.items() if not is_same}
    assert changed == {f"{name}{layer}" for name in ("gate", "up", "down") for layer in (0, 1)}


@pytest.mark.slow
def test_signround_that_does_not_help_leaves_what_was_rounded():
    wild = SignRound(iterations=2, learning_rate=0.5)
    plain, learned, forced = (
        run(GPTQ(), method, emulate={"fine_tune": {"selective": selective}})
        for method, selective in ((None, True), (wild, True), (wild, False))
    )
    assert learned.to_proto().graph.initializer == plain.to_proto().graph.initializer
    assert any("not kept" in note for note in learned.plan.notes)
    assert error_of(forced) > error_of(plain)


@pytest.mark.slow
def test_a_plan_with_signround_gives_the_same_model(tmp_path):
    weights = WeightOnly(bits=3, rounding=Nearest(weighted=True), output="float")
    recipe = Recipe(mode="weight-only", weights=weights, fine_tune=SignRound(iterations=5))
    samples = make_samples(8)
    bitwright.make_plan(make_block(), data=samples, recipe=recipe).save(tmp_path / "plan.json")
    plan = bitwright.QuantPlan.load(tmp_path / "plan.json")
    assert plan.recipe == recipe
    applied = bitwright.apply_plan(plan, make_block(), data=samples)
    direct = bitwright.quantize(make_block(), data=samples, recipe=recipe)
    assert applied.to_proto().graph == direct.to_proto().graph


def test_zero_points_between_integers_are_left_with_the_reason():
    result = run(HQQ(float_zero_points=True), output="float")
    notes = [note for note in result.plan.notes if note.startswith("fine-tuning: ")]
    assert notes and all("its zero points are no integers" in note for note in notes)


def test_what_has_no_meaning_here_is_refused():
    with pytest.raises(DataError, match="needs calibration data"):
        run(Nearest(), data=0)
    with pytest.raises(RecipeError, match="take signround or adaround in the mode weight-only"):
        run(Nearest(), AdaQuant())
    with pytest.raises(RecipeError, match="sequential of fine_tune has no effect in weight-only"):
        run(Nearest(), AdaRound(sequential=False))
