"""Loaders of (inputs, label), read as calibration data."""

import numpy as np
import onnxruntime
import pytest
from support.models import (
    build,
    node,
    normal,
    weight,
)
from support.neural_compressor import CPU, Loader, mlp, rows

from bitwright.compat.neural_compressor import ONNXModel
from bitwright.compat.neural_compressor.weight_only import (
    prepare_inputs,
    rtn_quantize,
)
from bitwright.errors import DataError


def test_prepare_inputs_reads_every_kind_of_item():
    model = mlp()
    for items in (rows(3), [{"x": x} for x in rows(3)], [(x,) for x in rows(3)]):
        inputs, options = prepare_inputs(model, -1, Loader(items), CPU)
        assert [list(sample) for sample in inputs] == [["x"]] * 3
        assert isinstance(options, onnxruntime.SessionOptions)
    inputs, _ = prepare_inputs(ONNXModel(model), 5, Loader(rows(6), batch_size=2), CPU)
    assert len(inputs) == 2
    assert len(prepare_inputs(model, 4, rows(6), CPU)[0]) == 4  # a plain list will do


def test_a_pair_of_arrays_is_fed_to_a_model_with_two_inputs():
    nodes = [
        node("Add", ["a", "b"], ["c"], name="add"),
        node("MatMul", ["c", "w"], ["y"], name="p"),
    ]
    model = build(nodes, {"a": [2, 32], "b": [2, 32]}, {"y": [2, 8]}, {"w": weight(32, 8)})
    for item in ((normal(2, 32), normal(2, 32)), ([normal(2, 32), normal(2, 32)], 0)):
        inputs, _ = prepare_inputs(model, -1, [item], CPU)
        assert sorted(inputs[0]) == ["a", "b"]


@pytest.mark.parametrize(
    ("loader", "n_samples", "message"),
    [
        (None, -1, "no calibration data"),
        ([], -1, "no samples"),
        ([({"z": np.zeros((1, 64), np.float32)}, 0)], -1, "'?z'?|'x'"),
        (7, -1, "cannot be read"),
        (Loader(rows(2)), 0, "n_samples"),
        (Loader(rows(2), batch_size=9), 4, "less than one batch"),
    ],
)
def test_data_that_does_not_fit_is_refused(loader, n_samples, message):
    with pytest.raises(DataError, match=message):
        prepare_inputs(mlp(), n_samples, loader, CPU)


def test_providers_that_are_not_there_are_left_out_with_a_warning():
    wanted = ["NoSuchExecutionProvider", "CPUExecutionProvider"]
    with pytest.warns(UserWarning, match="NoSuchExecutionProvider is left out"):
        inputs, _ = prepare_inputs(mlp(), 1, [(rows(1)[0], 0)], wanted)
    assert len(inputs) == 1
    with pytest.warns(UserWarning, match="NoSuchExecutionProvider is left out"):
        assert rtn_quantize(mlp(), providers=wanted[:1]).nodes()
