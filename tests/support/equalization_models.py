"""Nets whose channels differ much in size, and whether two models compute the same."""

from __future__ import annotations

import numpy as np

from bitwright.equalize.cle import equalize_layers
from bitwright.graph import infer_shapes, load_model
from bitwright.recipe import CrossLayerEqualization, EqualizationDetails
from support.models import build, node, normal, run, weight


def uneven(*shape, seed=0, axis=0, width=1.0):
    """Weights whose channels differ in size by a log-normal factor, as behind a batch norm."""
    factors = np.random.default_rng(1000 + seed).lognormal(0, width, shape[axis])
    view = [1] * len(shape)
    view[axis] = -1
    return (weight(*shape, seed=seed) * factors.reshape(view)).astype(np.float32)


def make_chain(parts, *, channels=6, size=8, bias=0.3, seed=0, opset=17):
    """Conv, `parts`, Conv: a part is (op type, its constants, its attributes)."""
    constants = {
        "w1": uneven(channels, 3, 3, 3, seed=seed),
        "b1": normal(channels, seed=seed + 1, size=bias),
        "w2": uneven(4, channels, 3, 3, seed=seed + 2, axis=1),
        "b2": normal(4, seed=seed + 3),
    }
    nodes = [node("Conv", ["x", "w1", "b1"], ["t0"], name="head", pads=[1, 1, 1, 1])]
    value = "t0"
    for index, (op_type, arrays, attributes) in enumerate(parts):
        names = []
        for at, array in enumerate(arrays):
            name = "" if array is None else f"c{index}_{at}"
            names.append(name)
            if name:
                constants[name] = array
        output = f"t{index + 1}"
        nodes.append(node(op_type, [value, *names], [output], name=f"part{index}", **attributes))
        value = output
    nodes.append(node("Conv", [value, "w2", "b2"], ["y"], name="tail", pads=[1, 1, 1, 1]))
    return build(nodes, {"x": [1, 3, size, size]}, {"y": None}, constants, opset=opset)


def make_mobilenet(*, channels=16, blocks=3, size=16, width=1.2, clip=None, seed=0):
    """Blocks of pointwise, depthwise and pointwise convolutions with Relu (or a Clip) between."""
    constants, nodes = {}, []
    if clip is not None:
        constants |= {"low": np.float32(clip[0]), "high": np.float32(clip[1])}

    def conv(value, name, inputs, outputs, kernel, group=1, active=True, stride=1):
        w = uneven(outputs, inputs // group, kernel, kernel, seed=seed + len(nodes), width=width)
        constants[f"{name}_w"] = w * np.float32(1.4)
        constants[f"{name}_b"] = normal(outputs, seed=500 + len(nodes), size=0.1)
        pads = [kernel // 2] * 4
        read = [value, f"{name}_w", f"{name}_b"]
        extra = {} if group == 1 else {"group": group}
        strides = [stride, stride]
        nodes.append(node("Conv", read, [name], name=name, pads=pads, strides=strides, **extra))
        if not active:
            return name
        bounds = [] if clip is None else ["low", "high"]
        op_type = "Relu" if clip is None else "Clip"
        nodes.append(node(op_type, [name, *bounds], [f"{name}_a"], name=f"{name}_act"))
        return f"{name}_a"

    value = conv("x", "stem", 3, channels, 3, stride=2)
    for index in range(blocks):
        hidden = 4 * channels
        inner = conv(value, f"expand{index}", channels, hidden, 1)
        inner = conv(inner, f"depth{index}", hidden, hidden, 3, group=hidden)
        inner = conv(inner, f"project{index}", hidden, channels, 1, active=False)
        nodes.append(node("Add", [inner, value], [f"sum{index}"], name=f"residual{index}"))
        value = f"sum{index}"
    constants |= {"fc_w": weight(channels, 10, seed=90), "fc_b": normal(10, seed=91, size=0.1)}
    nodes += [
        node("GlobalAveragePool", [value], ["g"], name="average"),
        node("Flatten", ["g"], ["f"], name="flatten"),
        node("Gemm", ["f", "fc_w", "fc_b"], ["y"], name="fc"),
    ]
    return build(nodes, {"x": [1, 3, size, size]}, {"y": [1, 10]}, constants)


def equalized(model, details=None, **options):
    """Return the equalized model, and what was found."""
    loaded = load_model(model)
    infer_shapes(loaded)
    asked = CrossLayerEqualization(**options), EqualizationDetails(**(details or {}))
    return loaded, equalize_layers(loaded, *asked)


def difference(model, other, samples):
    """Return the largest distance of two models' outputs, relative to the outputs' size."""
    worst = 0.0
    for mine, theirs in zip(run(model, samples), run(other, samples), strict=True):
        for a, b in zip(mine, theirs, strict=True):
            size = np.linalg.norm(a.astype(np.float64))
            worst = max(worst, float(np.linalg.norm(a.astype(np.float64) - b)) / max(size, 1e-30))
    return worst
