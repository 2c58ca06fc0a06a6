"""Models as training leaves them: float ops with Q/DQ pairs, in the right and in odd places."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto

from support.models import as_proto, build, info, node, normal, ops, weight


class Trained:
    """Builds a graph node by node; every tensor is known by its name."""

    def __init__(self, shape=(1, 3, 8, 8), *, opset=17, domain="", constant_nodes=False):
        self.nodes, self.constants = [], {}
        self.inputs = {"x": list(shape)}
        self.opset, self.domain, self.constant_nodes = opset, domain, constant_nodes
        self._count = 0

    def add(self, op, inputs, **attributes):
        self._count += 1
        name = f"{op.lower()}{self._count}"
        output = f"{name}_out"
        self.nodes.append(node(op, list(inputs), [output], name=name, **attributes))
        return output

    def constant(self, name, array):
        array = np.asarray(array)
        if self.constant_nodes:
            tensor = onnx.numpy_helper.from_array(array, name)
            self.nodes.append(node("Constant", [], [name], value=tensor, name=f"{name}_node"))
        else:
            self.constants[name] = array
        return name

    def parameters(self, name, scale, zero, dtype):
        names = [self.constant(f"{name}_s", np.asarray(scale, np.float32))]
        if zero is not None:
            shape = np.shape(scale)
            zeros = np.broadcast_to(np.asarray(zero), shape).astype(dtype)
            names.append(self.constant(f"{name}_z", zeros))
        return names

    def quantize(self, tensor, scale, zero=0, dtype=np.uint8, axis=None):
        """Add a Q; zero=None leaves the zero point out. Returns (integers, parameter names)."""
        self._count += 1
        name = f"q{self._count}"
        names = self.parameters(name, scale, zero, dtype)
        extra = {} if axis is None else {"axis": axis}
        output = f"{name}_out"
        self.nodes.append(
            node(
                "QuantizeLinear", [tensor, *names], [output], name=name, domain=self.domain, **extra
            )
        )
        return output, names

    def dequantize(self, integers, names, axis=None):
        self._count += 1
        name = f"dq{self._count}"
        extra = {} if axis is None else {"axis": axis}
        self.nodes.append(
            node(
                "DequantizeLinear",
                [integers, *names],
                [f"{name}_out"],
                name=name,
                domain=self.domain,
                **extra,
            )
        )
        return f"{name}_out"

    def pair(self, tensor, scale, zero=0, dtype=np.uint8, axis=None):
        return self.dequantize(*self.quantize(tensor, scale, zero, dtype, axis), axis)

    def weight(self, name, array, *, axis=None, dtype=np.int8, zero=0):
        """Add a float weight with its pair, as fake-quantize modules are exported."""
        self.constant(name, array)
        rest = tuple(i for i in range(array.ndim) if i != axis)
        limit = np.abs(array).max(axis=rest) if axis is not None else np.abs(array).max()
        return self.pair(name, np.float32(limit / 127), zero, dtype, axis)

    def conv(self, tensor, name, channels=(4, 3), *, axis=None, bias=True, **options):
        array = weight(*channels, 3, 3, seed=len(name) + channels[0])
        read = [tensor, self.weight(f"{name}_w", array, axis=axis, **options)]
        if bias:
            read.append(self.constant(f"{name}_b", normal(channels[0], seed=7, size=0.1)))
        return self.add("Conv", read, pads=[1, 1, 1, 1])

    def model(self, *outputs):
        domains = (self.domain,) if self.domain else ()
        results = []
        for index, tensor in enumerate(outputs):
            name = "y" if not index else f"y{index}"
            for item in self.nodes:
                item.input[:] = [name if i == tensor else i for i in item.input]
                item.output[:] = [name if o == tensor else o for o in item.output]
            results.append(info(name))
        inputs = [info(name, shape) for name, shape in self.inputs.items()]
        # Outputs of unknown rank: the runtime and shape inference find them.
        for value in results:
            value.type.tensor_type.ClearField("shape")
        return build(self.nodes, inputs, results, self.constants, opset=self.opset, domains=domains)


def samples_for(shape=(1, 3, 8, 8), count=4):
    return [{"x": normal(*shape, seed=100 + index)} for index in range(count)]


def fused_ops(model, folder):
    """Return the ops that ONNX Runtime makes of a model at its default optimization level."""
    path = str(folder / "optimized.onnx")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = path
    data = as_proto(model).SerializeToString()
    onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return ops(onnx.load(path))


def largest_difference(expected, actual):
    return max(
        float(np.abs(np.float64(a) - np.float64(b)).max())
        for one, two in zip(expected, actual, strict=True)
        for a, b in zip(one, two, strict=True)
    )


INT8, UINT8 = TensorProto.INT8, TensorProto.UINT8
