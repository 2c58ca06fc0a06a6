"""Metrics by name or of the user's own, over a loader of inputs and labels."""

import numpy as np
import onnx
import pytest

import bitwright
from bitwright.compat.neural_compressor.metric import Metric, evaluation_of
from bitwright.errors import DataError, RecipeError

DEMO = bitwright.load_demo()
MODEL = onnx.load(DEMO.model_path)
LOADER = [
    (DEMO.images[:30], DEMO.labels[:30]),
    ({"image": DEMO.images[30:40]}, [DEMO.labels[30:40]]),
]


def test_topk_by_number_by_options_and_as_a_metric():
    top1 = evaluation_of({"topk": 1}, LOADER)(MODEL)
    assert top1 == evaluation_of({"topk": {"k": 1}}, LOADER)(MODEL)
    assert top1 == evaluation_of(Metric(name="Accuracy"), LOADER)(MODEL)
    assert top1 < evaluation_of(Metric(name="topk", k=5), LOADER)(MODEL) == 1.0


def test_labels_may_be_one_hot():
    one_hot = np.eye(10)[DEMO.labels[:20]]
    found = evaluation_of({"topk": 1}, [(DEMO.images[:20], one_hot)])(MODEL)
    assert found == evaluation_of({"topk": 1}, [(DEMO.images[:20], DEMO.labels[:20])])(MODEL)


def test_errors_of_values_and_classes_that_a_model_gives():
    graph = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y) {y = Neg(x)}'
    )
    values = np.array([-1.0, -2.0], np.float32)
    loader = [(values, np.array([1.0, 4.0], np.float32))]
    assert evaluation_of({"MSE": {}}, loader)(graph) == 2.0
    assert evaluation_of({"MAE": {}}, loader)(graph) == 1.0
    assert evaluation_of({"RMSE": {}}, loader)(graph) == pytest.approx(2**0.5)
    assert evaluation_of({"Accuracy": {}}, loader)(graph) == 0.5


def test_a_metric_of_the_users_is_given_outputs_and_labels():
    class Count:
        def __init__(self, start=0):
            self.start = start

        def reset(self):
            self.seen = self.start

        def update(self, preds, labels):
            self.seen += len(preds[0]) * len(labels)

        def result(self):
            return self.seen

    assert evaluation_of(Count(), LOADER)(MODEL) == 40
    assert evaluation_of(Metric("mine", Count, start=2), LOADER)(MODEL) == 42


@pytest.mark.parametrize(
    ("metric", "sentence"),
    [
        ({"COCOmAP": {}}, "the metric 'COCOmAP' has no form here; give an eval_func"),
        ({"topk": 1, "MSE": {}}, "eval_metric has one metric here"),
        ({"MSE": {"compare_label": False}}, "this metric has no option 'compare_label'"),
        (print, "is a dict as .* is none of these"),
    ],
)
def test_other_metrics_are_refused(metric, sentence):
    with pytest.raises(RecipeError, match=sentence):
        evaluation_of(metric, LOADER)


def test_a_loader_has_labels():
    with pytest.raises(DataError, match=r"eval_dataloader gives \(inputs, labels\)"):
        evaluation_of({"topk": 1}, [DEMO.images[:2]])(MODEL)
