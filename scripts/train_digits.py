"""Train the demo's digit classifier and write `digits.onnx` and `digits.npz`.

    pip install torch scikit-learn onnx
    python scripts/train_digits.py

The data is scikit-learn's copy of the UCI optical digits (1797 images of 8x8 pixels, 0 to 16):
1347 to train with, 450 to test. The graph is written node by node, with its batch norms in place,
so that the file shows what an exporter in evaluation mode leaves behind. One thread and fixed
seeds: the same torch version gives the same file.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional

SEED = 7
EPOCHS = 60
BATCH = 64
CALIBRATION = 200
LARGEST_PIXEL = 16
DEMO = Path(__file__).resolve().parent.parent / "src" / "bitwright" / "demo"


class ConvNorm(nn.Module):
    """A convolution and its batch norm."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 3, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(
            inputs, outputs, kernel, padding=kernel // 2, groups=groups, bias=False
        )
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Apply both."""
        return self.norm(self.conv(x))


class DigitNet(nn.Module):
    """A small CNN with the parts of large ones: residual, depthwise, pooling, Gemm."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvNorm(1, 32)
        self.residual_a = ConvNorm(32, 32)
        self.residual_b = ConvNorm(32, 32)
        self.depthwise = ConvNorm(32, 32, groups=32)
        self.pointwise = ConvNorm(32, 64, kernel=1)
        self.deep_a = ConvNorm(64, 64)
        self.deep_b = ConvNorm(64, 64)
        self.classify = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch."""
        x = functional.relu(self.stem(x))
        y = functional.relu(self.residual_a(x))
        x = functional.relu(self.residual_b(y) + x)
        x = functional.relu(self.depthwise(x))
        x = functional.relu(self.pointwise(x))
        x = functional.max_pool2d(x, 2)
        y = functional.relu(self.deep_a(x))
        x = functional.relu(self.deep_b(y) + x)
        return self.classify(x.mean(dim=(2, 3)))


class GraphWriter:
    """Collects nodes and weights; each method returns the name of what it computes."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def node(self, op: str, name: str, inputs: list[str], **attributes: object) -> str:
        """Add one node whose only output carries its name."""
        output = f"{name}_out"
        self.nodes.append(helper.make_node(op, inputs, [output], name=name, **attributes))
        return output

    def weight(self, name: str, value: Tensor) -> str:
        """Add one initializer."""
        array = value.detach().numpy().astype(np.float32)
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def conv_norm(self, name: str, block: ConvNorm, x: str) -> str:
        """Add a convolution and its batch norm."""
        kernel = block.conv.kernel_size[0]
        x = self.node(
            "Conv",
            f"{name}_conv",
            [x, self.weight(f"{name}_weight", block.conv.weight)],
            kernel_shape=[kernel, kernel],
            pads=[kernel // 2] * 4,
            group=block.conv.groups,
        )
        norm = block.norm
        parts = (norm.weight, norm.bias, norm.running_mean, norm.running_var)
        names = ("gamma", "beta", "mean", "variance")
        parameters = [
            self.weight(f"{name}_{label}", part) for label, part in zip(names, parts, strict=True)
        ]
        return self.node("BatchNormalization", f"{name}_norm", [x, *parameters], epsilon=norm.eps)

    def relu(self, name: str, x: str) -> str:
        """Add a Relu."""
        return self.node("Relu", f"{name}_relu", [x])


def write_model(net: DigitNet) -> onnx.ModelProto:
    """Write the trained network as an ONNX graph, in the order of `DigitNet.forward`."""
    graph = GraphWriter()
    x = graph.relu("stem", graph.conv_norm("stem", net.stem, "image"))
    y = graph.relu("residual_a", graph.conv_norm("residual_a", net.residual_a, x))
    y = graph.conv_norm("residual_b", net.residual_b, y)
    x = graph.relu("residual", graph.node("Add", "residual_add", [y, x]))
    x = graph.relu("depthwise", graph.conv_norm("depthwise", net.depthwise, x))
    x = graph.relu("pointwise", graph.conv_norm("pointwise", net.pointwise, x))
    x = graph.node("MaxPool", "pool", [x], kernel_shape=[2, 2], strides=[2, 2])
    y = graph.relu("deep_a", graph.conv_norm("deep_a", net.deep_a, x))
    y = graph.conv_norm("deep_b", net.deep_b, y)
    x = graph.relu("deep", graph.node("Add", "deep_add", [y, x]))
    x = graph.node("GlobalAveragePool", "average", [x])
    x = graph.node("Flatten", "flatten", [x], axis=1)
    weight = graph.weight("classify_weight", net.classify.weight)
    bias = graph.weight("classify_bias", net.classify.bias)
    graph.nodes.append(
        helper.make_node("Gemm", [x, weight, bias], ["logits"], name="classify", transB=1)
    )
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "digits",
            [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 8, 8])],
            [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])],
            graph.weights,
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
        producer_name="bitwright train_digits.py",
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def shift(images: Tensor, generator: torch.Generator) -> Tensor:
    """Move every image of a batch by at most one pixel each way, filling with background."""
    padded = functional.pad(images, (1, 1, 1, 1))
    moves = torch.randint(0, 3, (len(images), 2), generator=generator).tolist()
    return torch.stack(
        [image[:, y : y + 8, x : x + 8] for image, (y, x) in zip(padded, moves, strict=True)]
    )


def train(images: Tensor, labels: Tensor) -> DigitNet:
    """Fit a network, and return it in evaluation mode."""
    generator = torch.Generator().manual_seed(SEED)
    net = DigitNet()
    steps = -(-len(images) // BATCH)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, EPOCHS * steps)
    for epoch in range(EPOCHS):
        total = 0.0
        for chosen in torch.randperm(len(images), generator=generator).split(BATCH):
            logits = net(shift(images[chosen], generator))
            loss = functional.cross_entropy(logits, labels[chosen], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(chosen)
        print(f"epoch {epoch + 1}: loss {total / len(images):.4f}", flush=True)
    return net.eval()


def main() -> None:
    """Train, test, and write the two files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=DEMO, help="folder to write to")
    output: Path = parser.parse_args().output
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)

    pixels, labels = load_digits(return_X_y=True)
    pixels = pixels.reshape(-1, 1, 8, 8).astype(np.uint8)
    train_x, test_x, train_y, test_y = train_test_split(
        pixels, labels.astype(np.uint8), test_size=450, random_state=SEED, stratify=labels
    )
    net = train(
        torch.from_numpy(train_x.astype(np.float32) / LARGEST_PIXEL),
        torch.from_numpy(train_y.astype(np.int64)),
    )
    with torch.no_grad():
        logits = net(torch.from_numpy(test_x.astype(np.float32) / LARGEST_PIXEL))
    accuracy = float(np.mean(logits.argmax(dim=1).numpy() == test_y))
    print(f"test accuracy {accuracy:.2%}, {sum(p.numel() for p in net.parameters())} parameters")

    output.mkdir(parents=True, exist_ok=True)
    onnx.save(write_model(net), output / "digits.onnx")
    np.savez_compressed(
        output / "digits.npz", calibration=train_x[:CALIBRATION], images=test_x, labels=test_y
    )
    for name in ("digits.onnx", "digits.npz"):
        print(f"{name}: {(output / name).stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
