"""Integer models in Q/DQ form, and what rewriting their nodes does to numbers and kernels."""

from __future__ import annotations

import tempfile

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime

from bitwright.emit.forms import write_forms
from support.models import as_proto, run, run_plain
from support.pair_models import Pairs

STEP = 1 / 16
"""A scale: as a power of two it keeps all sums exact in float32, in any order."""


class IntegerNet(Pairs):
    """Nodes between pairs; a method takes and returns the tensor that its reader reads."""

    def __init__(self, seed=0, exact=True):
        super().__init__()
        self.rng = np.random.default_rng(seed)
        self.exact = exact

    def scale(self, size=STEP):
        return size if self.exact else float(size * self.rng.uniform(0.7, 1.4))

    def quantize(self, tensor, scale=None, zero_point=None, kind="uint8"):
        scale = self.scale() if scale is None else scale
        zero_point = int(self.rng.integers(90, 160)) if zero_point is None else zero_point
        return self.pair(tensor, kind, scale, zero_point)

    def conv(self, source, reads, writes, kernel=1, *, group=1, bias=True, pair=True, **attributes):
        """One Conv with a scale for each channel, by default with a pair behind it."""
        name = f"conv{len(self.nodes)}"
        shape = (writes, reads // group, kernel, kernel)
        integers = self.rng.integers(-127, 128, shape)
        scales = np.float32([self.scale(2.0**-9 / kernel) for _ in range(writes)])
        if self.exact:
            scales = np.float32(2.0 ** self.rng.integers(-10, -8, writes))
        inputs = [source, self.stored(f"{name}_w", integers, "int8", scales, axis=0)]
        if bias:
            of_source = np.float32(self.constants[f"{source.removesuffix('_d')}_s"])
            numbers = self.rng.integers(-3000, 3000, writes)
            inputs.append(self.stored(f"{name}_b", numbers, "int32", of_source * scales, axis=0))
        attributes.setdefault("pads", [kernel // 2] * 4)
        made = self.add("Conv", inputs, name, group=group, kernel_shape=[kernel] * 2, **attributes)
        return self.quantize(made) if pair else made

    def op(self, op_type, inputs, *, pair=True, scale=None, zero_point=None, **attributes):
        made = self.add(op_type, inputs, f"{op_type.lower()}{len(self.nodes)}", **attributes)
        return self.quantize(made, scale, zero_point) if pair else made


def rewritten(proto):
    """Return (the model with all forms, its notes); ONNX's checker takes it."""
    model = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    notes = write_forms(model)
    after = as_proto(model)
    onnx.checker.check_model(after, full_check=True)
    return after, notes


def samples(proto, count=2, size=4.0):
    rng, found = np.random.default_rng(7), {}
    for value in proto.graph.input:
        shape = [count, *(dim.dim_value for dim in value.type.tensor_type.shape.dim)]
        found[value.name] = (rng.standard_normal(shape) * size).astype(np.float32)
    return [{name: arrays[index] for name, arrays in found.items()} for index in range(count)]


def differences(before, after, *, plain=True):
    """Return by how much outputs differ at most, as the graph says (plain) or as it is run."""
    feeds = samples(before)
    pairs = zip(
        *((run_plain if plain else run)(model, feeds) for model in (before, after)), strict=True
    )
    return max(np.abs(a - b).max() for one, two in pairs for a, b in zip(one, two, strict=True))


def kernels(proto):
    """Return the op types that ONNX Runtime makes of a model, in their order."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = f"{folder}/model.onnx"
        onnxruntime.InferenceSession(
            as_proto(proto).SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return [n.op_type for n in onnx.load(options.optimized_model_filepath).graph.node]
