"""For each kind of rule of a target: a tiny model that breaks it and one that keeps it.

Both are made from what the rule says, so that a rule of any file has its two models. They are never
run: names of nodes, types and numbers are all that `verify` looks at. The node that breaks the rule
is called "node".
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx import TensorProto, helper

from bitwright.numerics.types import QTYPES
from bitwright.verification.rules.product_sizes import ProductSizes
from support.models import info, node

BINARY = frozenset("Add Concat Div MatMul Max Min Mul Pow PRelu Sub Sum Where".split())
PRODUCTS = frozenset("Conv ConvTranspose Gemm MatMul".split())
NUMBERS = {"int4": TensorProto.INT4, "uint4": TensorProto.UINT4, "float4e2m1": 23}


def type_number(name):
    return NUMBERS.get(name) or TensorProto.DataType.Value(name.upper())


class Graph:
    """Collects nodes and constants; every method returns the tensor that its readers read."""

    def __init__(self):
        self.nodes, self.constants, self.inputs = [], [], {"x": [1, 4, 8, 8], "y": [1, 4, 8, 8]}

    def constant(self, name, kind, array):
        array = np.asarray(array)
        flat = [float(v) for v in array.reshape(-1)]
        if kind not in ("float", "float16") and not kind.startswith("float"):
            flat = [int(v) for v in flat]
        self.constants.append(helper.make_tensor(name, type_number(kind), array.shape, flat))
        return name

    def parameters(self, name, kind, scale, zero):
        scale = np.asarray(scale, np.float32)
        self.constant(f"{name}_s", "float", scale)
        return [f"{name}_s", self.constant(f"{name}_z", kind, np.full(scale.shape, zero))]

    def pair(self, name, kind="uint8", scale=0.05, zero=0, **attributes):
        more = self.parameters(name, kind, scale, zero)
        self.nodes += [
            node("QuantizeLinear", [name, *more], [f"{name}_q"], name=f"{name}_Q", **attributes),
            node("DequantizeLinear", [f"{name}_q", *more], [f"{name}_d"], name=f"{name}_D"),
        ]
        return f"{name}_d"

    def stored(self, name, kind, array, scale=0.05, zero=0, **attributes):
        self.constant(name, kind, array)
        more = self.parameters(name, kind, scale, zero)
        made = node(
            "DequantizeLinear", [name, *more], [f"{name}_d"], name=f"{name}_D", **attributes
        )
        self.nodes.append(made)
        return f"{name}_d"

    def add(self, op, inputs, output, name="node", **attributes):
        self.nodes.append(node(op, inputs, [output], name=name, **attributes))
        return output

    def model(self, *outputs, opset=21):
        inputs = [info(name, shape) for name, shape in self.inputs.items()]
        graph = helper.make_graph(
            self.nodes, "g", inputs, [info(name) for name in outputs], self.constants
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
        return ir.from_proto(made)


def unit(op, *, read=None, write=None, weight=None, bias=None, second=None, opset=21):
    """Return an operator between pairs; each part is a dict of what `pair` or `stored` take."""
    read = read or {}
    kind = read.get("kind", "uint8")
    g = Graph()
    inputs = [g.pair("x", **read)]
    if op in PRODUCTS:
        inputs.append(
            g.stored("w", **({"kind": "int8", "array": np.ones((4, 4))} | (weight or {})))
        )
    elif op in BINARY:
        inputs.append(g.pair("y", **({"kind": kind} | (second or read))))
    if bias is not None:
        inputs.append(g.stored("b", **({"array": np.ones(4)} | bias)))
    result = g.add(op, inputs, "r")
    return g.model(g.pair(result, **({"kind": kind} | (write or read))), opset=opset)


def other_type(types, among=("uint8", "int8", "uint16", "int32", "uint4")):
    return next(name for name in among if name not in types)


def make_models(rule):
    """Return the model that breaks a rule and the one that keeps it."""
    return MAKERS[rule.asks](rule.sizes if isinstance(rule, ProductSizes) else rule)


def _op_with_weight(rule):
    return rule.ops[0] if rule.ops else "Conv"


def _of_types(rule):
    op = _op_with_weight(rule)
    # A constant of int32 is a bias.
    others = ("uint8", "int8", "uint16", "uint4") if rule.role == "weight" else None
    wrong, right = other_type(rule.types, *([others] if others else [])), rule.types[0]
    if op.endswith("Normalization"):
        made = []
        for kind in (wrong, right):
            g = Graph()
            given = {"weight": ["w"], "bias": ["w", "b"]}[rule.role]
            stored = [g.stored(name, "uint8", np.ones(4)) for name in given[:-1]]
            stored.append(g.stored(given[-1], kind, np.ones(4)))
            g.add(op, [g.pair("x"), *stored], "r")
            made.append(g.model(g.pair("r")))
        return tuple(made)
    if rule.role == "weight":
        return tuple(unit(op, weight={"kind": kind}) for kind in (wrong, right))
    return tuple(unit(op, read={"kind": kind}) for kind in (wrong, right))


def _of_zero_points(rule):
    kind = rule.types[0] if rule.types else "int8"
    qtype = QTYPES[kind]
    places = {"zero": 0, "lowest": qtype.lowest, "middle": (qtype.lowest + qtype.highest + 1) // 2}
    good = int(places[rule.at[0]])
    scale = [0.1, 0.2, 0.3, 0.4] if rule.several else 0.05
    made = []
    for zero in (good + 5, good):
        if rule.role == "weight":
            weight = {"kind": kind, "scale": scale, "zero": zero, "axis": 0}
            made.append(unit("Conv", weight=weight))
        else:
            made.append(unit("Conv", read={"kind": kind, "zero": zero}, write={"kind": kind}))
    return tuple(made)


def _of_granularity(rule):
    many, one = {"scale": [0.1, 0.2, 0.3, 0.4]}, {"scale": 0.05}
    blocks = {"scale": np.full((2, 4), 0.1), "block_size": 2, "axis": 0}
    made = {"channel": many, "tensor": one, "block": blocks}
    wrong = next(name for name in ("channel", "block", "tensor") if name not in rule.per)
    op = next((op for op in rule.ops if op in PRODUCTS), None)
    if rule.role == "weight" and rule.ops and op is None:
        op = rule.ops[0]
    op = op or (rule.ops[0] if rule.ops else "Conv")
    if rule.role == "activation":
        return tuple(unit(op, read=made[name], write=one) for name in (wrong, rule.per[0]))
    found = []
    for name in (wrong, rule.per[0]):
        weight = {"axis": 0} | made[name] if name != "tensor" else made[name]
        weight = {"kind": rule.types[0]} | weight if rule.types else weight
        if op in PRODUCTS:
            found.append(unit(op, weight=weight))
        else:
            g = Graph()
            stored = g.stored("w", "int8", np.ones((4, 4)), **weight)
            g.add(op, [g.pair("x"), stored], "r")
            found.append(g.model(g.pair("r")))
    return tuple(found)


def _of_axis(rule):
    scale = [0.1, 0.2, 0.3, 0.4]
    return tuple(unit("Conv", weight={"scale": scale, "axis": axis}) for axis in (1, 0))


def _of_positive_scales(rule):
    scales = [-0.1, 0.2, -0.3, 0.4], [0.1, 0.2, 0.3, 0.4]
    return tuple(unit("Conv", weight={"scale": scale, "axis": 0}) for scale in scales)


def _of_written_axis(rule):
    scale = [0.1, 0.2, 0.3, 0.4]
    return unit("Conv", weight={"scale": scale}), unit("Conv", weight={"scale": scale, "axis": 0})


def _of_blocks(rule):
    size = rule.sizes[0] if rule.sizes else 2 * rule.multiple_of
    kind = rule.types[0]

    def made(block, rows, columns):
        weight = {
            "kind": kind,
            "array": np.ones((rows, columns)),
            "scale": np.full((-(-rows // block), columns), 0.1),
            "block_size": block,
            "axis": 0,
        }
        if rule.last_axes == 1:
            weight |= {"array": weight["array"].T, "scale": weight["scale"].T, "axis": 1}
        return unit("MatMul", weight=weight)

    wrong = made(size, 2 * size + 1, 4) if rule.whole else made(size + 1, 2 * size + 2, 4)
    return wrong, made(size, 2 * size, 4)


def _of_codes(rule):
    kind = rule.types[0]
    return tuple(
        unit("Conv", weight={"kind": kind, "array": np.full((4, 4), code)})
        for code in (rule.high + 1, rule.high)
    )


def _of_biases(rule):
    good = {"kind": "int32", "scale": 0.05 * 0.05}
    if rule.form == "float":
        return unit("Conv", bias=good), unit("Conv")
    if not rule.zero_point_input:
        g = Graph()
        inputs = [g.pair("x"), g.stored("w", "int8", np.ones((4, 4)))]
        g.constant("b", "int32", np.ones(4)), g.constant("b_s", "float", 0.0025)
        g.nodes.append(node("DequantizeLinear", ["b", "b_s"], ["b_d"], name="b_D"))
        g.add("Conv", [*inputs, "b_d"], "r")
        return unit("Conv", bias=good), g.model(g.pair("r"))
    return unit("Conv", bias=good | {"scale": 0.005}), unit("Conv", bias=good)


def _of_fixed(rule):
    kind, fixed = next(iter(rule.scales.items()))
    good = {"kind": kind, "scale": fixed.scale, "zero": fixed.zero_point}
    read = {"kind": kind}
    bad = good | {"scale": 1.5 * fixed.scale}
    return tuple(unit(rule.ops[0], read=read, write=write) for write in (bad, good))


def _of_output_type(rule):
    number = type_number(rule.types[0])
    made = []
    for attributes in ({"output_dtype": number}, {}):
        g = Graph()
        g.add("Relu", [g.pair("x", rule.types[0], **attributes)], "out")
        made.append(g.model("out"))
    return tuple(made)


def _of_one_reader(rule):
    made = []
    for readers in (2, 1):
        g = Graph()
        g.add("Relu", ["x"], "a")
        read = g.pair("a", rule.types[0])
        outputs = [g.add("Relu", [read], f"r{i}", name=f"reader{i}") for i in range(readers)]
        made.append(g.model(*outputs))
    return tuple(made)


def _of_opset(rule):
    return tuple(
        unit("Relu", read={"kind": rule.types[0]}, opset=opset)
        for opset in (rule.opset - 1, rule.opset)
    )


def _of_opset_range(rule):
    return tuple(unit("Relu", opset=opset) for opset in (rule.high + 1, rule.high))


def _of_units(rule):
    op = rule.ops[0]
    g = Graph()
    if op in rule.float_results:
        g.add(op, [g.pair("x"), "y"], "r")
        return g.model(g.pair("r")), unit(op)
    others = [g.pair("y")] if op in BINARY else []
    result = g.add(op, [g.pair("x"), *others], "r")
    return g.model(result), unit(op)


def _of_equal_types(rule):
    op = rule.ops[0]
    return unit(op, read={"kind": "uint8"}, write={"kind": "uint16"}), unit(op)


def _of_equal_parameters(rule):
    made = []
    for scale in (0.1, 0.05):
        g = Graph()
        g.add(rule.ops[0], [g.pair("x")], "r", **rule.attributes)
        made.append(g.model(g.pair("r", scale=scale)))
    return tuple(made)


def _of_same_scale(rule):
    return unit(rule.ops[0], second={"scale": 0.1}), unit(rule.ops[0])


def _of_signed_weights(rule):
    op = next(op for op in rule.ops if op in PRODUCTS)
    return tuple(
        unit(op, read={"kind": "int8"}, weight={"kind": kind}) for kind in ("uint8", "int8")
    )


def _of_output_range(rule):
    return tuple(unit(rule.ops[0], write={"zero": zero}) for zero in (128, 0))


def _of_nested_scales(rule):
    """Scales stored in another type, and scales as the rule has them."""
    made = []
    for kind in (other_type(rule.scale_types), rule.scale_types[0]):
        g = Graph()
        g.constant("w", rule.types[0], np.ones((8, 4)))
        several = rule.per == "channel"
        scale = {"scale": np.full(4, 0.1), "axis": 1} if several else {"scale": 0.1}
        scales = g.stored("s", kind, np.ones((2, 4)), **scale)
        g.constant("w_z", rule.types[0], np.zeros((2, 4)))
        blocks = {"block_size": 4, "axis": 0, "name": "w_D"}
        g.nodes.append(node("DequantizeLinear", ["w", scales, "w_z"], ["w_d"], **blocks))
        g.add("MatMul", [g.pair("x"), "w_d"], "r")
        made.append(g.model(g.pair("r")))
    return tuple(made)


def _of_stored_weights(rule):
    g = Graph()
    g.constant("w", "float", np.ones((4, 4)))
    g.add("MatMul", [g.pair("x"), g.pair("w", rule.types[0])], "r")
    return g.model(g.pair("r")), unit("MatMul", weight={"kind": rule.types[0]})


def _of_unmixed_types(rule):
    first, second = rule.types[:2]
    read = {"kind": first}
    return tuple(unit("Relu", read=read, write={"kind": kind}) for kind in (second, first))


def _of_blocked_products(rule):
    kind, step = next(iter(rule.multiples.items()))
    weight = {
        "kind": kind,
        "array": np.ones((2 * step, 4)),
        "scale": np.full((2, 4), 0.1),
        "block_size": step,
        "axis": 0,
    }
    wrong = other_type(rule.activation)
    return tuple(
        unit(rule.ops[0], read={"kind": kind}, weight=weight)
        for kind in (wrong, rule.activation[0])
    )


def _of_whole_units(rule):
    g = Graph()
    g.add("MatMul", ["x", g.stored("w", rule.types[0], np.ones((4, 4)))], "r")
    return g.model("r"), unit("MatMul", weight={"kind": rule.types[0]})


def _of_transposed_weights(rule):
    made = []
    for transposed in (0, 1):
        g = Graph()
        stored = g.stored("w", rule.types[0], np.ones((4, 4)))
        g.add("Gemm", ["x", stored], "r", transB=transposed)
        made.append(g.model("r"))
    return tuple(made)


def _of_quantized_readers(rule):
    made = []
    for reader in ("Softmax", rule.readers[0]):
        g = Graph()
        result = g.add(rule.ops[0], [g.pair("x"), g.stored("w", "int8", np.ones((4, 4)))], "r")
        g.add(reader, [g.pair(result)], "a", name="reader")
        made.append(g.model("a"))
    return tuple(made)


def _of_unquantized(rule):
    g = Graph()
    g.add("Relu", [g.pair("x")], "a", name="relu")
    g.add(rule.ops[0], ["a"], "r")
    return g.model("r"), unit(rule.ops[0])


def _of_type_pairs(rule):
    op, read = rule.ops[0], {"kind": rule.activation[0]}
    return tuple(unit(op, read=read, weight={"kind": kind}) for kind in (rule.weight[0], "int8"))


def _of_activations(rule):
    made = []
    for zero in (128, 0):
        g = Graph()
        op = next(op for op in rule.ops if op in PRODUCTS)
        g.add(op, [g.pair("x"), g.stored("w", "int8", np.ones((4, 4)))], "r")
        g.add("Relu", ["r"], "a", name="relu")
        made.append(g.model(g.pair("a", zero=zero)))
    return tuple(made)


def _of_float_operators(rule):
    g = Graph()
    g.add(rule.ops[0], ["x"], "r")
    return unit(rule.ops[0]), g.model("r")


def _of_residual(rule):
    def make(*, on_skip):
        g = Graph()
        skip = g.pair("x", "int8")
        weight = g.stored("w", "int8", np.ones((4, 4, 1, 1)))
        made = g.add("Conv", [skip, weight], "c", name="conv")
        return g.model(g.add("Add", [made, skip if on_skip else "y"], "z"))

    return make(on_skip=False), make(on_skip=True)


def _of_group(rule):
    made = []
    for paired in (True, False):
        g = Graph()
        result = g.add(rule.first[0], [g.pair("x"), g.pair("y")], "r")
        g.add(rule.then[0], [g.pair(result) if paired else result], "a", name="behind")
        made.append(g.model(g.pair("a")))
    return tuple(made)


def _of_small_products(rule):
    small, large = (rule.reduction - 1, rule.channels), (rule.reduction, rule.channels)
    return tuple(unit("MatMul", weight={"array": np.ones(shape)}) for shape in (small, large))


def _of_convolution_sizes(rule):
    made = []
    read = {"kind": rule.types[0]}
    for channels in (rule.channels - 1, rule.channels):
        weight = {"kind": rule.types[0], "array": np.ones((channels, channels, 3, 3))}
        made.append(unit("Conv", read=read, weight=weight))
    return tuple(made)


def _of_attention_sizes(rule):
    """Too long a sequence, or heads of another size; and one that is as it should be."""
    length, head = rule.length or 16, rule.head_high or 16
    wrong = (length + 1, head) if rule.length else (length, head + 1)
    made = []
    for size, width in (wrong, (length, head)):
        g = Graph()
        g.inputs = {"x": [1, size, width], "y": [1, width, size]}
        kind = rule.types[0]
        g.add("MatMul", [g.pair("x", kind), g.pair("y", kind)], "s")
        g.add("Softmax", ["s"], "p", name="softmax")
        made.append(g.model("p"))
    return tuple(made)


def _of_low_bit_products(rule):
    block = rule.blocks[0] if rule.blocks else 32
    made = []
    for bits in (next(b for b in (3, 5) if b not in rule.bits), (rule.bits or (0,))[0]):
        g = Graph()
        if bits:
            size = rule.blocks_of.get(str(bits), (block,))[0]
            level = rule.levels.get(str(bits), (0,))[0]
            more = {"bits": bits, "block_size": size, "accuracy_level": level}
            more["domain"] = "com.microsoft"
            g.add("MatMulNBits", ["x", "y"], "r", K=32, N=4, **more)
        else:
            g.add("MatMul", ["x", "y"], "r")
        made.append(g.model("r"))
    return tuple(made)


def _single(op, **attributes):
    g = Graph()
    g.add(op, ["x", "y"], "r", **attributes)
    return g.model("r")


def _of_known(rule):
    return _single("NonMaxSuppression"), _single(rule.ops[0])


def _of_refused(rule):
    return _single(rule.ops[0]), _single("Relu")


def _of_shapes(rule):
    made = []
    for shape in (["batch", 4], [1, 4]):
        g = Graph()
        g.inputs = {"node": shape}
        g.add("Relu", ["node"], "r", name="relu")
        outputs = [info("r", [1, 4])]
        graph = helper.make_graph(g.nodes, "g", [info("node", shape)], outputs)
        made.append(ir.from_proto(helper.make_model(graph)))
    return tuple(made)


def _of_rank(rule):
    made = []
    for rank in (rule.high + 1, rule.high):
        g = Graph()
        g.inputs = {"x": [1] * rank}
        g.add(rule.ops[0], ["x"], "r")
        made.append(g.model("r"))
    return tuple(made)


def _of_input_count(rule):
    made = []
    for count in (rule.count + 1, rule.count):
        g = Graph()
        g.add(rule.ops[0], ["x"] * count, "r")
        made.append(g.model("r"))
    return tuple(made)


def _of_constant_inputs(rule):
    op, places = next(iter(rule.inputs.items()))
    made = []
    for computed in (True, False):
        g = Graph()
        g.constant("c", "float", 1.0)
        inputs = ["x", *["c"] * max(places)]
        inputs[places[0]] = "y" if computed else "c"
        g.add(op, inputs, "r")
        made.append(g.model("r"))
    return tuple(made)


def _of_attributes(rule):
    good = rule.values[0]
    bad = f"{good}_other" if isinstance(good, str) else good + 1
    several = rule.attribute in ("dilations", "strides", "pads")
    return tuple(
        _single(rule.ops[0], **{rule.attribute: [value, good] if several else value})
        for value in (bad, good)
    )


def _of_attribute_sets(rule):
    names = {name for one in rule.sets for name in one}
    wrong = dict.fromkeys(names, "other")
    return tuple(_single(rule.ops[0], **rule.when, **one) for one in (wrong, rule.sets[0]))


def _of_odd_values(rule):
    return tuple(_single(rule.ops[0], **{rule.attribute: value}) for value in (4, 5))


def _of_absent_inputs(rule):
    op, (index, *_) = next(iter(rule.inputs.items()))
    made = []
    for inputs in (["x"] * (index + 1), ["x"] * index):
        g = Graph()
        g.add(op, inputs, "r")
        made.append(g.model("r"))
    return tuple(made)


def _of_index_values(rule):
    op, index = next(iter(rule.inputs.items()))
    made = []
    for value in (-1, 1):
        g = Graph()
        g.constant("i", "int64", [0, value])
        g.add(op, ["x"] * index + ["i"], "r")
        made.append(g.model("r"))
    return tuple(made)


def _of_kept_axes(rule):
    made = []
    for size in (2, 1):
        g = Graph()
        g.add(rule.ops[0], ["x"], "r")
        shape = [1, 4, 8, 8]
        shape[rule.axes[0]] = size
        inputs = [info(name, size) for name, size in g.inputs.items()]
        graph = helper.make_graph(g.nodes, "g", inputs, [info("r", shape)])
        made.append(ir.from_proto(helper.make_model(graph)))
    return tuple(made)


def _of_vector_inputs(rule):
    op, index = next(iter(rule.inputs.items()))
    made = []
    for shape in ((4, 4), (1, 4)):
        g = Graph()
        g.constant("c", "float", np.ones(shape))
        g.add(op, ["x"] * index + ["c"], "r")
        made.append(g.model("r"))
    return tuple(made)


def _of_last_axis(rule):
    return tuple(_single(rule.ops[0], axis=axis) for axis in (1, 3))


MAKERS = {
    "types": _of_types,
    "zero_points": _of_zero_points,
    "positive_scales": _of_positive_scales,
    "granularity": _of_granularity,
    "channel_axis": _of_axis,
    "written_axis": _of_written_axis,
    "block_shape": _of_blocks,
    "weight_codes": _of_codes,
    "biases": _of_biases,
    "fixed_output": _of_fixed,
    "no_output_type": _of_output_type,
    "one_reader": _of_one_reader,
    "opset_of_types": _of_opset,
    "opset_range": _of_opset_range,
    "node_units": _of_units,
    "equal_types": _of_equal_types,
    "equal_parameters": _of_equal_parameters,
    "same_scale": _of_same_scale,
    "signed_weights": _of_signed_weights,
    "type_pairs": _of_type_pairs,
    "activations": _of_activations,
    "float_operators": _of_float_operators,
    "group": _of_group,
    "residual": _of_residual,
    "small_products": _of_small_products,
    "low_bit_products": _of_low_bit_products,
    "known_operators": _of_known,
    "refused_operators": _of_refused,
    "static_shapes": _of_shapes,
    "rank": _of_rank,
    "input_count": _of_input_count,
    "constant_inputs": _of_constant_inputs,
    "attribute_values": _of_attributes,
    "last_axis": _of_last_axis,
    "attribute_sets": _of_attribute_sets,
    "odd_values": _of_odd_values,
    "absent_inputs": _of_absent_inputs,
    "index_values": _of_index_values,
    "kept_axes": _of_kept_axes,
    "vector_inputs": _of_vector_inputs,
    "output_range": _of_output_range,
    "nested_scales": _of_nested_scales,
    "stored_weights": _of_stored_weights,
    "unmixed_types": _of_unmixed_types,
    "convolution_sizes": _of_convolution_sizes,
    "attention_sizes": _of_attention_sizes,
    "blocked_products": _of_blocked_products,
    "whole_units": _of_whole_units,
    "transposed_weights": _of_transposed_weights,
    "quantized_readers": _of_quantized_readers,
    "unquantized": _of_unquantized,
}
