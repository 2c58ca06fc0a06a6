"""Measure what versions of ONNX Runtime load and compute, and write src/bitwright/targets/runtimes.toml.

    for v in 1.19.2 1.20.1 ...; do pip install --no-deps --target /tmp/ort/$v onnxruntime==$v; done
    python scripts/measure_runtimes.py /tmp/ort

Each fact has a minimal model that shows it. A version is a folder; the newest is the judge of what is right. Every model is
opened and run in a process of its own version, so that a crash is an answer, too.
"""

# ruff: noqa: D103, E501 - a fact stands on a line

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper, numpy_helper

TABLE = Path(__file__).parents[1] / "src" / "bitwright" / "targets" / "runtimes.toml"
MS = "com.microsoft"
RANDOM = np.random.default_rng(0)
F, H, B, U, I4, U4, I8, I32, I64 = (
    *(T.FLOAT, T.FLOAT16, T.BFLOAT16, T.UINT8, T.INT4),
    *(T.UINT4, T.INT8, T.INT32, T.INT64),
)

WORKER = """
import sys, json, numpy as np
sys.path.insert(0, sys.argv[1])
import onnxruntime as ort
options = ort.SessionOptions(); options.log_severity_level = 4
try:
    session = ort.InferenceSession(sys.argv[2], options, providers=["CPUExecutionProvider"])
    feeds = dict(np.load(sys.argv[3]))
    found = session.run(None, feeds)[0]
    print("FOUND", json.dumps(np.asarray(found, np.float64).ravel().tolist()))
except Exception as error:
    print("REFUSED", " ".join(str(error).split())[:300])
"""


def floats(*shape: int, kind: Any = np.float32) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(kind)


def codes(*shape: int) -> np.ndarray:
    return RANDOM.integers(0, 256, shape).astype(np.uint8)


def typed(values: Any, shape: tuple[int, ...], kind: int) -> onnx.TensorProto:
    return helper.make_tensor("", kind, shape, np.asarray(values).ravel().tolist())


def model(
    nodes: list[Any], feeds: dict[str, np.ndarray], constants: dict[str, Any], out: int = F,
    opset: int = 17, ir: int = 10, functions: Any = (),
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:  # fmt: skip
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in feeds.items()
    ]
    tensors = []
    for name, value in constants.items():
        one = value if isinstance(value, onnx.TensorProto) else numpy_helper.from_array(value)
        one.name = name
        tensors.append(one)
    outputs = [helper.make_tensor_value_info("y", out, None)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MS, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir), feeds


def one(
    op: str, inputs: list[Any], domain: str = "", out: int = F, opset: int = 17, **attributes: Any
) -> Any:
    """A model of one node: arrays are fed where they are first, constants where they are tuples."""
    names, feeds, constants = [], {}, {}
    for index, value in enumerate(inputs):
        name = "" if value is None else f"x{index}"
        names.append(name)
        if isinstance(value, tuple):
            constants[name] = value[0]
        elif value is not None:
            feeds[name] = value
    node = helper.make_node(op, names, ["y"], "n", domain=domain, **attributes)
    return model([node], feeds, constants, out, opset)


def nbits(
    bits: int, kind: Any = np.float32, extra: int = 0, block: int = 32, level: int = 0, out: int = F
) -> Any:
    k, n = 64, 16
    packed = codes(n, k // block, block * bits // 8)
    inputs: list[Any] = [
        floats(2, k, kind=kind),
        (packed,),
        (np.abs(floats(n * (k // block), kind=kind)),),
    ]
    if extra > 3:
        inputs += [None] * (extra - 3) + [(floats(n, kind=kind),)]
    return one(
        "MatMulNBits", inputs, MS, out, K=k, N=n, bits=bits, block_size=block, accuracy_level=level
    )


def gather(bits: int, data: Any = None) -> Any:
    packed = codes(8, 64 * bits // 8) if data is None else data
    scales = np.abs(floats(8, 2))
    more = {"bits": bits} if bits != 4 or data is None else {}
    return one("GatherBlockQuantized", [(packed,), np.int64([1, 2]), (scales,)], MS,
               gather_axis=0, quantize_axis=1, block_size=32, **more)  # fmt: skip


def attention(
    opset: int = 17,
    kind: Any = np.float32,
    out: int = F,
    extra: dict[int, Any] | None = None,
    **attributes: Any,
) -> Any:
    b, s, heads, kv, size = 1, 4, 2, 1, 16
    inputs: list[Any] = [
        floats(b, s, heads * size, kind=kind), floats(b, s, kv * size, kind=kind),
        floats(b, s, kv * size, kind=kind), np.zeros((b, kv, 0, size), kind),
        np.zeros((b, kv, 0, size), kind), np.int32([s - 1]), np.int32(s),
    ]  # fmt: skip
    for index, value in sorted((extra or {}).items()):
        inputs += [None] * (index - len(inputs)) + [value]
    names = ["" if v is None else f"x{i}" for i, v in enumerate(inputs)]
    feeds = {n: v for n, v in zip(names, inputs, strict=True) if n}
    node = helper.make_node("GroupQueryAttention", names, ["y", "k", "v"], "n", domain=MS,
                            num_heads=heads, kv_num_heads=kv, **attributes)  # fmt: skip
    return model([node], feeds, {}, out, opset)


def dequantize(
    kind: int, opset: int, shape: tuple[int, ...] = (4, 32), block: int = 0, domain: str = ""
) -> Any:
    values = RANDOM.integers(0, 2, shape)
    scale = np.abs(floats(4, shape[1] // block)) if block else np.float32(0.1)
    more = {"axis": 1, "block_size": block} if block else {}
    x = floats(*shape)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["d"], domain=domain, **more),
        helper.make_node("Add", ["x", "d"], ["y"]),
    ]
    return model(nodes, {"x": x}, {"w": typed(values, shape, kind), "s": scale}, opset=opset)


def quantize(kind: int, opset: int, domain: str = "") -> Any:
    zero = typed([0], (), kind)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], domain=domain),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], domain=domain),
    ]
    return model(nodes, {"x": floats(4, 32)}, {"s": np.float32(0.1), "z": zero}, opset=opset)


def experts(bits: int, activation: str = "silu", **attributes: Any) -> Any:
    e, hidden, inner, tokens = 2, 32, 32, 4
    wide = inner * (2 if activation == "swiglu" else 1)
    inputs: list[Any] = [
        floats(tokens, hidden), floats(tokens, e),
        (codes(e, wide, hidden * bits // 8),), (np.abs(floats(e, wide)) / 100,), None,
        (codes(e, hidden, inner * bits // 8),), (np.abs(floats(e, hidden)) / 100,), None,
    ]  # fmt: skip
    return one(
        "QMoE", inputs, MS, k=1, activation_type=activation, expert_weight_bits=bits, **attributes
    )


def nvfp4() -> Any:
    x = floats(4, 32)
    w = typed(RANDOM.integers(0, 2, (4, 32)), (4, 32), T.FLOAT4E2M1)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["d"], axis=1, block_size=16),
        helper.make_node("Add", ["x", "d"], ["y"]),
    ]
    return model(nodes, {"x": x}, {"w": w, "s": np.abs(floats(4, 2))}, opset=23, ir=11)


def crash() -> Any:
    """What PyTorch's TransformerEncoder comes out as in float16."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        helper.make_node("MatMul", ["t", "w"], ["y"], "n"),
    ]
    return model(
        nodes, {"x": floats(2, 3, 8, kind=np.float16)}, {"w": floats(8, 4, kind=np.float16)}, H
    )


def per_token() -> Any:
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "w", "z"], ["i"]),
        helper.make_node("Cast", ["i"], ["f"], to=F),
        helper.make_node("Mul", ["f", "s"], ["y"]),
    ]
    return model(
        nodes, {"x": floats(4, 32)}, {"w": RANDOM.integers(-9, 9, (32, 8)).astype(np.int8)}
    )


def carried(op: str, kind: int, opset: int, *inputs: Any, ir: int = 10, **attributes: Any) -> Any:
    """A movement of integers of few bits, between a constant and what dequantizes it."""
    constants = {"w": typed(RANDOM.integers(0, 2, (4, 32)), (4, 32), kind), "s": np.float32(0.1)}
    names = [f"c{index}" for index, _ in enumerate(inputs)]
    nodes = [
        helper.make_node(op, ["w", *names], ["m"], "n", **attributes),
        helper.make_node("DequantizeLinear", ["m", "s"], ["d"]),
        helper.make_node("Mul", ["x", "d"], ["y"]),
    ]
    constants |= dict(zip(names, inputs, strict=True))
    return model(nodes, {"x": floats(1)}, constants, opset=opset, ir=ir)


def cached(kind: str, bits: int) -> Any:
    """Attention whose cache is integers."""
    b, s, heads, kv, size = 1, 4, 2, 1, 16
    stored = np.zeros((b, kv, 0, size * bits // 8), np.int8 if bits == 8 else np.uint8)
    scale = np.full(kv * size if kind == "PER_CHANNEL" else 1, 0.05, np.float32)
    feeds = {"x0": floats(b, s, heads * size), "x1": floats(b, s, kv * size),
             "x2": floats(b, s, kv * size), "x3": stored, "x4": stored}  # fmt: skip
    constants = {"x5": np.int32([s - 1]), "x6": np.int32(s), "x12": scale, "x13": scale}
    names = [*(f"x{i}" for i in range(7)), *([""] * 5), "x12", "x13"]
    node = helper.make_node("GroupQueryAttention", names, ["y", "k", "v"], "n", domain=MS,
                            num_heads=heads, kv_num_heads=kv, k_quant_type=kind,
                            v_quant_type=kind, kv_cache_bit_width=bits)  # fmt: skip
    return model([node], feeds, constants)


def bfloat(op: str, *shapes: tuple[int, ...], **attributes: Any) -> Any:
    """An operator in bfloat16, between Casts."""
    feeds = {f"x{i}": floats(*shape) for i, shape in enumerate(shapes)}
    nodes = [helper.make_node("Cast", [n], [f"{n}b"], to=B) for n in feeds]
    nodes.append(helper.make_node(op, [f"{n}b" for n in feeds], ["b"], "n", **attributes))
    return model([*nodes, helper.make_node("Cast", ["b"], ["y"], to=F)], feeds, {}, opset=22)


ONNX_23 = {
    "RMSNormalization": lambda: one("RMSNormalization", [floats(2, 8), (floats(8),)], opset=23),
    "Attention": lambda: one("Attention", [floats(1, 2, 4, 8)] * 3, opset=23),
    "RotaryEmbedding": lambda: one(
        "RotaryEmbedding",
        [floats(1, 2, 4, 8), (floats(4, 4),), (floats(4, 4),), np.int64([[0, 1, 2, 3]])],
        opset=23,
    ),
}

# What a node is (as the table says it), why, what to do, and the model.
CASES: list[tuple[dict[str, Any], str, Any]] = [
    *(({"op": op, "opset": 23}, "write it by older operators, at opset 22", make) for op, make in ONNX_23.items()),
    ({"op": "Swish", "opset": 24}, "write Sigmoid and Mul", lambda: one("Swish", [floats(2, 8)], opset=24)),
    ({"op": "TensorScatter", "opset": 24}, "write ScatterND", lambda: one("TensorScatter", [floats(1, 2, 4, 8), floats(1, 2, 1, 8), np.int64([1])], opset=24)),
    *(({"op": "MatMulNBits", "domain": MS, "attributes": {"bits": b, "accuracy_level": 0}}, "take 4 bits", lambda b=b: nbits(b)) for b in (2, 3, 5, 6, 8)),
    *(({"op": "MatMulNBits", "domain": MS, "attributes": {"bits": b, "accuracy_level": 4}}, "take accuracy level 0", lambda b=b: nbits(b, level=4)) for b in (2, 8)),
    ({"op": "MatMulNBits", "domain": MS, "types": {"0": "FLOAT16"}}, "keep activations in float32", lambda: nbits(4, np.float16, out=H)),
    ({"op": "MatMulNBits", "domain": MS, "types": {"0": "FLOAT16"}, "attributes": {"bits": 8}}, "keep activations in float32", lambda: nbits(8, np.float16, out=H)),
    *(({"op": "GatherBlockQuantized", "domain": MS, "attributes": {"bits": b}, "types": {"0": "UINT8"}}, "keep the table float", lambda b=b: gather(b)) for b in (2, 4, 8)),
    *(({"op": "GatherBlockQuantized", "domain": MS, "types": {"0": n}}, "keep the table float", lambda k=k: gather(4, typed(RANDOM.integers(0, 2, (8, 64)), (8, 64), k))) for n, k in (("UINT4", U4), ("INT4", I4))),
    *(({"op": "QMoE", "domain": MS, "attributes": {"expert_weight_bits": b}}, "keep the experts float", lambda b=b: experts(b)) for b in (2, 4, 8)),
    ({"op": "QMoE", "domain": MS, "attributes": {"activation_type": "swiglu"}}, "keep the experts float", lambda: experts(4, "swiglu", swiglu_fusion=1)),
    ({"op": "MoE", "domain": MS}, "write the experts one by one", lambda: one("MoE", [floats(4, 32), floats(4, 2), (floats(2, 32, 32),), None, (floats(2, 32, 32),)], MS, k=1, activation_type="silu")),
    ({"op": "GroupQueryAttention", "domain": MS, "attributes": {"softcap": True}}, "leave it out", lambda: attention(softcap=30.0)),
    ({"op": "GroupQueryAttention", "domain": MS, "present": [9]}, "derive positions from the lengths", lambda: attention(extra={7: floats(8, 8), 8: floats(8, 8), 9: np.int64([[0, 1, 2, 3]])}, do_rotary=1)),
    ({"op": "GroupQueryAttention", "domain": MS, "present": [10]}, "take MultiHeadAttention", lambda: attention(extra={10: floats(1, 2, 4, 4)})),
    ({"op": "GroupQueryAttention", "domain": MS, "present": [11]}, "take another form of attention", lambda: attention(extra={11: floats(2)})),
    *(({"op": "DequantizeLinear", "types": {"0": n}, "opset": 25}, "take 4 bits", lambda k=k: dequantize(k, 25)) for n, k in (("INT2", T.INT2), ("UINT2", T.UINT2))),
    ({"op": "DequantizeLinear", "types": {"0": "FLOAT4E2M1"}, "opset": 23}, "take int4", nvfp4),
    ({"op": "Cast", "types": {"0": "INT4"}, "opset": 21}, "dequantize it", lambda: model([helper.make_node("Cast", ["w"], ["d"], to=F), helper.make_node("Add", ["x", "d"], ["y"])], {"x": floats(4, 32)}, {"w": typed(RANDOM.integers(0, 2, (4, 32)), (4, 32), I4)}, opset=21)),
    *(({"op": "GroupQueryAttention", "domain": MS, "attributes": {"k_quant_type": k, "kv_cache_bit_width": b}}, "keep the cache float", lambda k=k, b=b: cached(k, b)) for k in ("PER_TENSOR", "PER_CHANNEL") for b in (8, 4)),
    ({"op": "GroupQueryAttention", "domain": MS, "types": {"0": "FLOAT16"}}, "keep attention in float32", lambda: attention(kind=np.float16, out=H)),
    ({"op": "GroupQueryAttention", "domain": MS, "attributes": {"smooth_softmax": True}}, "leave it out", lambda: attention(smooth_softmax=1)),
    ({"op": "MatMulNBits", "domain": MS, "present": [4]}, "store the weight in the order of its inputs", lambda: one("MatMulNBits", [floats(2, 64), (codes(16, 2, 16),), (np.abs(floats(32)),), None, (np.int32(np.arange(64) // 32),)], MS, K=64, N=16, bits=4, block_size=32)),
    ({"op": "MatMulNBits", "domain": MS, "present": [5]}, "write an Add behind it", lambda: nbits(4, extra=5)),
    ({"op": "MatMulNBits", "domain": MS, "attributes": {"bits": 4}, "types": {"3": "FLOAT"}}, "write zero points of uint8", lambda: one("MatMulNBits", [floats(2, 64), (codes(16, 2, 16),), (np.abs(floats(32)),), (np.full(32, 8, np.float32),)], MS, K=64, N=16, bits=4, block_size=32)),
    ({"op": "MatMulBnb4", "domain": MS, "types": {"0": "FLOAT16"}}, "keep activations in float32", lambda: one("MatMulBnb4", [floats(2, 64, kind=np.float16), (codes(16 * 64 // 2),), (np.abs(floats(16, kind=np.float16)),)], MS, H, K=64, N=16, block_size=64, quant_type=1)),
    ({"op": "GatherBlockQuantized", "domain": MS, "types": {"0": "UINT8", "2": "FLOAT16"}}, "write scales in float32", lambda: one("GatherBlockQuantized", [(codes(8, 32),), np.int64([1, 2]), (np.abs(floats(8, 2, kind=np.float16)),)], MS, H, gather_axis=0, quantize_axis=1, block_size=32, bits=4)),
    *(({"op": "SkipSimplifiedLayerNormalization", "domain": MS, "types": {"0": n}}, "keep it in float32", lambda k=k, o=o: one("SkipSimplifiedLayerNormalization", [floats(1, 4, 8, kind=k), floats(1, 4, 8, kind=k), (floats(8, kind=k),)], MS, o)) for n, k, o in (("FLOAT16", np.float16, H),)),
    ({"op": "MultiHeadAttention", "domain": MS, "types": {"0": "FLOAT16"}}, "keep attention in float32", lambda: one("MultiHeadAttention", [floats(1, 4, 16, kind=np.float16)] * 3, MS, H, num_heads=2)),
    ({"op": "RotaryEmbedding", "domain": MS, "types": {"0": "FLOAT16"}}, "keep it in float32", lambda: one("RotaryEmbedding", [floats(1, 2, 4, 8, kind=np.float16), np.int64([[0, 1, 2, 3]]), (floats(8, 4, kind=np.float16),), (floats(8, 4, kind=np.float16),)], MS, H)),
    *(({"op": op, "types": {"0": "INT4"}, "opset": 21}, "dequantize first", lambda op=op, more=more, attributes=attributes: carried(op, I4, 21, *more, **attributes)) for op, more, attributes in (("Transpose", (), {"perm": [1, 0]}), ("Reshape", (np.int64([32, 4]),), {}), ("Identity", (), {}), ("Squeeze", (), {}), ("Unsqueeze", (np.int64([0]),), {}), ("Flatten", (), {}))),
    *(({"op": "QuantizeLinear", "types": {"2": n}, "opset": o}, "take another type", lambda k=k, o=o: quantize(k, o)) for n, k, o in (("INT4", I4, 21), ("UINT4", U4, 21), ("INT16", T.INT16, 21), ("FLOAT8E4M3FN", T.FLOAT8E4M3FN, 19), ("FLOAT4E2M1", T.FLOAT4E2M1, 23), ("INT2", T.INT2, 25))),
    *(({"op": "Cast", "types": {"0": n}, "opset": o}, "dequantize it", lambda k=k, o=o, v=v: model([helper.make_node("Cast", ["w"], ["d"], to=F), helper.make_node("Add", ["x", "d"], ["y"])], {"x": floats(4, 32)}, {"w": typed(RANDOM.integers(0, 2, (4, 32)), (4, 32), k)}, opset=o, ir=v)) for n, k, o, v in (("UINT4", U4, 21, 10), ("FLOAT4E2M1", T.FLOAT4E2M1, 23, 11), ("INT2", T.INT2, 25, 13), ("FLOAT8E4M3FN", T.FLOAT8E4M3FN, 19, 10))),
    *(({"op": "DequantizeLinear", "types": {"0": n}, "attributes": {"block_size": True}, "opset": 21}, "take a scale for each channel", lambda k=k: dequantize(k, 21, block=16)) for n, k in (("INT4", I4), ("INT8", I8), ("UINT4", U4))),
    *(({"op": op, "types": {"0": "BFLOAT16"}}, "compute in float32", lambda op=op, shapes=shapes, more=more: bfloat(op, *shapes, **more)) for op, shapes, more in (("MatMul", ((4, 8), (8, 4)), {}), ("Add", ((4, 8), (4, 8)), {}), ("Conv", ((1, 2, 5, 5), (3, 2, 3, 3)), {}), ("Softmax", ((4, 8),), {}), ("LayerNormalization", ((4, 8), (8,)), {}))),
    *(({"op": op, "types": {"0": "FLOAT16"}}, "keep it in float32", make) for op, make in (
        ("LSTM", lambda: one("LSTM", [floats(3, 1, 8, kind=np.float16), (floats(1, 16, 8, kind=np.float16),), (floats(1, 16, 4, kind=np.float16),)], out=H, hidden_size=4)),
        ("CumSum", lambda: one("CumSum", [floats(2, 4, kind=np.float16), (np.int64(1),)], out=H)),
        ("GridSample", lambda: one("GridSample", [floats(1, 1, 4, 4, kind=np.float16), floats(1, 2, 2, 2, kind=np.float16)], out=H, opset=16)),
        ("Resize", lambda: one("Resize", [floats(1, 1, 4, 4, kind=np.float16), None, (np.float32([1, 1, 2, 2]),)], out=H, mode="linear")),
        ("Einsum", lambda: one("Einsum", [floats(2, 3, kind=np.float16), floats(3, 2, kind=np.float16)], out=H, equation="ab,bc->ac")),
    )),
    ({"op": "DeformConv", "opset": 19}, "write GridSample", lambda: one("DeformConv", [floats(1, 1, 4, 4), (floats(1, 1, 2, 2),), floats(1, 8, 3, 3)], opset=19)),
    ({"op": "ImageDecoder", "opset": 20}, "decode before the model", lambda: one("ImageDecoder", [codes(64)], out=U, opset=20)),
    ({"op": "CumProd", "opset": 26}, "write Exp of a CumSum of Log", lambda: one("CumProd", [floats(2, 4), (np.int64(1),)], opset=26)),
    ({"op": "BitCast", "opset": 26}, "store what it would give", lambda: one("BitCast", [floats(2, 4)], out=I32, opset=26, to=I32)),
    ({"op": "MatMul", "types": {"0": "FLOAT16"}, "fed_by": "Transpose", "perms": [[1, 0, 2], [1, 2, 0]]}, "write Gemm, or keep it float32", crash),
]  # fmt: skip


def run(version: Path, case: tuple[Any, Any]) -> tuple[str, Any]:
    """Return what a version of the runtime makes of a model: found, refused or crashed."""
    proto, feeds = case
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(proto, f"{folder}/m.onnx")
        np.savez(f"{folder}/x.npz", **feeds)
        words = [sys.executable, "-c", WORKER, str(version), f"{folder}/m.onnx", f"{folder}/x.npz"]
        ran = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    line = next((x for x in ran.stdout.splitlines() if x.startswith(("FOUND", "REFUSED"))), "")
    word, _, rest = line.partition(" ")
    if word == "FOUND":
        return "found", np.array(json.loads(rest), np.float64)
    return ("refused", rest) if word else ("crashed", f"exit {ran.returncode}")


def identity(opset: int, ir: int) -> Any:
    return model(
        [helper.make_node("Identity", ["x"], ["y"])], {"x": floats(1)}, {}, opset=opset, ir=ir
    )


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {toml(v)}" for k, v in value.items()) + " }"
    return json.dumps(value)


def ranges(effect: str, effects: list[str], names: list[str]) -> list[list[str]]:
    """Return the first and the last version of each run of versions with an effect."""
    found = []
    for index, name in enumerate(names):
        if effects[index] != effect:
            continue
        if not index or effects[index - 1] != effect:
            found.append([name if index else "", ""])
        if index + 1 < len(names) and effects[index + 1] != effect:
            found[-1][1] = name
    return found


def describe(row: dict[str, Any]) -> str:
    """Return a fact's operator in words."""
    words = [
        name if value is True else f"{name} {value}"
        for name, value in row.get("attributes", {}).items()
    ]
    words += [f"input {place} {kind}" for place, kind in row.get("types", {}).items()]
    words += [f"input {place}" for place in row.get("present", ())]
    if "fed_by" in row:
        words.append(f"fed by {row['fed_by']} {' or '.join(map(str, row['perms']))}")
    return f"{row['op']} ({', '.join(words)})" if words else row["op"]


def main() -> None:
    root = Path(sys.argv[1])
    folders = sorted(
        (p for p in root.iterdir() if p.is_dir()), key=lambda p: [int(x) for x in p.name.split(".")]
    )
    names = [".".join(p.name.split(".")[:2]) for p in folders]
    lines = [
        "# What versions of ONNX Runtime (CPU) load and compute, measured by scripts/measure_runtimes.py on one minimal",
        "# model for each fact. refused, wrong (numbers) and crash: from which version to which; none: all before, or after.",
        f"# Measured: {', '.join(p.name for p in folders)}.",
        "",
    ]
    for folder, name in zip(folders, names, strict=True):
        opsets = [o for o in range(17, 28) if run(folder, identity(o, 8))[0] == "found"]
        irs = [i for i in range(8, 15) if run(folder, identity(17, i))[0] == "found"]
        lines += [f'[versions."{name}"]', f"opset = {max(opsets)}", f"ir = {max(irs)}", ""]
        print(name, max(opsets), max(irs), flush=True)
    for row, remedy, make in CASES:
        case = make()
        results = [run(folder, case) for folder in folders]
        judge = next((r[1] for r in reversed(results) if r[0] == "found"), None)
        good, effects = [], []
        for state, value in results:
            right = state == "found" and np.allclose(
                value, judge, rtol=2e-2, atol=2e-2, equal_nan=True
            )
            good.append(right)
            effects.append(
                "" if right else {"found": "wrong", "crashed": "crash"}.get(state, state)
            )
        shown = "".join({"": "+", "refused": "-", "wrong": "w", "crash": "c"}[e] for e in effects)
        print(shown, row, next((r[1] for r in results if r[0] == "refused"), "")[:90], flush=True)
        if all(good):
            continue
        lines.append("[[facts]]")
        lines += [f"{key} = {toml(value)}" for key, value in row.items()]
        lines.append(f"what = {toml(describe(row))}")
        for effect in dict.fromkeys(filter(None, effects)):
            lines.append(f"{effect} = {toml(ranges(effect, effects, names))}")
        lines += [f"remedy = {json.dumps(remedy)}", ""]
    TABLE.write_text("\n".join(lines), encoding="utf-8")
    print(sum(line == "[[facts]]" for line in lines), "facts")


if __name__ == "__main__":
    main()
