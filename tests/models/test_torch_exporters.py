"""The same network by torch's TorchScript exporter and by its dynamo exporter."""

from __future__ import annotations

import warnings
from collections import Counter

import pytest
from support.models import normal, quality
from support.qat_models import fused_ops

import bitwright

torch = pytest.importorskip("torch", reason="only torch has these exporters")
nn = torch.nn

INTEGER_KERNELS = ("QLinear", "QGemm", "MatMulInteger")


class Layer(nn.Module):
    """Attention and two linear layers behind normalizations, as in a vision transformer."""

    def __init__(self, width=32, heads=2):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width, bias=False)

    def forward(self, x):
        batch, length, width = x.shape
        split = self.qkv(self.norm1(x)).reshape(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class VisionTransformer(nn.Module):
    def __init__(self, width=32, layers=3):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, 17, width))
        self.layers = nn.Sequential(*(Layer(width) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, image):
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.places
        return self.head(self.norm(self.layers(x))[:, 0])


def export(network, path, *, dynamo):
    example = (torch.zeros(1, 3, 16, 16),)
    network.eval()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network, example, path, input_names=["image"], dynamo=dynamo, external_data=False
        )
    return path


@pytest.mark.slow
def test_both_exporters_give_the_same_kernels_and_the_same_error(tmp_path):
    torch.manual_seed(0)
    network = VisionTransformer()
    samples = [{"image": normal(1, 3, 16, 16, seed=i)} for i in range(16)]
    kernels, errors = [], []
    for dynamo in (False, True):
        path = export(network, tmp_path / f"{dynamo}.onnx", dynamo=dynamo)
        quantized = bitwright.quantize(path, data=samples, purpose="size").model
        found = fused_ops(quantized, tmp_path)
        kernels.append(
            Counter({op: n for op, n in found.items() if op.startswith(INTEGER_KERNELS)})
        )
        errors.append(quality(path, quantized, samples))
    assert kernels[0] == kernels[1]
    assert kernels[0].total() == 1 + 3 * 4 + 1  # the patches, four products a layer, the head
    assert errors[0] == pytest.approx(errors[1], abs=0.5)
