import math
from dataclasses import replace

import numpy as np
import pytest
from support.report_examples import measured, output, subject, with_fix

from bitwright.assess.clock import read_clock
from bitwright.assess.judge import OutputJudgement, PartJudgement
from bitwright.assess.verdict import level_of


@pytest.mark.parametrize(
    ("sqnr", "agreement", "level"),
    [
        (math.inf, None, "good"),
        (31.0, None, "good"),
        (21.0, 1.0, "good"),
        (21.0, 0.9, "fair"),
        (10.0, 0.96, "fair"),
        (10.0, 0.5, "poor"),
        (-math.inf, None, "poor"),
    ],
)
def test_the_level_follows_noise_and_answers(sqnr, agreement, level):
    assert subject(outputs=[output(sqnr, agreement)]).verdict().level == level


def test_the_worst_output_decides():
    assert subject(outputs=[output(40.0), output(3.0, 0.1, "mask")]).verdict().level == "poor"


def test_the_sentence_has_accuracy_size_speed_and_the_most_sensitive_node():
    said = (
        subject(
            [measured(name="a", local_sqnr=40.0), measured(name="culprit", local_sqnr=3.0)],
            worst=[1, 0],
            outputs=[output(8.0, 0.5)],
            clock=read_clock([(9.0, 3.0)] * 5),
        )
        .verdict()
        .sentence
    )
    assert said == (
        "Poor: same answers on 50.0 % (8.0 dB signal to noise), 3.8 × smaller, 3.0 × faster than "
        "the prepared float model. The most sensitive node is culprit."
    )


def test_a_good_model_blames_nobody():
    assert "sensitive" not in subject().verdict().sentence


def test_larger_and_slower_are_said_too():
    clock = read_clock([(1.0, 2.0)] * 5)
    said = subject(float_bytes=100, quantized_bytes=250, clock=clock).verdict().sentence
    assert "2.5 × larger, but 2.0 × slower than the prepared float model; quantize with" in said


def test_models_whose_times_cannot_be_told_apart_are_called_as_fast():
    clock = read_clock([(2.0, 1.0), (2.0, 3.0), (2.0, 2.1), (2.0, 2.1), (2.0, 1.5)])
    said = subject(clock=clock).verdict().sentence
    assert "smaller" in said and "slower" not in said and "faster" not in said


def test_without_outputs_nothing_is_claimed():
    assert subject(outputs=[]).verdict().level == "unknown"


def test_what_was_tried_out_says_what_is_most_sensitive():
    nodes = [measured(name="worst", local_sqnr=3.0), measured(name="culprit", local_sqnr=40.0)]
    given = with_fix(subject(nodes, outputs=[output(5.0, 0.2)]), "culprit")
    assert given.verdict().sentence.endswith("The most sensitive node is culprit.")
    assert given.most_sensitive() == [1] and given.outstanding() == [0]


def test_a_model_of_the_same_size_is_as_large():
    assert ", as large." in subject(float_bytes=1000, quantized_bytes=1010).verdict().sentence


def judged(kind, loss, span=None):
    part = PartJudgement(kind, "", 1, span, 0.5, np.full(8, loss))
    return OutputJudgement("y", (part,), part.losses)


def test_a_broken_head_is_poor_however_good_the_whole_output_is():
    whole = replace(output(55.0, None), judged=judged("sigmoid", 0.8, (4, 84)))
    found = subject(outputs=[whole]).verdict()
    assert found.level == "poor"
    assert "KL 0.5 in axis 1, 4 to 83" in found.sentence


@pytest.mark.parametrize(
    ("kind", "loss", "level"),
    [("embedding", 0.05, "good"), ("embedding", 0.2, "fair"), ("sqnr", 0.2, "poor")],
)
def test_the_level_is_by_the_kind_of_the_output(kind, loss, level):
    assert level_of(replace(output(5.0, None), judged=judged(kind, loss))) == level
