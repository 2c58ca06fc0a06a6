"""What --effort brings back: a MobileNet-style network whose plain int8 loses too much.

The network (inverted residuals with depthwise convolutions, batch norms and ReLU, as MobileNetV2
has them) is trained here on scikit-learn's copy of the UCI digits: 1347 real images to train with,
450 to score. Real MobileNets have channels of very uneven size, which one scale for a whole weight
cannot hold. A net this small does not grow them in a minute of training, so each hidden channel is
then scaled by a factor between 1/SPREAD and SPREAD, which the next layer undoes: ReLU passes
positive factors, so that the float network computes what it did before.

    pip install torch scikit-learn
    python benchmarks/effort.py                      all efforts, about two minutes on one core
    python benchmarks/effort.py --save digits.onnx   also keep the float model
    python benchmarks/effort.py --model digits.onnx  a model kept so; nothing is trained
    python benchmarks/effort.py --recipe a8w4        weights of 4 bits
    python benchmarks/effort.py --recognizer         instead, the PP-OCRv4 recognizer of text lines
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from measure import print_table
from onnx import TensorProto, helper, numpy_helper

import bitwright

SEED = 7
EPOCHS = 40
BATCH = 64
SPREAD = 12.0
BLOCKS = ((16, 16, 1), (16, 24, 2), (24, 24, 1), (24, 32, 2), (32, 32, 1))
"""Channels before and after, and the stride of each inverted residual."""
EXPANSION = 4


def train() -> list[tuple[np.ndarray, np.ndarray, dict[str, Any]]]:
    """Fit the network; return weights, biases and attributes of its layers, norms folded."""
    import torch
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from torch import Tensor, nn
    from torch.nn import functional

    torch.manual_seed(SEED)
    torch.set_num_threads(1)

    def layer(inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> Any:
        convolution = nn.Conv2d(
            inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False
        )
        return nn.Sequential(convolution, nn.BatchNorm2d(outputs))

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([layer(1, BLOCKS[0][0], 3)])
            for inputs, outputs, stride in BLOCKS:
                wide = EXPANSION * inputs
                self.layers.append(layer(inputs, wide))
                self.layers.append(layer(wide, wide, 3, stride, groups=wide))
                self.layers.append(layer(wide, outputs))
            self.layers.append(layer(BLOCKS[-1][1], 64))
            self.classify = nn.Linear(64, 10)

        def forward(self, x: Tensor) -> Tensor:
            stem, *middle, last = self.layers
            x = functional.relu(stem(x))
            for index, (inputs, outputs, stride) in enumerate(BLOCKS):
                expand, depthwise, project = middle[3 * index : 3 * index + 3]
                y = project(functional.relu(depthwise(functional.relu(expand(x)))))
                x = x + y if stride == 1 and inputs == outputs else y
            return self.classify(functional.relu(last(x)).mean(dim=(2, 3)))

    pixels, labels = load_digits(return_X_y=True)
    # The split of the shipped demo, whose images score the result here.
    images, _, answers, _ = train_test_split(
        pixels.reshape(-1, 1, 8, 8), labels, test_size=450, random_state=SEED, stratify=labels
    )
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(answers)
    net = Network()
    steps = -(-len(x) // BATCH)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, EPOCHS * steps)
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(x)).split(BATCH):
            padded = functional.pad(x[chosen], (1, 1, 1, 1))
            row, column = torch.randint(0, 3, (2,)).tolist()
            moved = padded[:, :, row : row + 8, column : column + 8]
            loss = functional.cross_entropy(net(moved), y[chosen], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    net.eval()
    folded = []
    for convolution, norm in net.layers:
        factor = (norm.weight / (norm.running_var + norm.eps).sqrt()).detach()
        weight = convolution.weight.detach() * factor.reshape(-1, 1, 1, 1)
        bias = norm.bias.detach() - norm.running_mean * factor
        kernel, stride = convolution.kernel_size[0], convolution.stride[0]
        attributes = {
            "kernel_shape": [kernel] * 2,
            "strides": [stride] * 2,
            "pads": [kernel // 2] * 4,
            "group": convolution.groups,
        }
        folded.append((weight.numpy(), bias.numpy(), attributes))
    classify = net.classify
    folded.append((classify.weight.detach().numpy(), classify.bias.detach().numpy(), {}))
    return folded


def make_uneven(layers: list[Any], spread: float) -> list[Any]:
    """Scale each channel between the layers of a block, and undo it in the next layer."""
    random = np.random.default_rng(SEED)
    changed = [[weight.copy(), bias.copy(), attributes] for weight, bias, attributes in layers]
    for block in range(len(BLOCKS)):
        for first in (1 + 3 * block, 2 + 3 * block):
            head, tail = changed[first], changed[first + 1]
            factors = spread ** random.uniform(-1, 1, len(head[1]))
            head[0] *= factors.reshape(-1, 1, 1, 1)
            head[1] *= factors
            depthwise = tail[2]["group"] > 1
            tail[0] /= factors.reshape((-1, 1, 1, 1) if depthwise else (1, -1, 1, 1))
    return changed


def write(layers: list[Any]) -> onnx.ModelProto:
    """Return the network as a graph."""
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def add(op: str, name: str, inputs: list[str], **attributes: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [f"{name}_out"], name=name, **attributes))
        return f"{name}_out"

    def convolve(index: int, x: str, *, relu: bool = True) -> str:
        weight, bias, attributes = layers[index]
        for label, array in (("weight", weight), ("bias", bias)):
            name = f"layer{index}_{label}"
            weights.append(numpy_helper.from_array(array.astype(np.float32), name))
        inputs = [x, f"layer{index}_weight", f"layer{index}_bias"]
        result = add("Conv", f"layer{index}", inputs, **attributes)
        return add("Relu", f"layer{index}_relu", [result]) if relu else result

    x = convolve(0, "image")
    for block, (inputs, outputs, stride) in enumerate(BLOCKS):
        first = 1 + 3 * block
        y = convolve(first + 2, convolve(first + 1, convolve(first, x)), relu=False)
        x = add("Add", f"block{block}_sum", [x, y]) if stride == 1 and inputs == outputs else y
    last = len(layers) - 2
    x = add("GlobalAveragePool", "average", [convolve(last, x)])
    x = add("Flatten", "flatten", [x])
    weight, bias, _ = layers[-1]
    weights.append(numpy_helper.from_array(weight, "classify_weight"))
    weights.append(numpy_helper.from_array(bias, "classify_bias"))
    inputs = [x, "classify_weight", "classify_bias"]
    nodes.append(helper.make_node("Gemm", inputs, ["logits"], name="classify", transB=1))
    graph = helper.make_graph(
        nodes,
        "uneven digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])],
        weights,
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="effort.py"
    )
    onnx.checker.check_model(model, full_check=True)
    return model


@dataclass(frozen=True)
class Subject:
    """A float model, what it is calibrated on, and how often an answer of it is right."""

    model: onnx.ModelProto
    data: Any
    score: Callable[[onnxruntime.InferenceSession], float]
    recipe: str


def digits(model: onnx.ModelProto) -> Subject:
    """Return the network, with the images of the shipped demo."""
    demo = bitwright.load_demo()

    def score(session: onnxruntime.InferenceSession) -> float:
        [logits] = session.run(None, {"image": demo.images})
        return float(np.mean(np.argmax(logits, axis=1) == demo.labels))

    return Subject(model, demo.calibration, score, "int8")


def recognizer(count: int = 200) -> Subject:
    """Return a real recognizer of text lines, scored by exact strings."""
    from text_lines import alphabet, decode, make_lines, recognizer_path

    lines, characters = make_lines(count, seed=1), alphabet()

    def score(session: onnxruntime.InferenceSession) -> float:
        answers = (decode(session.run(None, {"x": x.array})[0], characters) for x in lines)
        return sum(a == x.text for a, x in zip(answers, lines, strict=True)) / count

    data = [{"x": line.array} for line in make_lines(96, seed=0)]
    return Subject(onnx.load(recognizer_path()), data, score, "int8-per-channel")


def accuracy(subject: Subject, model: onnx.ModelProto) -> float:
    """Return the share of right answers of a model."""
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return subject.score(session)


def choose(options: argparse.Namespace) -> Subject:
    """Return what the options ask for: a model that is trained, one that was kept, a real one."""
    if options.recognizer:
        return recognizer()
    if options.model is not None:
        return digits(onnx.load(options.model))
    model = write(make_uneven(train(), options.spread))
    if options.save is not None:
        onnx.save(model, options.save)
    return digits(model)


def main() -> None:
    """Train or load, quantize with each effort, and print what is left of the accuracy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a float model that --save kept")
    parser.add_argument("--save", type=Path, help="keep the float model here")
    parser.add_argument("--spread", type=float, default=SPREAD, help="how uneven channels are")
    parser.add_argument("--recognizer", action="store_true", help="a real recognizer of text")
    parser.add_argument("--recipe", help="the recipe to start from")
    parser.add_argument("--efforts", default="low,medium,high", help="which to show")
    options = parser.parse_args()
    subject = choose(options)
    plain = accuracy(subject, subject.model)
    rows = [("float", f"{plain:.2%}", "", "", "")]
    for effort in (None, *options.efforts.split(",")):
        started = time.perf_counter()
        result = bitwright.quantize(
            subject.model,
            data=subject.data,
            recipe=options.recipe or subject.recipe,
            effort=effort,
            progress=False,
        )
        seconds = time.perf_counter() - started
        found = accuracy(subject, result.to_proto())
        rows.append(
            (
                "no effort given" if effort is None else f"effort {effort}",
                f"{found:.2%}",
                f"{100 * (found - plain):+.2f}",
                f"{result.outputs[0].sqnr:.1f} dB",
                f"{seconds:.1f} s",
            )
        )
        for note in result.plan.notes:
            print(f"  {effort}: {note}")
    print_table(("model", "accuracy", "points", "held-back SQNR", "time"), rows)


if __name__ == "__main__":
    main()
