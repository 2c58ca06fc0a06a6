"""Where integer operators have their parameters, held against ONNX Runtime's own schemas."""

import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as runtime

from bitwright.decide.ops import OPERATORS
from bitwright.graph.quantized_ops import INTEGER_OPS

SCHEMAS = {schema.name: schema for schema in runtime.get_all_operator_schema()}


def input_name(op_type, index):
    """Return what the schema calls an input, in lower case."""
    return SCHEMAS[op_type].inputs[index].name.lower()


@pytest.mark.parametrize("row", INTEGER_OPS.values(), ids=INTEGER_OPS)
def test_scales_and_zero_points_stand_where_the_row_says(row):
    assert row.op_type in SCHEMAS
    scales = [
        places[-2] for places in (row.weight, row.result) if places and places[-2] is not None
    ]
    zeros = [places[-1] for places in (row.weight, row.result) if places]
    zeros += [] if row.source_zero is None else [row.source_zero]
    assert all("scale" in input_name(row.op_type, index) for index in scales)
    assert all("zero" in input_name(row.op_type, index) for index in zeros)


def test_every_operator_names_an_integer_form_that_exists():
    for op in OPERATORS.values():
        for form in (op.integer_op, op.dynamic_op, op.block_op):
            assert form in (None, "Clip", op.op_type) or INTEGER_OPS[form].computes in (
                op.op_type,
                "MatMul",  # what a Gemm becomes
            )
