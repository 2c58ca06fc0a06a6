"""Write the models of `peer_models`: one small network of ours, quantized by AMD Quark 0.13.

    python tests/peer_network.py      (needs amd-quark, onnxruntime, torch)

The network has what the limits are about: a residual sum of unlike branches, a Concat, pools, a
depthwise convolution with a LeakyRelu, and x * sigmoid(x).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FOLDER = Path(__file__).parent.parent / "verification" / "peer_models"


def make_network() -> onnx.ModelProto:
    """Return the float network; the seed makes it the same every time."""
    random = np.random.default_rng(4)
    nodes: list[onnx.NodeProto] = []
    constants: dict[str, np.ndarray] = {}

    def op(op_type, inputs, output, **attributes):
        name = f"{op_type.lower()}_{output}"
        nodes.append(helper.make_node(op_type, inputs, [output], name=name, **attributes))

    def conv(source, output, channels, kernel=3, group=1, scale=1.0, **attributes):
        shape = (8, channels // group, kernel, kernel)
        deviation = scale * np.sqrt(2 / np.prod(shape[1:]))
        constants[f"w_{output}"] = random.standard_normal(shape) * deviation
        constants[f"b_{output}"] = random.standard_normal(8) * 0.1
        attributes.update(pads=[kernel // 2] * 4, group=group)
        op("Conv", [source, f"w_{output}", f"b_{output}"], output, **attributes)

    conv("image", "c1", 3, strides=[2, 2])
    op("Relu", ["c1"], "r1")
    conv("r1", "c2", 8, group=8)
    op("LeakyRelu", ["c2"], "l2", alpha=0.1)
    conv("l2", "c3", 8, kernel=1, scale=1e-3)
    op("Add", ["r1", "c3"], "a1")
    op("Relu", ["a1"], "r2")
    conv("r2", "c4", 8, kernel=1)
    op("Sigmoid", ["c4"], "s4")
    op("Mul", ["c4", "s4"], "m4")
    conv("r2", "c5", 8, kernel=1, scale=0.02)
    op("Concat", ["m4", "c5"], "k1", axis=1)
    op("AveragePool", ["k1"], "p1", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    op("MaxPool", ["p1"], "p2", kernel_shape=[2, 2], strides=[2, 2])
    op("GlobalAveragePool", ["p2"], "g1")
    op("Flatten", ["g1"], "f1")
    constants["w_fc"] = random.standard_normal((10, 16)) * np.sqrt(2 / 16)
    constants["b_fc"] = random.standard_normal(10) * 5
    op("Gemm", ["f1", "w_fc", "b_fc"], "scores", transB=1)
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 32, 32])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 10])],
        [numpy_helper.from_array(a.astype(np.float32), name) for name, a in constants.items()],
    )
    opset = helper.make_opsetid("", 17)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8)


def make_samples(count: int = 8) -> list[dict[str, np.ndarray]]:
    """Return the data to calibrate with."""
    random = np.random.default_rng(1)
    return [{"image": random.random((1, 3, 32, 32), dtype=np.float32)} for _ in range(count)]


def main() -> None:
    os.environ.setdefault("QUARK_LOG_LEVEL", "critical")
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType
    from quark.onnx import ModelQuantizer, PowerOfTwoMethod, QConfig, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self):
            self.samples = iter(make_samples())

        def get_next(self):
            return next(self.samples, None)

    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):  # it leaves files
        onnx.save(make_network(), "network.onnx")
        for preset in ("XINT8", "A8W8", "BF16"):
            config = QConfig.get_default_config(preset)
            output = str(FOLDER / f"{preset.lower()}.onnx")
            ModelQuantizer(config).quantize_model("network.onnx", output, Reader())
        quantize_static(
            "network.onnx",
            str(FOLDER / "unchecked.onnx"),
            Reader(),
            quant_format=QuantFormat.QDQ,
            calibrate_method=PowerOfTwoMethod.MinMSE,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            enable_npu_cnn=True,
            include_cle=False,
            extra_options={"ActivationSymmetric": True, "NPULimitationCheck": False},
        )


if __name__ == "__main__":
    main()
