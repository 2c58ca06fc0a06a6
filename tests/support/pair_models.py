"""Q/DQ models written by hand, with any type and any scale anywhere."""

from __future__ import annotations

import numpy as np

from support.models import build, info, node


class Pairs:
    """Collects nodes and constants; every method returns the tensor that its readers read."""

    def __init__(self):
        self.nodes, self.constants = [], {}

    def parameters(self, name, kind, scale, zero_point):
        scale = np.asarray(scale, np.float32)
        self.constants[f"{name}_s"] = scale
        self.constants[f"{name}_z"] = np.full(scale.shape, zero_point, kind)
        return [f"{name}_s", f"{name}_z"]

    def pair(self, name, kind="uint8", scale=0.05, zero_point=0, **attributes):
        """Put a pair behind a tensor."""
        more = self.parameters(name, kind, scale, zero_point)
        quantized, result = f"{name}_q", f"{name}_d"
        for op, source, made in (
            ("QuantizeLinear", name, quantized),
            ("DequantizeLinear", quantized, result),
        ):
            self.nodes.append(
                node(op, [source, *more], [made], name=f"{name}_{op[0]}", **attributes)
            )
        return result

    def stored(self, name, integers, kind="int8", scale=0.05, **attributes):
        """Store integers behind a dequantizer."""
        self.constants[name] = np.asarray(integers).astype(kind)
        ins = [name, *self.parameters(name, kind, scale, 0)]
        self.nodes.append(
            node("DequantizeLinear", ins, [f"{name}_d"], name=f"{name}_D", **attributes)
        )
        return f"{name}_d"

    def constant(self, name, array):
        self.constants[name] = np.asarray(array)
        return name

    def add(self, op_type, inputs, output, **attributes):
        self.nodes.append(node(op_type, inputs, [output], name=output, **attributes))
        return output

    def model(self, outputs, inputs, opset=21):
        """Return the model; `inputs` is a dict of name to shape."""
        outputs = [info(name) for name in outputs]
        return build(self.nodes, inputs, outputs, self.constants, opset=opset, ir_version=10)


WEIGHT = np.random.default_rng(0).integers(-100, 100, (4, 3, 3, 3))
MATRIX = np.random.default_rng(1).integers(-100, 100, (8, 5))


def make_conv(
    *,
    source="uint8",
    weight="int8",
    result="uint8",
    bias=None,
    bias_scale=0.0025,
    activation=None,
    zero_point=0,
    paired=True,
    also_output=False,
    also_read=False,
):
    """One Conv, named "conv", with pairs around it unless something else is asked for."""
    pairs = Pairs()
    inputs = [pairs.pair("x", source), pairs.stored("w", WEIGHT, weight)]
    if bias == "float":
        inputs.append(pairs.constant("b", np.ones(4, np.float32)))
    elif bias:
        inputs.append(pairs.stored("b", np.ones(4), bias, bias_scale))
    made = pairs.add("Conv", inputs, "conv")
    if activation:
        made = pairs.add(activation, [made], "activation")
    outputs = [made] if also_output else []
    if also_read:
        outputs.append(pairs.add("Tanh", [made], "other"))
    outputs.append(pairs.pair(made, result, 0.1, zero_point) if paired else made)
    return pairs.model(outputs, {"x": [1, 3, 8, 8]})


def make_product(
    op="Gemm",
    *,
    source="uint8",
    weight="int8",
    result="uint8",
    bias=None,
    added=None,
    paired=True,
    scale=0.05,
    axis=1,
    matrix=MATRIX,
    rows=4,
    **attributes,
):
    """One Gemm or MatMul, named "product", by default with pairs around it."""
    pairs = Pairs()
    inputs = [pairs.pair("x", source), pairs.stored("w", matrix, weight, scale, axis=axis)]
    width = matrix.shape[1]

    def vector(name, kind):
        if kind == "float":
            return pairs.constant(name, np.ones(width, np.float32))
        return pairs.stored(name, np.ones(width), kind, 0.0025)

    if bias:
        inputs.append(vector("b", bias))
    made = pairs.add(op, inputs, "product", **attributes)
    if added:
        made = pairs.add("Add", [made, vector("c", added)], "bias")
    output = pairs.pair(made, result, 0.1) if paired else made
    return pairs.model([output], {"x": [rows, matrix.shape[0]]})


def make_unary(op, *, source="uint8", result="uint8", scale=0.05, paired=True, more=(), **options):
    """One op named "op" between two pairs; `more` are constants that it also reads."""
    pairs = Pairs()
    extra = [
        "" if array is None else pairs.constant(f"c{place}", array)
        for place, array in enumerate(more)
    ]
    made = pairs.add(op, [pairs.pair("x", source), *extra], "op", **options)
    output = pairs.pair(made, result, scale) if paired else made
    return pairs.model([output], {"x": [1, 4, 8, 8]})


def make_binary(op, *, kinds=("uint8", "uint8"), result="uint8", paired=True, **attributes):
    """One op named "op" that reads two pairs; a kind of None leaves that input float."""
    pairs = Pairs()
    inputs = [
        name if kind is None else pairs.pair(name, kind)
        for name, kind in zip("ab", kinds, strict=True)
    ]
    made = pairs.add(op, inputs, "op", **attributes)
    output = pairs.pair(made, result, 0.1) if paired else made
    return pairs.model([output], {"a": [1, 4], "b": [1, 4]})
