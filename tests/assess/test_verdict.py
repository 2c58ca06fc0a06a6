import pytest

from bitwright.assess.outputs import OutputComparison
from bitwright.assess.verdict import judge_outputs, level_of


def output(sqnr, agreement=None):
    return OutputComparison("y", sqnr, 0.9, 0.1, agreement)


def test_without_outputs_only_the_size_is_told():
    level, sentence = judge_outputs([], 300, 100)
    assert level == "unknown"
    assert sentence == (
        "Not measured: the quantized model was not run beside float; it is 3.0 times smaller."
    )


@pytest.mark.parametrize(("sqnr", "opening"), [(40, "Good:"), (20, "Usable:"), (5, "Poor:")])
def test_the_opening_follows_the_worst_output(sqnr, opening):
    found = judge_outputs([output(60), output(sqnr)], 100, 100, speedup=2.0)
    assert found.sentence.startswith(opening)
    assert found.sentence.endswith("and is as large and 2.0 times faster.")


def test_the_same_answers_make_up_for_noise():
    assert (level_of(output(22, 1.0)), level_of(output(22))) == ("good", "fair")
