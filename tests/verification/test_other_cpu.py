"""Models with int8 activations are opened under the rules of x86 and of Arm, on either machine."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from support.pair_models import Pairs

import bitwright
from bitwright.plan import QuantPlan
from bitwright.recipe import Recipe
from bitwright.verification import runtime


def make_product(kind="int8", opset=21):
    """A product behind a Transpose that has no pair of its own."""
    pairs = Pairs()
    moved = pairs.add("Transpose", [pairs.pair("x", kind)], "moved", perm=[1, 0])
    weight = pairs.stored("w", np.ones((4, 4)))
    product = pairs.add("MatMul", [moved, weight], "product")
    return pairs.model([pairs.pair(product, kind)], {"x": [4, 4]}, opset)


# What ONNX Runtime 1.31 does: it gives the Transpose a pair with output_dtype, and on x86 turns the
# zero point of that into uint8.
@pytest.mark.parametrize(
    ("kind", "opset", "depends", "refused"),
    [
        ("int8", 21, True, True),
        ("int8", 20, True, False),
        ("uint8", 21, False, False),
    ],
)
def test_only_the_rule_of_x86_refuses_int8_behind_what_moves_values(kind, opset, depends, refused):
    model = ir.from_proto(make_product(kind, opset))
    assert runtime.depends_on_cpu(model) == depends
    reason = runtime.why_refused(model, signed_kernels=False)
    assert (reason is not None) == refused
    assert not refused or "does not open it on x86" in reason
    assert runtime.why_refused(model, signed_kernels=True) is None


@pytest.mark.parametrize(("cpu", "noted"), [("arm", True), ("vnni", False)])
def test_a_result_says_which_other_cpu_does_not_open_it(monkeypatch, cpu, noted):
    monkeypatch.setattr(runtime, "detect_cpu", lambda: cpu)
    plan = QuantPlan(fingerprint="", recipe=Recipe(), tensors={}, nodes={})
    notes = runtime.note_other_cpu(plan, ir.from_proto(make_product())).notes
    assert bool(notes) == noted
    assert not noted or ("on x86" in notes[0] and "cpu-any" in notes[0])


def test_verify_of_a_machine_warns_of_the_other_kind():
    found = bitwright.verify(make_product(), "cpu", cpu="arm")
    assert [(f.rule, f.consequence) for f in found.warnings if f.rule == "other_cpu"] == [
        ("other_cpu", "refused")
    ]
    assert found.ok
    assert "other_cpu" not in bitwright.verify(make_product(), "arm-cpu").rules
    assert not bitwright.verify(make_product(), "cpu", cpu="vnni").ok
