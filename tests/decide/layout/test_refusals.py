import dataclasses

import numpy as np
import onnx_ir as ir
import pytest

from bitwright.decide.layout.refusals import Candidate, refuse
from bitwright.decide.ops import Skip, rule_of
from bitwright.numerics.types import UINT16
from bitwright.recipe import Emulation, Placement, Recipe, Selection, Simulation

FLOAT = ir.TensorType(ir.DataType.FLOAT)


def candidate(op_type="Mul", **changes):
    """Return a node that nothing speaks against, changed."""
    inputs = [ir.Value(name=name, type=FLOAT) for name in "ab"]
    node = ir.node(op_type, inputs, changes.pop("attributes", {}))
    node.outputs[0].dtype = changes.pop("result", ir.DataType.FLOAT)
    fine = Candidate(
        node=node,
        rule=rule_of(op_type),
        recipe=Recipe(),
        opset=21,
        has_data=True,
        has_float_input=False,
        has_fused_input=False,
        has_integer_reader=True,
    )
    return dataclasses.replace(fine, **changes)


def test_a_node_that_nothing_speaks_against_is_not_refused():
    assert refuse(candidate()) is None
    assert refuse(candidate("LeakyRelu", result=ir.DataType.FLOAT16)) is None


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (candidate("MaxPool", opset=11), "from opset 12 on"),
        (candidate("Sub", recipe=Recipe(format="qoperator")), "no integer Sub for the format"),
        (candidate("LayerNormalization"), "pairs would only cost time"),
        (candidate("Softmax"), "integer Softmax is slower than its float one"),
        (
            candidate("LeakyRelu", recipe=Recipe(float16="keep"), result=ir.DataType.FLOAT16),
            "the integer LeakyRelu takes float32 scales only, and float16 is kept",
        ),
        (candidate("Conv"), "its weight is computed at run time"),
        (
            candidate("HardSigmoid", recipe=Recipe(simulate=Simulation())),
            "alpha 1/6 and beta 0.5",
        ),
        (candidate(has_data=False), "it works on float"),
        (candidate("Reshape", has_float_input=True), "quantizing it alone would gain nothing"),
        # Rounding ahead of it makes ties, and with them other answers.
        (candidate("ArgMax", has_float_input=True), "quantizing it alone would gain nothing"),
        (candidate(has_float_input=True), "an input of it is float"),
        (candidate(has_integer_reader=False), "its result is only read in float"),
        (
            candidate("MatMul", recipe=Recipe(select=Selection(constant_weights_only=True))),
            "its second input is not constant",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_refusal_says_why(refused, reason):
    skip = refuse(refused)
    assert isinstance(skip, Skip) and reason in skip.reason


def test_the_first_of_several_reasons_is_given():
    several = candidate("MaxPool", opset=11, has_float_input=True, has_data=False)
    assert "opset 12" in refuse(several).reason


@pytest.mark.parametrize(
    ("op_type", "recipe"),
    [
        ("LayerNormalization", Recipe(activation=UINT16)),
        ("LayerNormalization", Recipe(select=Selection(op_types=("LayerNormalization",)))),
        ("Mul", Recipe(place=Placement(isolated=True))),
        ("Reshape", Recipe(place=Placement(force_shared=True))),
    ],
)
def test_what_is_asked_for_is_not_refused(op_type, recipe):
    isolated = op_type in ("Mul", "Reshape")
    assert refuse(candidate(op_type, recipe=recipe, has_float_input=isolated)) is None


def check_by_our_rules_only(node, words, stays):
    """Check whether a node stays float for a reason that ONNX Runtime's tool does not know."""
    node.outputs[0].dtype = ir.DataType.FLOAT
    rule = rule_of(node.op_type)
    found = refuse(candidate(node=node, rule=rule, recipe=Recipe(place=Placement(isolated=True))))
    assert (found is not None and words in found.reason) == stays
    conventions = Emulation(conventions="onnxruntime")
    as_there = Recipe(place=Placement(isolated=True), emulate=conventions)
    assert refuse(candidate(node=node, rule=rule, recipe=as_there)) is None


@pytest.mark.parametrize(
    ("divisor", "stays"), [([2.0, -0.01], True), ([2.0, 0.5, 0.0], False), ([0.0], False)]
)
def test_no_divisor_is_rounded_to_zero(divisor, stays):
    x = ir.Value(name="x", type=FLOAT)
    constant = ir.Value(name="c", type=FLOAT, const_value=ir.tensor(np.float32(divisor)))
    node = ir.node("Div", [x, constant])
    check_by_our_rules_only(node, "become zero", stays)


@pytest.mark.parametrize(
    ("low", "high", "stays"),
    [
        (1e-9, 1e9, True),
        (1e-9, None, True),
        (0.5, 6.0, False),
        (0.0, 6.0, False),
        (-1e-9, 1, False),
    ],
)
def test_what_is_kept_above_zero_is_not_rounded_to_it(low, high, stays):
    """As the floor in front of a logarithm."""
    inputs = [ir.Value(name="x", type=FLOAT)]
    for name, bound in (("low", low), ("high", high)):
        if bound is not None:
            number = ir.tensor(np.float32(bound))
            inputs.append(ir.Value(name=name, type=FLOAT, const_value=number))
    node = ir.node("Clip", inputs)
    check_by_our_rules_only(node, "above zero", stays)


@pytest.mark.parametrize(
    ("shape", "opset", "axis", "stays"),
    [
        ([4, 1], 13, {}, True),
        ([4, 1], 12, {}, True),
        ([1, 1, 3], 13, {"axis": 1}, True),
        ([1, 1, 3], 12, {"axis": 1}, False),
        ([4, 2], 13, {}, False),
        ([4, "n"], 13, {}, False),
    ],
)
def test_a_softmax_of_one_value_stays_float(shape, opset, axis, stays):
    x, y = (ir.val(name, ir.DataType.FLOAT, shape) for name in "xy")
    node = ir.node("Softmax", [x], axis, outputs=[y])
    recipe = Recipe(place=Placement(isolated=True))
    found = refuse(candidate(node=node, rule=rule_of("Softmax"), recipe=recipe, opset=opset))
    assert (found is not None and "whatever" in found.reason) == stays
