"""What is noted of tensors behaves as the peer's."""

from __future__ import annotations

import numpy as np
import pytest
from support.peer_overrides import both

from bitwright.compat.onnxruntime.quant_records import QDQTensorQuantInfo
from bitwright.errors import BitwrightError

MODULES = both("qdq_quantizer")


@pytest.mark.parametrize("nodes", [None, set(), {"a"}])
@pytest.mark.parametrize("converted", [None, "converted"])
@pytest.mark.parametrize("kind", ["QDQTensorQuantParams", "QDQTensorQuantizedValue"])
def test_a_reader_gets_what_the_peer_gives_it(kind, converted, nodes):
    mine, theirs = (
        [getattr(m, kind)("original", converted, nodes).get_for_consumer(n) for n in "ab"]
        for m in MODULES
    )
    assert mine == theirs


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ({"scale": np.array(1.0)}, ValueError),
        ({"zero_point": [1]}, TypeError),
        ({"axis": "last"}, TypeError),
    ],
)
def test_parameters_of_the_wrong_kind_are_refused_as_by_the_peer(data, error):
    for module in MODULES:
        with pytest.raises(error) as caught:
            module.QuantizationParams(**data)
    with pytest.raises(BitwrightError):
        MODULES[0].QuantizationParams(**data)
    assert caught.type is error


def test_parameters_are_like_a_dict():
    for module in MODULES:
        params = module.QuantizationParams(scale=np.float32([1]), axis=None)
        params["zero_point"] = 3
        assert list(params) == ["scale", "axis", "zero_point"]
        assert params["zero_point"] == params.get("zero_point") == 3
        assert params.get("nothing", 5) == 5 and len(params) == 3


def test_a_tensor_says_whether_it_shares_parameters():
    for module in MODULES:
        provider = module.QDQQuantParamProvider("x", "node")
        info = module.QDQTensorQuantInfo(quant_para_provider=provider, data_type=1)
        assert info.is_shared and info.tensor_type is module.QDQQuantTensorType.ACTIVATION
    with pytest.raises(BitwrightError, match="data_type"):
        QDQTensorQuantInfo()
