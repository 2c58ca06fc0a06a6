"""x * Sigmoid(x) behind bytes as QuickGelu: the same values, in one kernel."""

import pytest
from support.form_models import IntegerNet, differences, kernels, rewritten


def make_swish(case="float"):
    net = IntegerNet()
    source = net.conv(net.quantize("x"), 16, 16)
    other = net.conv(source, 16, 16) if case == "other" else source
    gate = net.add("Sigmoid", [source], "gate")
    product = net.add("Mul", [gate, other], "product")
    out = net.conv(net.quantize(product), 16, 16) if case == "quantized" else product
    outputs = [out, gate] if case == "two_readers" else [out]
    return net.model(outputs, {"x": [1, 16, 6, 6]})


@pytest.mark.parametrize("case", ["float", "quantized"])
def test_the_values_stay_the_same_and_the_runtime_keeps_one_node(case):
    before = make_swish(case)
    after, notes = rewritten(before)
    assert [note.split(":")[0] for note in notes] == [
        "wrote 1 x * Sigmoid(x) as com.microsoft's QuickGelu, which ONNX Runtime does not find "
        "behind bytes"
    ]
    assert "QuickGelu" not in kernels(before)
    order = kernels(after)
    assert "QuickGelu" in order
    assert "Sigmoid" not in order
    assert order.count("DequantizeLinear") < kernels(before).count("DequantizeLinear")
    assert differences(before, after) < 1e-6
    assert differences(before, after, plain=False) < 1e-6


@pytest.mark.parametrize("case", ["other", "two_readers"])
def test_other_products_stay_as_they_are(case):
    assert rewritten(make_swish(case))[1] == []
