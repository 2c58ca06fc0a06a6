"""Sizes of inputs go wherever their names stand."""

from __future__ import annotations

import pytest
from support.models import build, node

from bitwright.compat.onnxruntime.execution_providers.qnn.fixed_shapes import (
    fix_input_shape,
    fix_output_shapes,
)
from bitwright.errors import BitwrightError


def make_open(**outputs):
    nodes = [node("Relu", ["x"], ["a"], name="r"), node("Transpose", ["a"], ["y"], perm=[1, 0])]
    return build(nodes, {"x": ["n", 3]}, outputs or {"y": [3, "n"]})


def sizes(value):
    return [dim.dim_value for dim in value.type.tensor_type.shape.dim]


def test_a_name_gets_its_size_everywhere():
    model = make_open()
    fix_input_shape(model.graph, "x", [8, 3])
    assert sizes(model.graph.input[0]) == [8, 3]
    assert sizes(model.graph.output[0]) == [3, 8]


def test_open_outputs_are_inferred_and_minus_one_is_open():
    model = make_open(y=[None, None])
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    fix_input_shape(model.graph, "x", [8, 3])
    fix_output_shapes(model)
    assert sizes(model.graph.output[0]) == [3, 8]


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("z", [1, 3], "Input z was not found in graph inputs"),
        ("x", [1, 3, 2], "Rank mismatch. Existing:2 Replacement:3"),
        ("x", [1, 4], "Can't replace existing fixed size of 3 with 4 for dimension 2"),
    ],
)
def test_what_cannot_be_is_refused(name, shape, words):
    with pytest.raises(ValueError, match=words) as caught:
        fix_input_shape(make_open().graph, name, shape)
    assert isinstance(caught.value, BitwrightError)
