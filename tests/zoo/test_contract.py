"""The contract finds what it is there to find."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from support.models import build, make_mlp, make_samples, node

from zoo.case import Case, find_selected
from zoo.contract import Broken, check_result


@pytest.fixture
def case(tmp_path):
    model = make_mlp()
    path = tmp_path / "float.onnx"
    onnx.save(model, path)
    return Case(path, make_samples(model, 2))


def changed(case, change):
    model = onnx.load(case.path)
    change(model)
    path = case.path.with_name("changed.onnx")
    onnx.save(model, path)
    return path


def scale_last_weight(model, factor):
    tensor = next(t for t in model.graph.initializer if t.name == "w2")
    array = numpy_helper.to_array(tensor) * np.float32(factor)
    tensor.CopyFrom(numpy_helper.from_array(array, "w2"))


def test_a_model_keeps_the_contract_with_itself(case):
    assert check_result(case, case.path).sqnr == np.inf


def test_the_error_is_that_of_the_outputs(case):
    path = changed(case, lambda model: scale_last_weight(model, 1.1))
    assert check_result(case, path).sqnr == pytest.approx(20, abs=0.01)


def test_another_name_of_an_output_is_found(case):
    def rename(model):
        model.graph.output[0].name = model.graph.node[-1].output[0] = "z"

    with pytest.raises(Broken, match="other outputs"):
        check_result(case, changed(case, rename))


def test_a_size_that_was_known_and_is_open_now_is_found(case):
    def set_batch(model, **size):
        for value in (*model.graph.input, *model.graph.output):
            dim = value.type.tensor_type.shape.dim[0]
            dim.CopyFrom(onnx.TensorShapeProto.Dimension(**size))

    opened = case.path
    case.path = changed(case, lambda model: set_batch(model, dim_value=4))
    with pytest.raises(Broken, match=r"input 'x' of shape .* became one of shape"):
        check_result(case, opened)


def test_a_size_that_the_file_leaves_open_may_stay_open(case):
    def open_output(model):
        dim = model.graph.output[0].type.tensor_type.shape.dim[0]
        dim.CopyFrom(onnx.TensorShapeProto.Dimension(dim_param="any"))

    case.path = opened = changed(case, open_output)
    assert case.declared[case.session.get_outputs()[0].name][0] == "any"
    check_result(case, opened)


def test_values_that_are_no_numbers_are_found(case):
    path = changed(case, lambda model: scale_last_weight(model, np.inf))
    with pytest.raises(Broken, match="no numbers"):
        check_result(case, path)


def test_a_float_model_that_gives_other_numbers_each_time_is_found(case):
    assert case.is_repeatable
    (name, array), *_ = case.expected[0].items()
    case.expected[0][name] = array + np.float32(1)
    assert not case.is_repeatable


def test_a_model_that_does_not_load_is_found(case):
    def break_it(model):
        model.graph.node[0].op_type = "NoSuchOperator"

    with pytest.raises(Broken, match="does not load"):
        check_result(case, changed(case, break_it))


def test_outputs_behind_a_choice_are_not_compared():
    nodes = [
        node("ArgMax", ["x"], ["i"], axis=1),
        node("Cast", ["i"], ["chosen"], to=1),
        node("Relu", ["x"], ["plain"]),
    ]
    model = build(nodes, {"x": [1, 4]}, {"chosen": [1, 1], "plain": [1, 4]})
    assert find_selected(model) == {"chosen"}
