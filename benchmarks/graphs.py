"""Networks of well-known size with seeded weights, built node by node."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class _Builder:
    """Appends convolutions (batch norm already folded) and keeps variances near one."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def constant(self, name: str, array: np.ndarray) -> str:
        self.weights.append(numpy_helper.from_array(array.astype(np.float32), name))
        return name

    def node(self, op: str, inputs: list[str], **attributes: object) -> str:
        name = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [f"{name}_out"], name, **attributes))
        return f"{name}_out"

    def conv(
        self,
        x: str,
        channels_in: int,
        channels: int,
        kernel: int,
        *,
        stride: int = 1,
        group: int = 1,
        gain: float = 2.0,
    ) -> str:
        fan_in = channels_in // group * kernel * kernel
        shape = (channels, channels_in // group, kernel, kernel)
        weight = self.random.normal(size=shape) * np.sqrt(gain / fan_in)
        # Channels of a trained network differ in size; equal ones would flatter per-tensor scales.
        weight *= self.random.lognormal(0, 0.4, size=(channels, 1, 1, 1))
        tag = f"{len(self.nodes)}"
        bias = self.random.normal(size=channels) * 0.1
        return self.node(
            "Conv",
            [x, self.constant(f"w{tag}", weight), self.constant(f"b{tag}", bias)],
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[kernel // 2] * 4,
            group=group,
        )

    def relu(self, x: str) -> str:
        return self.node("Relu", [x])

    def relu6(self, x: str) -> str:
        if not any(weight.name == "zero" for weight in self.weights):
            self.constant("zero", np.array(0.0))
            self.constant("six", np.array(6.0))
        return self.node("Clip", [x, "zero", "six"])

    def classifier(self, x: str, channels: int, classes: int = 1000) -> str:
        x = self.node("Flatten", [self.node("GlobalAveragePool", [x])])
        weight = self.random.normal(size=(classes, channels)) / np.sqrt(channels)
        inputs = [x, self.constant("fc_w", weight), self.constant("fc_b", np.zeros(classes))]
        return self.node("Gemm", inputs, transB=1)

    def finish(self, output: str, size: int) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "benchmark",
            [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3, size, size])],
            [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 1000])],
            self.weights,
        )
        graph.node[-1].output[0] = "logits"
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def resnet50(seed: int = 0, size: int = 224) -> onnx.ModelProto:
    """Return a graph with the layers and sizes of ResNet-50: 25.5 million parameters."""
    b = _Builder(seed)
    x = b.relu(b.conv("image", 3, 64, 7, stride=2))
    x = b.node("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(blocks):
            stride = 2 if block == 0 and stage else 1
            y = b.relu(b.conv(x, channels, width, 1))
            y = b.relu(b.conv(y, width, width, 3, stride=stride))
            y = b.conv(y, width, 4 * width, 1, gain=0.3)
            if block == 0:
                x = b.conv(x, channels, 4 * width, 1, stride=stride, gain=1.0)
            x = b.relu(b.node("Add", [y, x]))
            channels = 4 * width
    return b.finish(b.classifier(x, channels), size)


def resnet18(seed: int = 0, size: int = 224) -> onnx.ModelProto:
    """Return a graph with the layers and sizes of ResNet-18: 11.7 million parameters."""
    b = _Builder(seed)
    x = b.relu(b.conv("image", 3, 64, 7, stride=2))
    x = b.node("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for stage in range(4):
        width = 64 << stage
        for block in range(2):
            stride = 2 if block == 0 and stage else 1
            y = b.relu(b.conv(x, channels, width, 3, stride=stride))
            y = b.conv(y, width, width, 3, gain=0.5)
            if channels != width:
                x = b.conv(x, channels, width, 1, stride=stride, gain=1.0)
            x = b.relu(b.node("Add", [y, x]))
            channels = width
    return b.finish(b.classifier(x, channels), size)


def mobilenet_v2(seed: int = 0, size: int = 224) -> onnx.ModelProto:
    """Return a graph with the layers and sizes of MobileNetV2: 3.5 million parameters."""
    b = _Builder(seed)
    x = b.relu6(b.conv("image", 3, 32, 3, stride=2))
    channels = 32
    settings = (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2),
        (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    )  # fmt: skip
    for expansion, width, repeats, first_stride in settings:
        for index in range(repeats):
            stride = first_stride if index == 0 else 1
            hidden = channels * expansion
            y = x if expansion == 1 else b.relu6(b.conv(x, channels, hidden, 1))
            y = b.relu6(b.conv(y, hidden, hidden, 3, stride=stride, group=hidden))
            y = b.conv(y, hidden, width, 1, gain=1.0)
            x = b.node("Add", [x, y]) if stride == 1 and channels == width else y
            channels = width
    x = b.relu6(b.conv(x, channels, 1280, 1))
    return b.finish(b.classifier(x, 1280), size)


def make_images(count: int, seed: int, size: int = 224) -> np.ndarray:
    """Return smooth random pictures, normalized as for ImageNet: float32 (count, 3, size, size)."""
    random = np.random.default_rng(seed)
    coarse = random.normal(size=(count, 3, size // 16, size // 16))
    smooth = coarse.repeat(16, axis=2).repeat(16, axis=3)
    return (smooth + 0.3 * random.normal(size=smooth.shape)).astype(np.float32)


GRAPHS = {"resnet50": resnet50, "mobilenetv2": mobilenet_v2}
SMALL_GRAPHS = {"resnet18": resnet18, "mobilenetv2": mobilenet_v2}


def write_graph(name: str, folder: Path) -> Path:
    """Build one of the graphs, unless the folder has it already."""
    path = folder / f"{name}.onnx"
    if not path.exists():
        onnx.save({**GRAPHS, **SMALL_GRAPHS}[name](), path)
    return path
