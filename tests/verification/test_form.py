from __future__ import annotations

from xml.etree import ElementTree

import pytest
from support.models import build, node
from support.pair_models import make_conv

from bitwright import verify
from bitwright.errors import TargetError


def test_a_pair_that_is_not_fused_is_a_warning_with_the_reason():
    found = verify(make_conv(paired=False), cpu="arm")
    (finding,) = found.findings
    assert (finding.rule, finding.node, finding.level) == ("unfused", "conv", "warning")
    assert finding.message == "this Conv runs in float: its output 'conv' has no Q/DQ pair"
    assert found.ok


def test_what_stays_float_depends_on_the_cpu():
    mixed = make_conv(result="int8")
    assert [finding.rule for finding in verify(mixed, cpu="arm").findings] == ["unfused"]
    assert not verify(mixed, cpu="vnni").findings


def test_a_model_that_the_runtime_refuses_is_an_error():
    nodes = [
        node("QuantizeLinear", ["x", "s"], ["q"], name="q"),
        node("Unheard", ["q"], ["y"], name="odd", domain="com.example"),
    ]
    model = build(nodes, {"x": [3]}, {"y": [3]}, {"s": 0.5}, domains=["com.example"])
    model.graph.initializer[0].data_type = 1
    model.graph.initializer[0].ClearField("raw_data")
    model.graph.initializer[0].float_data.append(0.5)
    found = verify(model, cpu="arm")
    assert not found.ok
    assert found.errors[-1].rule in ("runtime", "onnx")


def test_warnings_are_output_in_junit_and_failures_if_strict():
    found = verify(make_conv(paired=False), cpu="arm")
    lenient = ElementTree.fromstring(found.to_junit())
    assert lenient.get("failures") == "0"
    assert "runs in float" in lenient.find("testcase/system-out").text
    strict = ElementTree.fromstring(found.to_junit(strict=True))
    assert strict.get("failures") == "1"
    assert strict.find("testcase/system-out") is None


def test_an_unknown_cpu_is_named():
    with pytest.raises(TargetError, match="Did you mean 'avx2'"):
        verify(make_conv(), cpu="avx")
    with pytest.raises(TargetError, match="is for the target cpu"):
        verify(make_conv(), "npu-cnn", cpu="arm")
