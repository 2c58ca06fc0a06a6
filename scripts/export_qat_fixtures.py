"""Export small models with torch's fake-quantize modules, for the tests of QAT import.

Run in an environment with torch (2.13) and onnxscript: python scripts/export_qat_fixtures.py
The tests read what it writes, tests/fixtures/qat_*.onnx, and need no torch themselves.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import onnx
import torch
from torch import nn
from torch.ao import quantization

FOLDER = Path(__file__).parent.parent / "tests" / "fixtures"


class ModuleNet(nn.Module):
    """Modules that `prepare_qat` fuses and gives fake quantizers: what torch's tutorials do."""

    def __init__(self) -> None:
        super().__init__()
        self.quant = quantization.QuantStub()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(8)
        self.relu1 = nn.ReLU()
        self.pool = nn.MaxPool2d(2)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
        self.relu2 = nn.ReLU()
        self.sum = torch.ao.nn.quantized.FloatFunctional()
        self.fc = nn.Linear(8 * 16, 10)
        self.dequant = quantization.DeQuantStub()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ten numbers for an image."""
        x = self.pool(self.relu1(self.norm1(self.conv1(self.quant(x)))))
        x = self.sum.add(x, self.relu2(self.conv2(x)))
        return self.dequant(self.fc(torch.flatten(x, 1)))


class FunctionNet(nn.Module):
    """Fake quantizers called by hand: per tensor, per channel, signed, and none at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.fc = nn.Linear(4 * 9, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return five numbers for an image."""
        x = torch.fake_quantize_per_tensor_affine(x, 0.03, -4, -128, 127)
        limits = self.conv.weight.detach().abs().amax(dim=(1, 2, 3)) / 127
        zeros = torch.zeros(4, dtype=torch.int32)
        weight = torch.fake_quantize_per_channel_affine(
            self.conv.weight, limits, zeros, 0, -128, 127
        )
        x = nn.functional.conv2d(x, weight, self.conv.bias).relu()
        x = nn.functional.max_pool2d(x, 2)
        x = torch.fake_quantize_per_tensor_affine(x, 0.012, -128, -128, 127).flatten(1)
        matrix = torch.fake_quantize_per_tensor_affine(self.fc.weight, 0.0015, 0, -128, 127)
        return nn.functional.linear(x, matrix, self.fc.bias)


def train(net: nn.Module) -> nn.Module:
    """Return the module net after a few steps with fake quantizers, ready to export."""
    net.train()
    net = quantization.fuse_modules_qat(net, [["conv1", "norm1", "relu1"], ["conv2", "relu2"]])
    # Version 0 has observer and fake quantizer apart; torch exports no fused ones.
    net.qconfig = quantization.get_default_qat_qconfig("fbgemm", version=0)
    quantization.prepare_qat(net, inplace=True)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    for _ in range(20):
        loss = (net(torch.randn(8, 3, 8, 8)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    net.apply(quantization.disable_observer)
    return net


def export(net: nn.Module, name: str, *, dynamo: bool) -> None:
    """Write one model with one of torch's two exporters."""
    path = FOLDER / f"qat_{name}_{'dynamo' if dynamo else 'script'}.onnx"
    options = {"external_data": False, "opset_version": 18} if dynamo else {"opset_version": 17}
    sample = torch.randn(1, 3, 8, 8)
    torch.onnx.export(
        net.eval(), (sample,), str(path), dynamo=dynamo, input_names=["x"], output_names=["y"],
        **options,
    )  # fmt: skip
    # The exporter notes where on this machine every line of the model stands.
    model = onnx.load(path)
    for item in (*model.graph.node, *model.graph.value_info, model.graph, model):
        del item.metadata_props[:]
        item.doc_string = ""
    onnx.save(model, path)
    print(path.name, path.stat().st_size, "bytes")


def main() -> None:
    """Write all fixtures."""
    warnings.simplefilter("ignore")
    FOLDER.mkdir(exist_ok=True)
    torch.manual_seed(0)
    # The newer exporter does not take fake-quantize modules: they ask a tensor whether to observe.
    export(train(ModuleNet()), "modules", dynamo=False)
    net = FunctionNet()
    for dynamo in (False, True):
        export(net, "functions", dynamo=dynamo)


if __name__ == "__main__":
    main()
