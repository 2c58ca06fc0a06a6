"""What `verify` says of models that AMD Quark made, which spell and order things their own way."""

from __future__ import annotations

from collections import Counter

import onnx
import pytest
from support.peer_network import FOLDER, make_network, make_samples

import bitwright


def findings(name):
    return bitwright.verify(FOLDER / f"{name}.onnx", "npu-cnn").findings


def test_what_was_made_for_the_npu_keeps_its_limits_but_not_the_order_of_nodes():
    (finding,) = findings("xint8")
    assert finding.rule == "order"
    assert "'s4_QuantizeLinear' reads 's4' before any node makes it" in finding.message


def test_limits_that_nobody_kept_are_named_with_node_rule_and_positions():
    found = {(f.node, f.rule): f for f in findings("unchecked")}
    assert {("concat_k1", "align_concat"), ("averagepool_p1", "align_pool")} <= found.keys()
    finding = found["concat_k1", "align_concat"]
    assert finding.message == "input - output is 3 and must be 0"
    assert finding.values == {"input 0": 6, "input 1": 9, "output": 6}


def test_float_scales_are_no_positions():
    counts = Counter(finding.rule for finding in findings("a8w8"))
    assert set(counts) == {"power_of_two"}
    model = onnx.load(FOLDER / "a8w8.onnx")
    assert counts["power_of_two"] == sum("uantizeLinear" in n.op_type for n in model.graph.node)


def test_other_types_than_8_bits_are_not_for_cnns_on_the_npu():
    found = findings("bf16")
    assert {finding.rule for finding in found} == {"eight_bits"}
    assert found[0].message == "it holds bfloat16, and CNNs on the NPU have int8 and uint8"


@pytest.mark.parametrize("target", ["cpu", "npu-transformer"])
def test_for_other_targets_only_the_order_of_nodes_is_wrong(target):
    errors = {
        name: {f.rule for f in bitwright.verify(FOLDER / f"{name}.onnx", target).errors}
        for name in ("xint8", "a8w8")
    }
    assert errors == {"xint8": {"order"}, "a8w8": set()}


def test_the_same_network_quantized_here_breaks_nothing():
    made = bitwright.quantize(make_network(), data=make_samples(), target="npu-cnn")
    assert bitwright.verify(made.model, "npu-cnn").ok
