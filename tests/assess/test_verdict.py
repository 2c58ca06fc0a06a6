import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitwright.assess.clock import read_clock
from bitwright.assess.outputs import OutputComparison
from bitwright.assess.verdict import accuracy_of, judge_outputs, level_of

FASTER = read_clock([(2.0, 1.0)] * 5)
SLOWER = read_clock([(1.0, 1.3)] * 5)


def output(sqnr, agreement=None):
    return OutputComparison("y", sqnr, 0.9, 0.1, agreement)


def test_without_outputs_only_size_and_time_are_told():
    assert judge_outputs([], 300, 100) == (
        "unknown",
        "Not measured: not run beside float, 3.0 × smaller.",
    )
    level, sentence = judge_outputs([], 300, 100, clock=SLOWER)
    assert level == "slow" and sentence.startswith("Slower: ")


@pytest.mark.parametrize(("sqnr", "opening"), [(40, "Good:"), (20, "Usable:"), (5, "Poor:")])
def test_the_opening_follows_the_worst_output(sqnr, opening):
    found = judge_outputs([output(60), output(sqnr)], 100, 100, clock=FASTER)
    assert found.sentence.startswith(opening)
    assert found.sentence.endswith(", as large, 2.0 × faster than the prepared float model.")


def test_a_slower_model_is_never_good_and_the_sentence_says_what_to_do():
    good, poor = output(60, 0.996), output(5)
    assert judge_outputs([good], 390, 100, clock=SLOWER) == (
        "slow",
        "Slower: same answers on 99.6 % (60.0 dB signal to noise), 3.9 × smaller, but 1.3 × slower "
        "than the prepared float model; quantize with --for balanced or --for speed, which leave "
        "float what gains no time.",
    )
    for purpose, advice in (("balanced", "--for speed"), ("speed", "keep the float model")):
        said = judge_outputs([good], 390, 100, clock=SLOWER, purpose=purpose).sentence
        assert advice in said and "--for balanced" not in said
    found = judge_outputs([poor], 390, 100, clock=SLOWER)
    assert found.level == "poor" and "1.3 × slower" in found.sentence


def test_a_larger_model_is_never_good_unless_it_is_known_to_be_faster():
    assert judge_outputs([output(60)], 100, 330) == (
        "fair",
        "Larger: answers as float does (60.0 dB signal to noise), 3.3 × larger.",
    )
    assert judge_outputs([output(60)], 100, 330, clock=FASTER).level == "good"
    assert judge_outputs([output(60)], 100, 104).level == "good"
    assert judge_outputs([output(5)], 100, 330).sentence.startswith("Poor: ")


def test_what_rests_on_few_samples_says_so_first():
    for count, start in ((1, "From 1 sample alone: Good: "), (3, "From 3 samples"), (4, "Good: ")):
        assert judge_outputs([output(60)], 300, 100, samples=count).sentence.startswith(start)


def test_outputs_of_other_shapes_are_not_called_not_run():
    assert judge_outputs([], 300, 100, samples=8) == (
        "unknown",
        "Not measured: no output is of the shape that it has in float, 3.0 × smaller.",
    )


DECIBELS = st.floats(-20, 120) | st.just(float("inf"))
SHARES = st.none() | st.floats(0, 1)
ROUNDS = st.lists(st.tuples(st.floats(1e-6, 10), st.floats(1e-6, 10)), min_size=3, max_size=41)


@given(
    outputs=st.lists(st.builds(output, DECIBELS, SHARES), max_size=3),
    sizes=st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)),
    rounds=ROUNDS,
    purpose=st.sampled_from(["size", "balanced", "speed"]),
)
def test_no_verdict_calls_a_slower_model_good(outputs, sizes, rounds, purpose):
    clock = read_clock(rounds)
    level, sentence = judge_outputs(outputs, *sizes, clock=clock, purpose=purpose)
    if clock.is_slower:
        assert level in ("slow", "poor")
        assert sentence.startswith(("Slower: ", "Poor: "))
        assert "slower than the prepared float model; " in sentence
    else:
        assert level != "slow" and "slower" not in sentence.lower()
    timeless = judge_outputs(outputs, *sizes, purpose=purpose)
    assert level == "slow" or level == timeless.level or clock.is_faster


def test_what_may_be_as_fast_is_not_called_slower():
    perhaps = read_clock([(1.0, 0.9), (1.0, 1.2), (1.0, 1.3), (1.0, 1.4), (1.0, 1.3)])
    assert judge_outputs([output(60)], 390, 100, clock=perhaps).level == "good"


def test_the_same_answers_make_up_for_noise():
    assert (level_of(output(22, 1.0)), level_of(output(22))) == ("good", "fair")
    assert (level_of(output(60, 0.625)), level_of(output(60, 0.95))) == ("fair", "good")


def test_without_outputs_the_accuracy_is_not_known():
    assert accuracy_of([OutputComparison("y", 40.0, 0.99, 0.1, None)]) == "good"
    assert accuracy_of([]) == "unknown"
