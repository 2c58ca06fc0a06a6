"""Errors of pieces: laws that hold for any values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from support.models import normal, sqnr

from bitwright.assess.judge import Judge, measures
from bitwright.assess.judge.measures import find_runs, open_measure, softmax

SCORES = arrays(np.float64, (3, 5), elements=st.floats(0, 1, width=32))
LOGITS = arrays(np.float64, (3, 5), elements=st.floats(-20, 20, width=32))
FACTORS = st.floats(1e-6, 1e6)


def measure(kind, axis, pairs):
    found = open_measure(kind, axis)
    for expected, actual in pairs:
        found.add(expected, actual)
    return found.finish()


@given(factor=FACTORS, channel=st.integers(0, 3))
def test_the_error_of_a_part_does_not_depend_on_its_scale(factor, channel):
    expected, actual = normal(1, 4, 30), normal(1, 4, 30) + normal(1, 4, 30, seed=1, size=0.1)
    scale = np.ones((1, 4, 1))
    scale[:, channel] = factor
    plain = measure("sqnr", 1, [(expected, actual)])
    scaled = measure("sqnr", 1, [(expected * scale, actual * scale)])
    by_span = {part.span: part.errors[0] for part in plain}
    for part in scaled:
        assert part.errors[0] == pytest.approx(by_span[part.span], rel=1e-5)


@given(factor=FACTORS, kind=st.sampled_from(["embedding", "sqnr"]))
def test_the_error_of_vectors_does_not_depend_on_their_length(factor, kind):
    pairs = [(normal(1, 20, seed=n), normal(1, 20, seed=n) + 0.1) for n in range(3)]
    longer = [(a * factor, b * factor) for a, b in pairs]
    assert measure(kind, 1, longer)[0].errors == pytest.approx(measure(kind, 1, pairs)[0].errors)


@pytest.mark.parametrize("kind", ["logits", "probabilities", "sigmoid"])
@given(pair=st.tuples(SCORES, SCORES))
@pytest.mark.sampled(1)
def test_kl_is_never_negative(kind, pair):
    [part] = measure(kind, 1, [pair])
    assert part.figure >= 0
    assert math.isfinite(part.figure)


@given(LOGITS)
@pytest.mark.parametrize("kind", ["logits", "probabilities", "sigmoid", "embedding", "sqnr"])
def test_equal_values_have_no_error(kind, values):
    values = values if kind in ("logits", "embedding", "sqnr") else np.abs(values) / 20
    for part in measure(kind, 1, [(values, values)]):
        assert part.errors[0] == pytest.approx(0, abs=1e-9)


def test_kl_of_logits_is_that_of_the_definition():
    p, q = normal(6, 9, size=3), normal(6, 9, seed=1, size=3)
    shares = [np.exp(x) / np.exp(x).sum(axis=1, keepdims=True) for x in (p, q)]
    expected = np.mean(np.sum(shares[0] * np.log(shares[0] / shares[1]), axis=1))
    assert measure("logits", 1, [(p, q)])[0].figure == pytest.approx(expected, rel=1e-5)
    # and of the same answers as probabilities, but for the smallest
    assert measure("probabilities", 1, [shares])[0].figure == pytest.approx(expected, rel=0.3)


def test_the_average_answer_given_to_every_sample_is_an_error_of_one():
    answers = [np.eye(4)[[n]] * 0.9 + 0.025 for n in range(4)]
    mean = np.mean(answers, axis=0)
    [part] = measure("probabilities", 1, [(answer, mean) for answer in answers])
    assert part.errors.mean() == pytest.approx(1)


def test_the_mean_direction_given_to_every_sample_is_an_error_of_one():
    vectors = [normal(1, 16, seed=n) for n in range(6)]
    units = [v / np.linalg.norm(v) for v in vectors]
    mean = np.mean(units, axis=0)
    [part] = measure("embedding", 1, [(vector, mean) for vector in vectors])
    assert part.errors.mean() == pytest.approx(1)


def test_scores_that_no_benchmark_counts_are_no_error():
    found = measure("sigmoid", 1, [(np.full((1, 80, 100), 4e-4), np.zeros((1, 80, 100)))])
    assert found[0].errors[0] == 0


def test_the_figure_of_numbers_is_sqnr():
    expected, actual = normal(1, 40, seed=1), normal(1, 40, seed=2)
    [part] = measure("sqnr", 1, [(expected, actual)])
    assert part.figure == pytest.approx(sqnr([expected], [actual]))


def test_channels_of_few_numbers_are_one_part():
    assert len(measure("sqnr", 1, [(normal(1, 6), normal(1, 6, seed=1))])) == 1
    pairs = [(normal(1, 6, seed=n), normal(1, 6, seed=n + 9)) for n in range(8)]
    assert len(measure("sqnr", 1, pairs)) == 6


def test_a_run_of_small_channels_is_a_part():
    sizes = np.repeat([100.0, 0.1], [20, 60])[None, :, None]
    expected = normal(1, 80, 50) * sizes
    actual = expected + normal(1, 80, 50, seed=1, size=0.1)
    parts = measure("sqnr", 1, [(expected, actual)])
    assert [part.span for part in parts] == [(20, 80), (0, 20)]
    assert parts[0].figure < 1
    assert parts[1].figure > 50


def test_channels_that_vary_are_one_part():
    sizes = 10.0 ** (np.arange(40) % 3 * 2)
    assert find_runs(sizes**2) == [(0, 40)]


def test_channels_of_varying_number_are_one_part():
    pairs = [(normal(1, n), normal(1, n) * 1.1) for n in (20, 30)]
    [part] = measure("sqnr", 1, pairs)
    assert part.errors == pytest.approx([0.01, 0.01], rel=0.5)


@pytest.mark.parametrize("kind", ["logits", "probabilities", "sigmoid", "embedding", "sqnr"])
def test_what_is_not_a_number_is_lost(kind):
    expected = np.array([[0.2, 0.5, 0.3]])
    parts = measure(kind, 1, [(expected, np.full((1, 3), np.nan))])
    assert parts[0].errors[0] == math.inf


def test_masked_logits_are_no_error():
    expected = np.array([[1.0, 2.0, -np.inf]])
    [part] = measure("logits", 1, [(expected, expected + np.array([[0.1, 0, 0]]))])
    assert 0 < part.figure < 0.1
    parts = measure("sqnr", 1, [(expected, expected)])
    assert max(part.errors[0] for part in parts) == 0


def test_noise_on_silence_is_measured_by_the_rest():
    expected = np.zeros((1, 3, 10))
    expected[:, 0] = 1
    actual = expected + 0.1
    errors = {part.span: part.errors[0] for part in measure("sqnr", 1, [(expected, actual)])}
    assert errors[0, 1] == pytest.approx(0.01)
    assert errors[1, 2] == pytest.approx(0.03)


def test_logits_that_leave_no_doubt_are_told_apart_by_their_other_classes():
    """One class has it all: KL of the plain softmax would not see what became of the others."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(8, 10)) * 100
    logits[np.arange(8), np.arange(8)] += 1000
    losses = []
    for noise in (1.0, 30.0):
        measure = open_measure("logits", 1)
        for row in logits:
            measure.add(row[None], row[None] + rng.normal(size=(1, 10)) * noise)
        [part] = measure.finish()
        losses.append(float(part.errors.mean()))
    assert 0 < 10 * losses[0] < losses[1]


def test_logits_of_usual_size_are_taken_as_they_are():
    rng = np.random.default_rng(0)
    logits, noise = rng.normal(size=(4, 10)) * 3, rng.normal(size=(4, 10)) * 0.1
    measure = open_measure("logits", 1)
    for row, error in zip(logits, noise, strict=True):
        measure.add(row[None], row[None] + error)

    def log_softmax(values):
        return values - np.log(np.exp(values).sum(axis=1, keepdims=True))

    p, q = log_softmax(logits), log_softmax(logits + noise)
    expected = (np.exp(p) * (p - q)).sum(axis=1).mean()
    assert measure.finish()[0].figure == pytest.approx(expected)


def test_long_answers_are_judged_some_at_a_time():
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(1, 5, 1 << 19)).astype(np.float32)
    given = logits + rng.normal(size=logits.shape).astype(np.float32) * 0.1
    measure = open_measure("logits", 2)
    measure.add(logits, given)

    def log_softmax(values):
        values = values[0].astype(np.float64)
        return values - np.log(np.exp(values).sum(axis=1, keepdims=True))

    p, q = log_softmax(logits), log_softmax(given)
    expected = (np.exp(p) * (p - q)).sum(axis=1).mean()
    assert measure.finish()[0].figure == pytest.approx(expected, rel=1e-9)


@given(
    arrays(np.float32, (3, 5), elements=st.floats(-50, 50, width=32)),
    arrays(np.float32, (3, 5), elements=st.floats(-50, 50, width=32)),
    st.sampled_from([1.0, 2.5]),
)
def test_logits_weigh_the_same_without_division(wanted, actual, heat):
    found = measures._weigh_logits(wanted, actual, heat)
    (p, log_p), (_, log_q) = (softmax(x.astype(np.float64) / heat) for x in (wanted, actual))
    kl, entropy = (p * (log_p - log_q)).sum(), -(p * log_p).sum()
    np.testing.assert_allclose((found.kl, found.entropy), (kl, entropy), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.shares, p.sum(axis=0), rtol=1e-12)


def test_masked_logits_are_left_to_the_careful_way():
    masked = np.array([[0.0, -np.inf]], np.float32)
    assert measures._weigh_logits(masked, masked, 1.0) is None


def test_some_rows_of_a_dense_output_tell_about_all(monkeypatch):
    random = np.random.default_rng(0)
    blocks = random.normal(size=(1, 21, 20, 20)).repeat(8, 2).repeat(8, 3).astype(np.float32) * 3
    noisy = (blocks + 0.2 * random.normal(size=blocks.shape)).astype(np.float32)
    losses = []
    for dense in (1 << 14, 1 << 30):
        monkeypatch.setattr("bitwright.assess.judge.measures._DENSE", dense)
        judge = Judge()
        image = np.zeros((1, 3, 160, 160), np.float32)
        judge.add({"x": image}, {"y": blocks}, {"y": noisy})
        losses.append(judge.finish().loss)
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)
