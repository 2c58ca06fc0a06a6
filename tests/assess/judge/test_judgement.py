"""The judge sees what the mean over an output hides."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.helper import make_node
from support.models import build, info, normal, sqnr

from bitwright.assess.judge import Interval, Judge, OutputJudgement, PartJudgement
from bitwright.assess.judge.judgement import combine_losses, show_loss
from bitwright.assess.outputs import compare_outputs
from bitwright.graph import infer_shapes, load_model


def judge(expected, actual, *, model=None, names=("y",)):
    found = Judge(model)
    for one, other in zip(expected, actual, strict=True):
        found.add({}, dict(zip(names, one, strict=True)), dict(zip(names, other, strict=True)))
    return found.finish()


def detector():
    """A graph whose output has boxes of hundreds beside scores from 0 to 1."""
    nodes = [
        make_node("Sigmoid", ["logits"], ["scores"]),
        make_node("Concat", ["boxes", "scores"], ["y"], axis=1),
    ]
    inputs = [info("boxes", [1, 4, 60]), info("logits", [1, 20, 60])]
    model = load_model(build(nodes, inputs, [info("y", [1, 24, 60])]))
    infer_shapes(model)
    return model


def detections(seed, broken=False):
    boxes = 320 + 100 * normal(1, 4, 60, seed=seed)
    scores = 1 / (1 + np.exp(6 - 3 * normal(1, 20, 60, seed=seed + 100)))
    if broken:
        scores = np.zeros_like(scores)
    return (np.concatenate([boxes + 0.5 * normal(1, 4, 60, seed=seed + 200), scores], axis=1),)


@pytest.mark.parametrize("with_graph", [True, False])
def test_a_broken_score_head_beside_large_boxes_is_found(with_graph):
    expected, good, bad = [], [], []
    for seed in range(8):
        [clean] = detections(seed)
        expected.append((clean,))
        good.append((clean + np.repeat([0.5, 1e-3], [4, 20])[None, :, None] * normal(1, 24, 60),))
        bad.append(detections(seed, broken=True))
    assert sqnr([e for (e,) in expected], [b for (b,) in bad]) > 50  # SQNR says all is fine
    model = detector() if with_graph else None
    broken, fine = judge(expected, bad, model=model), judge(expected, good, model=model)
    assert broken.loss > 0.5
    assert fine.loss < 0.1
    assert broken.outputs[0].worst.span == (4, 24)
    assert broken.outputs[0].worst.kind == ("sigmoid" if with_graph else "sqnr")
    assert np.all(fine.losses < broken.losses)


def test_a_small_output_beside_large_ones_dominates():
    large, small = [normal(1, 3, 9, seed=n) * 1000 for n in range(4)], normal(1, 3, 9) * 0.01
    found = judge(
        [(one, one, one, small) for one in large],
        [(one, one, one, -small) for one in large],
        names=("a", "b", "c", "d"),
    )
    assert found.outputs[0].name == "d"
    assert found.loss > 0.6 * found.outputs[0].loss


def test_class_scores_are_judged_by_kl_and_by_the_best_class():
    # The same noise on logits: where the answer is plain it does not matter, else it does.
    plain = [20 * np.eye(10)[[n]] for n in range(8)]
    close = [normal(1, 10, seed=n) for n in range(8)]
    noise = [normal(1, 10, seed=n + 50, size=0.5) for n in range(8)]
    found = [
        judge([(a,) for a in answers], [(a + b,) for a, b in zip(answers, noise, strict=True)])
        for answers in (plain, close)
    ]
    assert [f.outputs[0].worst.kind for f in found] == ["logits", "logits"]
    assert found[0].loss < 0.01 < 0.1 < found[1].loss
    assert found[0].outputs[0].agreements is not None
    assert found[0].outputs[0].agreements.mean() == 1
    assert found[1].outputs[0].agreements.mean() < 1


def test_embeddings_are_judged_by_cosine():
    # All share a large mean, which hides in dB that they are no longer told apart.
    vectors = [5 + normal(1, 64, seed=n) for n in range(8)]
    lost = [np.full((1, 64), 5.0)] * 8
    found = judge([(v,) for v in vectors], [(v,) for v in lost], names=("embedding",))
    assert sqnr(vectors, lost) > 13
    assert found.outputs[0].worst.kind == "embedding"
    assert found.loss > 0.6
    longer = judge([(v,) for v in vectors], [(2 * v,) for v in vectors], names=("embedding",))
    assert longer.loss == pytest.approx(0, abs=1e-6)


@settings(max_examples=30)
@given(order=st.permutations(range(9)))
def test_the_order_of_samples_does_not_change_the_loss(order):
    expected = [(normal(1, 24, 10, seed=n), normal(1, 6, seed=n)) for n in range(9)]
    actual = [tuple(a + 0.1 * normal(*a.shape, seed=77) for a in pair) for pair in expected]
    plain = judge(expected, actual, names=("y", "logits"))
    other = judge([expected[n] for n in order], [actual[n] for n in order], names=("y", "logits"))
    assert other.loss == pytest.approx(plain.loss)
    assert other.losses == pytest.approx(plain.losses[list(order)])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_the_loss_of_all_lies_between_the_mean_and_the_worst(losses):
    found = combine_losses([np.array([loss]) for loss in losses])[0]
    assert np.mean(losses) - 1e-9 <= found <= max(losses) + 1e-9


def test_equal_outputs_have_no_loss_and_lost_ones_have_one():
    values = [(normal(1, 3, 4, seed=n),) for n in range(3)]
    assert judge(values, values).loss == 0
    assert judge(values, [(v * np.nan,) for (v,) in values]).loss == 1
    assert judge(values, [(v[:, :2],) for (v,) in values]).loss == 1


def test_outputs_of_varying_size_are_left_out_with_a_reason():
    expected = [(normal(1, n, 6, seed=n),) for n in (3, 5, 4)]
    found = judge(expected, expected)
    assert found.outputs == ()
    assert "'y'" in found.left_out[0]


def test_integers_are_not_judged():
    assert judge([(np.array([1, 2]),)], [(np.array([1, 3]),)]).outputs == ()


def test_few_samples_say_so():
    values = [(normal(1, 3, 4),)]
    found = judge(values, values)
    assert found.interval is None
    assert found.note is not None
    assert "1 sample:" in found.note
    assert judge(values * 8, values * 8).note is None


def test_a_judgement_is_plain_data():
    values = [(normal(1, 3, seed=n),) for n in range(8)]
    data = judge(values, [(1.1 * v,) for (v,) in values]).to_dict()
    assert data["outputs"][0]["kind"] == "logits"
    assert data["outputs"][0]["interval"][0] <= data["loss"] <= data["outputs"][0]["interval"][1]


def test_models_are_run_on_the_samples():
    found = compare_outputs(
        lambda feeds: {"y": feeds["x"]},
        lambda feeds: {"y": feeds["x"] * 1.1},
        [{"x": normal(1, 3, 4, seed=n)} for n in range(8)],
    ).judgement
    assert found.loss == pytest.approx(0.1, rel=0.3)
    assert found.power == pytest.approx(0.01, rel=0.5)


def test_judgements_are_told_in_a_line():
    part = PartJudgement("sqnr", "numbers", 1, (0, 4), 20.0, np.full(8, 0.1))
    assert OutputJudgement("y", (part,), part.losses).describe() == (
        "loss 10.0 % (10.0 to 10.0 %) as sqnr, worst in axis 1, 0 to 3 with 20.0 dB SQNR"
    )
    scores = PartJudgement("sigmoid", "scores", 1, (4, 84), 0.02, np.array([0.3, 0.5]))
    assert scores.describe() == "axis 1, 4 to 83 (sigmoid): KL 0.02, loss 0.4"
    assert show_loss(0.021, Interval(0.018, 0.0251)) == "loss 2.10 % (1.80 to 2.51 %)"
    assert show_loss(0.0001, None) == "loss 0.0100 %"


def test_the_worst_loss_counts_most():
    assert combine_losses([np.array([0.1]), np.array([0.8])]).round(2).tolist() == [0.67]


def test_one_loud_sample_does_not_hide_the_noise_of_the_others():
    shape = [1, 2, 4, 4]
    x, d = (ir.val(name, ir.DataType.FLOAT, shape) for name in "xd")
    divided = ir.node("Div", [x, d], outputs=[ir.val("y", ir.DataType.FLOAT, shape)], name="ratio")
    made = ir.Graph([x, d], divided.outputs, nodes=[divided], name="g", opset_imports={"": 17})
    judge, rng = Judge(ir.Model(made, ir_version=8)), np.random.default_rng(0)
    for number in range(8):
        wanted = rng.standard_normal(shape) * (1e3 if number == 5 else 1)
        judge.add({"x": wanted}, {"y": wanted}, {"y": wanted + 2.5 * rng.standard_normal(shape)})
    found = judge.finish()
    part = found.outputs[0].worst
    assert part.loud == (5,)
    assert min(p.figure for p in found.outputs[0].parts) < 0
    assert found.loss > 0.6
    assert found.outputs[0].losses[5] < 0.01  # of itself, it is right
    assert found.notes[0].startswith("output 'y' is more than thirty times as large in 1 sample")
    assert "Div 'ratio' may divide by nearly zero" in found.notes[0]


def test_a_decoder_with_a_cache_has_a_perplexity_of_the_tokens_that_its_mask_keeps():
    rng = np.random.default_rng(0)
    tokens, scores = rng.integers(0, 9, (2, 6)), rng.normal(size=(2, 6, 9)).astype(np.float32)
    mask = np.ones_like(tokens)
    mask[1, 4:] = 0
    sample = {
        "input_ids": tokens,
        "attention_mask": mask,
        "past_key_values.0.key": np.zeros((2, 1, 0, 4), np.float32),
    }
    worse = scores * 0.5
    judge = Judge()
    judge.add(sample, {"logits": scores}, {"logits": worse})
    found = judge.finish()
    lost = []
    for answers in (scores, worse):
        exact = answers.astype(np.float64)
        likely = exact - np.log(np.exp(exact).sum(-1, keepdims=True))
        kept = [likely[b, t, tokens[b, t + 1]] for b in (0, 1) for t in range(5) if mask[b, t + 1]]
        lost.append(np.exp(-np.mean(kept)))
    assert found.perplexity.tokens == 5 + 3
    np.testing.assert_allclose(found.perplexity[:2], lost, rtol=1e-5)
    assert found.notes[0].startswith(f"perplexity {lost[0]:.2f} -> {lost[1]:.2f}")
    # Without a cache it may be an encoder, whose tokens see those behind them.
    judge = Judge()
    judge.add({"input_ids": tokens}, {"logits": scores}, {"logits": worse})
    assert judge.finish().perplexity is None
