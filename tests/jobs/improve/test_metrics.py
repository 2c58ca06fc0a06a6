"""Metrics by name give what they say, and bad ones get one sentence."""

import numpy as np
import pytest

from bitwright.errors import DataError, RecipeError
from bitwright.jobs.improve.metrics import METRICS, margin_of, open_metric

SCORES = {"logits": np.array([[0.1, 0.7, 0.2], [0.5, 0.2, 0.3]], np.float32)}


def test_top_answers_are_compared_with_the_labels_of_each_row():
    top1, top5 = open_metric("top1"), open_metric("top5")
    assert top1.score(SCORES, {"label": [1, 2]}, None) == 0.5
    assert top5.score(SCORES, {"label": [1, 2]}, None) == 1.0
    assert top1.score(SCORES, {"target": np.array([1, 0])}, None) == 1.0


def test_agreement_is_with_the_best_class_of_float():
    other = {"logits": np.array([[0.9, 0.7, 0.2], [0.5, 0.2, 0.3]], np.float32)}
    assert open_metric("agreement").score(other, {}, SCORES) == 0.5
    assert open_metric("agreement").score(SCORES, {}, SCORES) == 1.0


def test_without_classes_agreement_is_closeness():
    boxes = {"boxes": np.array([[1.0, 2.0, 3.0, 4.0]])}
    moved = {"boxes": np.array([[1.0, 2.0, 3.0, 4.5]])}
    close = open_metric("closeness").score(moved, {}, boxes)
    assert open_metric("agreement").score(moved, {}, boxes) == close
    assert 0 < close < 1


def test_cosine_is_that_of_the_worst_output():
    one = {"a": np.array([1.0, 0.0]), "b": np.array([1.0, 1.0])}
    other = {"a": np.array([1.0, 1.0]), "b": np.array([2.0, 2.0])}
    assert open_metric("cosine").score(other, {}, one) == pytest.approx(np.sqrt(0.5))


def test_likelihood_is_the_mean_log_probability_of_the_next_token():
    random = np.random.default_rng(0)
    logits = random.normal(size=(1, 5, 7)).astype(np.float32)
    tokens = np.array([[3, 1, 0, 6, 2]])
    wanted = []
    for place in range(4):
        row = logits[0, place].astype(np.float64)
        wanted.append(row[tokens[0, place + 1]] - np.log(np.exp(row).sum()))
    found = open_metric("likelihood").score({"logits": logits}, {"input_ids": tokens}, None)
    assert found == pytest.approx(np.mean(wanted))


@pytest.mark.parametrize("scope", ["sample", "set"])
def test_a_function_of_a_file_that_fails_says_where_and_what_it_was_given(tmp_path, scope):
    file = tmp_path / "score.py"
    file.write_text("def boom(outputs, samples):\n    x = 1\n    return outputs['nothing']\n")
    metric = open_metric(f"{file}:boom", scope=scope)
    sample = {"image": np.zeros(1), "label": 3}
    given = r"outputs with 'logits' and a sample with 'image', 'label'"
    kind = "KeyError: 'nothing'" if scope == "sample" else "TypeError: list indices"
    with pytest.raises(DataError, match=f"line 3 of .*score.py': {kind}.*given {given}"):
        if scope == "sample":
            metric.score(SCORES, sample, None)
        else:
            metric.score_set([SCORES], [sample])
    assert metric.identity == open_metric(f"{file}:boom", scope=scope).identity


def test_a_function_that_is_handed_over_fails_with_its_own_error():
    with pytest.raises(ZeroDivisionError):
        open_metric(lambda outputs, sample: 1 / 0).score(SCORES, {}, None)


def test_a_function_of_a_file_is_loaded(tmp_path):
    (tmp_path / "score.py").write_text("def first(outputs, sample):\n    return outputs['y'][0]\n")
    metric = open_metric(f"{tmp_path}/score.py:first")
    assert metric.score({"y": np.array([2.5])}, {}, None) == 2.5
    assert (
        open_metric(f"{tmp_path}/score.py:first", lower_is_better=True).score(
            {"y": np.array([2.5])}, {}, None
        )
        == -2.5
    )


def test_what_a_file_does_not_have_is_told(tmp_path):
    (tmp_path / "score.py").write_text("def accuracy(outputs, sample):\n    return 1\n")
    with pytest.raises(RecipeError, match=r"has no function 'acuracy'\. Did you mean 'accuracy'"):
        open_metric(f"{tmp_path}/score.py:acuracy")
    with pytest.raises(RecipeError, match="there is no file"):
        open_metric(f"{tmp_path}/none.py:accuracy")
    (tmp_path / "bad.py").write_text("1 / 0\n")
    with pytest.raises(RecipeError, match="fails: ZeroDivisionError: division by zero"):
        open_metric(f"{tmp_path}/bad.py:accuracy")


def test_unknown_names_and_options_of_known_ones_are_refused():
    with pytest.raises(RecipeError, match=r"there is no metric 'cosin'.*Did you mean 'cosine'"):
        open_metric("cosin")
    with pytest.raises(RecipeError, match="'top1' scores samples, and higher is better"):
        open_metric("top1", lower_is_better=True)


def test_the_default_is_top1_with_labels_and_agreement_without():
    assert open_metric(None, labelled=True) is METRICS["top1"]
    assert open_metric(None, labelled=False) is METRICS["agreement"]


@pytest.mark.parametrize(
    ("value", "sentence"),
    [("good", "gave a str"), (float("nan"), "gave nan"), (None, "gave a NoneType")],
)
def test_what_is_no_number_is_refused(value, sentence):
    with pytest.raises(DataError, match=sentence):
        open_metric(lambda outputs, sample: value).score({}, {}, None)


def test_samples_without_labels_and_models_without_classes_are_refused():
    with pytest.raises(DataError, match="the samples have no label"):
        open_metric("top1").score(SCORES, {}, None)
    with pytest.raises(DataError, match="2 rows of scores"):
        open_metric("top1").score(SCORES, {"label": [1, 2, 3]}, None)
    with pytest.raises(DataError, match="no output of this model holds scores of classes"):
        open_metric("top1").score({"boxes": np.ones((1, 4))}, {"label": 0}, None)


def test_functions_with_another_body_are_another_metric():
    one = open_metric(lambda outputs, sample: 1.0)
    other = open_metric(lambda outputs, sample: 2.0)
    assert one.identity != other.identity


def test_the_margin_is_between_the_best_two_classes():
    assert margin_of({"y": np.array([[0.2, 0.7, 0.1]], np.float32)}, {}) == 0.5
    assert margin_of({"boxes": np.zeros((1, 4, 9), np.float32)}, {}) is None
