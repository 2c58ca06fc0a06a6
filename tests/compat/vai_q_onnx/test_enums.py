"""The enumerations, with the documented values."""

from __future__ import annotations

import bitwright.compat.vai_q_onnx as vai_q_onnx


def test_enumerations_have_the_documented_values():
    def values(kind):
        return {member.name: member.value for member in kind}

    assert values(vai_q_onnx.PowerOfTwoMethod) == {"NonOverflow": 0, "MinMSE": 1}
    assert values(vai_q_onnx.VitisQuantFormat) == {
        "QDQ": 2,
        "FixNeuron": 3,
        "BFPFixNeuron": 4,
        "MXFixNeuron": 5,
    }
    names = "QInt8 QUInt8 QInt16 QUInt16 QInt32 QUInt32 QFloat16 QBFloat16 QBFP QMX".split()
    assert values(vai_q_onnx.VitisQuantType) == {name: i for i, name in enumerate(names, 1)}
    assert values(vai_q_onnx.ExtendedQuantFormat) == {"QOperator": 0, "QDQ": 1}
    assert values(vai_q_onnx.Int16Method) == {"MinMax": 0}
    assert values(vai_q_onnx.LayerWiseMethod) == {"LayerWisePercentile": 0}
    assert values(vai_q_onnx.ExtendedCalibrationMethod) == {"MinMSE": 0}
