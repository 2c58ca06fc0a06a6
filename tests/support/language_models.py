"""A small transformer block with inputs that are correlated, as those of real layers are."""

from __future__ import annotations

import numpy as np

from support.models import build, info, node

WIDTH, HIDDEN, VOCABULARY = 64, 128, 96


def make_block(*, dtype=np.float32, seed=0, depth=2, tied=False):
    """Token ids in, logits out: an embedding, gated layers with residuals and norms, a head.

    A tied head reads the embedding: as a Gemm, or behind a "transpose"; or the "embedding" reads
    the weight of the head, transposed.
    """
    rng = np.random.default_rng(seed)

    def weight(*shape):
        return (rng.normal(size=shape) / np.sqrt(shape[0])).astype(dtype)

    mixing = (np.eye(WIDTH) + 0.9 * rng.normal(size=(WIDTH, WIDTH)) / 4).astype(dtype)
    table = (rng.normal(size=(VOCABULARY, WIDTH)) @ mixing).astype(dtype)
    table[:, :3] *= 12  # a few channels are much larger, as in language models
    constants = {"embedding": table}
    nodes = [node("Gather", ["embedding", "ids"], ["x0"], "embed")]
    if tied == "embedding":
        constants = {"head": np.ascontiguousarray(table.T)}
        nodes.insert(0, node("Transpose", ["head"], ["embedding"], "turn", perm=[1, 0]))
    current = "x0"
    onnx_type = 1 if dtype == np.float32 else 10
    for layer in range(depth):
        names = {k: f"{k}{layer}" for k in ("gain", "bias", "gate", "up", "down")}
        constants[names["gain"]] = np.exp(0.2 * rng.normal(size=WIDTH)).astype(dtype)
        constants[names["bias"]] = np.zeros(WIDTH, dtype)
        constants[names["gate"]] = weight(WIDTH, HIDDEN)
        constants[names["up"]] = weight(WIDTH, HIDDEN)
        constants[names["down"]] = weight(HIDDEN, WIDTH)
        n = layer
        nodes += [
            node("LayerNormalization", [current, f"gain{n}", f"bias{n}"], [f"h{n}"], f"norm{n}"),
            node("MatMul", [f"h{n}", f"gate{n}"], [f"g{n}"], f"gate{n}/MatMul"),
            node("MatMul", [f"h{n}", f"up{n}"], [f"u{n}"], f"up{n}/MatMul"),
            node("Sigmoid", [f"g{n}"], [f"s{n}"], f"sigmoid{n}"),
            node("Mul", [f"g{n}", f"s{n}"], [f"a{n}"], f"silu{n}"),
            node("Mul", [f"a{n}", f"u{n}"], [f"b{n}"], f"both{n}"),
            node("MatMul", [f"b{n}", f"down{n}"], [f"d{n}"], f"down{n}/MatMul"),
            node("Add", [current, f"d{n}"], [f"x{n + 1}"], f"sum{n}"),
        ]
        current = f"x{n + 1}"
    if tied == "transpose":
        nodes += [
            node("Transpose", ["embedding"], ["turned"], "turn", perm=[1, 0]),
            node("MatMul", [current, "turned"], ["logits"], "head/MatMul"),
        ]
        shape = [1, "n", VOCABULARY]
    elif tied == "embedding":
        nodes.append(node("MatMul", [current, "head"], ["logits"], "head/MatMul"))
        shape = [1, "n", VOCABULARY]
    elif tied:
        nodes += [
            node("Reshape", [current, "flat"], ["rows"], "rows"),
            node("Gemm", ["rows", "embedding"], ["logits"], "head", transB=1),
        ]
        constants["flat"] = np.array([-1, WIDTH], np.int64)
        shape = ["n", VOCABULARY]
    else:
        constants["head"] = weight(WIDTH, VOCABULARY)
        nodes.append(node("MatMul", [current, "head"], ["logits"], "head/MatMul"))
        shape = [1, "n", VOCABULARY]
    return build(
        nodes,
        [info("ids", [1, "n"], 7)],
        [info("logits", shape, onnx_type)],
        constants,
        opset=21,
        ir_version=10,
    )


def make_samples(count=12, length=48, seed=1):
    rng = np.random.default_rng(seed)
    return [{"ids": rng.integers(0, VOCABULARY, size=(1, length))} for _ in range(count)]


def make_decoder(*, seed=0, width=16, vocabulary=48, shapes=None):
    """A decoder with a cache: one layer of attention, named as exporters name it.

    `shapes` are shapes of inputs instead of its own.
    """
    rng = np.random.default_rng(seed)
    constants = {
        name: (rng.normal(size=(width, width)) / np.sqrt(width)).astype(np.float32)
        for name in ("q", "k", "v", "o")
    }
    constants["embedding"] = rng.normal(size=(vocabulary, width)).astype(np.float32)
    constants["head"] = rng.normal(size=(width, vocabulary)).astype(np.float32)
    constants["angles"] = rng.normal(size=(256, width)).astype(np.float32)
    for name, values in {"one": [1], "two": [2], "axis0": 0, "step": 1}.items():
        constants[name] = np.array(values, np.int64)
    constants |= {"zero": np.float32(0), "never": np.float32(-1e9)}
    nodes = [
        node("Gather", ["embedding", "input_ids"], ["tokens"]),
        node("Gather", ["angles", "position_ids"], ["turns"]),
        node("Add", ["tokens", "turns"], ["x"]),
        *(node("MatMul", ["x", name], [f"{name}_flat"], f"{name}/MatMul") for name in "qkv"),
        *(node("Unsqueeze", [f"{name}_flat", "one"], [f"{name}_now"]) for name in "qkv"),
        node("Concat", ["past_key_values.0.key", "k_now"], ["present.0.key"], axis=2),
        node("Concat", ["past_key_values.0.value", "v_now"], ["present.0.value"], axis=2),
        node("Transpose", ["present.0.key"], ["keys"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q_now", "keys"], ["scores"]),
        node("Shape", ["attention_mask"], ["total1"], start=1, end=2),
        node("Squeeze", ["total1"], ["total"]),
        node("Range", ["axis0", "total", "step"], ["places"]),
        node("Unsqueeze", ["position_ids", "two"], ["here"]),
        node("LessOrEqual", ["places", "here"], ["before"]),
        node("Cast", ["attention_mask"], ["kept"], to=9),
        node("And", ["before", "kept"], ["seen"]),
        node("Where", ["seen", "zero", "never"], ["mask"]),
        node("Add", ["scores", "mask"], ["masked"]),
        node("Softmax", ["masked"], ["shares"], axis=-1),
        node("MatMul", ["shares", "present.0.value"], ["mixed"]),
        node("Squeeze", ["mixed", "one"], ["flat"]),
        node("MatMul", ["flat", "o"], ["out"], "o/MatMul"),
        node("Add", ["x", "out"], ["y"]),
        node("MatMul", ["y", "head"], ["logits"], "head/MatMul"),
    ]
    sizes = {
        "input_ids": [1, "n"],
        "attention_mask": [1, "total"],
        "position_ids": [1, "n"],
        "past_key_values.0.key": [1, 1, "past", width],
        "past_key_values.0.value": [1, 1, "past", width],
    } | (shapes or {})
    inputs = [info(name, shape, 1 if "past" in name else 7) for name, shape in sizes.items()]
    outputs = [
        info("logits", [1, "n", vocabulary]),
        info("present.0.key", [1, 1, "all", width]),
        info("present.0.value", [1, 1, "all", width]),
    ]
    return build(nodes, inputs, outputs, constants, opset=21, ir_version=10)


HEADS, GROUPS, HEAD = 4, 2, 16


def make_llama(
    *,
    norm="rms",
    tied=False,
    cache=False,
    biases=False,
    scaled=False,
    positions=False,
    depth=2,
    seed=0,
):
    """Token ids in, logits out: attention of grouped heads, gated layers, a residual stream.

    `norm` is how its norms are written: "rms" (RMSNormalization), "simplified" and "skip" (the
    runtime's operators), "pieces" (as exporters do) or "layer" (LayerNormalization with offsets).
    Its positions are no rotary ones: they do not matter here. With a cache it reads and hands out
    keys and values.
    """
    rng = np.random.default_rng(seed)
    nodes, constants = [], {}

    def constant(name, array):
        constants[name] = np.asarray(array)
        return name

    def weight(name, *shape):
        return constant(name, (rng.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32))

    def vector(name, size, mean=0.0):
        return constant(name, (mean + 0.5 * rng.normal(size=size)).astype(np.float32))

    def add(op, inputs, name, **attributes):
        nodes.append(node(op, inputs, [f"{name}/out"], name, **attributes))
        return f"{name}/out"

    def product(x, name, inputs, outputs):
        result = add("MatMul", [x, weight(f"{name}.weight", inputs, outputs)], name)
        if biases:
            result = add("Add", [vector(f"{name}.bias", outputs), result], f"{name}/bias")
        return result

    def normalize(x, name):
        gain = vector(f"{name}.weight", WIDTH, mean=1)
        if norm == "rms":
            return add("RMSNormalization", [x, gain], name, epsilon=1e-5)
        if norm in ("simplified", "skip"):
            return add("SimplifiedLayerNormalization", [x, gain], name, epsilon=1e-5)
        if norm == "layer":
            return add("LayerNormalization", [x, gain, vector(f"{name}.bias", WIDTH)], name)
        square = add("Pow", [x, constant("two", np.float32(2))], f"{name}/square")
        last = constant("last", np.array([-1]))
        mean = add("ReduceMean", [square, last], f"{name}/mean")
        safe = add("Add", [mean, constant("epsilon", np.float32(1e-5))], f"{name}/safe")
        root = add("Sqrt", [safe], f"{name}/root")
        inverse = add("Reciprocal", [root], f"{name}/inverse")
        unit = add("Mul", [x, inverse], f"{name}/unit")
        return add("Mul", [gain, unit], name)

    def sum_and_norm(x, more, name):
        if norm != "skip":
            x = add("Add", [x, more], f"{name}/sum")
            return x, normalize(x, name)
        gain = vector(f"{name}.weight", WIDTH, mean=1)
        names = [f"{name}/out", "", "", f"{name}/sum"]
        inputs = [x, more, gain]
        op = "SkipSimplifiedLayerNormalization"
        nodes.append(node(op, inputs, names, name, domain="com.microsoft", epsilon=1e-5))
        return names[3], names[0]

    def split(x, name, heads):
        shape = constant(f"heads{heads}", np.array([0, 0, heads, HEAD]))
        return add(
            "Transpose", [add("Reshape", [x, shape], f"{name}/split")], f"{name}/heads",
            perm=[0, 2, 1, 3],
        )  # fmt: skip

    def repeat(x, name):
        wide = add("Unsqueeze", [x, constant("two_axis", np.array([2]))], f"{name}/wide")
        many = constant("many", np.array([1, 1, HEADS // GROUPS, 1, 1]))
        wide = add("Expand", [wide, many], f"{name}/many")
        shape = constant("joined_heads", np.array([0, HEADS, -1, HEAD]))
        return add("Reshape", [wide, shape], f"{name}/repeated")

    def attend(x, name):
        query = split(product(x, f"{name}.q", WIDTH, HEADS * HEAD), f"{name}.q", HEADS)
        parts = {}
        for part in ("key", "value"):
            made = product(x, f"{name}.{part}", WIDTH, GROUPS * HEAD)
            made = split(made, f"{name}.{part}", GROUPS)
            if cache:
                present = f"present.{name}.{part}"
                nodes.append(
                    node("Concat", [f"past.{name}.{part}", made], [present], present, axis=2)
                )
                caches.append(f"{name}.{part}")
                made = present
            parts[part] = repeat(made, f"{name}.{part}")
        flipped = add("Transpose", [parts["key"]], f"{name}/flipped", perm=[0, 1, 3, 2])
        scores = add("MatMul", [query, flipped], f"{name}/scores")
        scores = add(
            "Mul", [scores, constant("per_head", np.float32(HEAD**-0.5))], f"{name}/scaled"
        )
        shares = add("Softmax", [scores], f"{name}/shares", axis=-1)
        mixed = add("MatMul", [shares, parts["value"]], f"{name}/mixed")
        back = add("Transpose", [mixed], f"{name}/back", perm=[0, 2, 1, 3])
        shape = constant("joined", np.array([0, 0, HEADS * HEAD]))
        return product(
            add("Reshape", [back, shape], f"{name}/joined"), f"{name}.o", HEADS * HEAD, WIDTH
        )

    def feed_forward(x, name):
        gate, up = (product(x, f"{name}.{part}", WIDTH, HIDDEN) for part in ("gate", "up"))
        soft = add("Sigmoid", [gate], f"{name}/soft")
        active = add("Mul", [gate, soft], f"{name}/active")
        return product(add("Mul", [active, up], f"{name}/both"), f"{name}.down", HIDDEN, WIDTH)

    caches = []
    table = rng.normal(size=(VOCABULARY, WIDTH)).astype(np.float32)
    table[:, :3] *= 12  # a few channels are much larger, as in language models
    x = add("Gather", [constant("embedding", table), "ids"], "embed")
    if scaled:
        x = add("Mul", [x, constant("root_of_width", np.float32(WIDTH**0.5))], "embed/scaled")
    if positions:
        places = rng.normal(size=(40, WIDTH)).astype(np.float32)
        x = add("Add", [x, add("Gather", [constant("places", places), "at"], "place")], "placed")
    normed = normalize(x, "norm0")
    for layer in range(depth):
        x, normed = sum_and_norm(x, attend(normed, f"attention{layer}"), f"middle{layer}")
        x, normed = sum_and_norm(x, feed_forward(normed, f"mlp{layer}"), f"end{layer}")
    head = "embedding"
    if tied:
        head = add("Transpose", ["embedding"], "transposed", perm=[1, 0])
    else:
        weight("head", WIDTH, VOCABULARY)
        head = "head"
    nodes.append(node("MatMul", [normed, head], ["logits"], "head/MatMul"))
    shape = ["b", GROUPS, "past", HEAD]
    inputs = [info("ids", ["b", "n"], 7)] + ([info("at", ["b", "n"], 7)] if positions else [])
    inputs += [info(f"past.{name}", shape) for name in caches]
    outputs = [info("logits", ["b", "n", VOCABULARY])]
    outputs += [info(f"present.{name}", ["b", GROUPS, "total", HEAD]) for name in caches]
    domains = ("com.microsoft",) if norm == "skip" else ()
    return build(nodes, inputs, outputs, constants, opset=23, ir_version=11, domains=domains)
