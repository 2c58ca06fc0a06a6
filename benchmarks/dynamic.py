"""Dynamic quantization of a BERT-base-sized encoder, beside ONNX Runtime's own tool.

    python benchmarks/dynamic.py [FOLDER]

Both read the same file and write theirs, each in a process of its own; then all three models run on
the same inputs. The model has 12 layers of width 768 (3072 inside) and seeded weights, 340 MB of
which are those of matrix products.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from measure import Measured, print_table, report, run_apart

LAYERS, WIDTH, INNER, HEADS, LENGTH = 12, 768, 3072, 12, 128


def make_encoder(path: Path) -> None:
    """Write the encoder: attention and a two-layer perceptron, twelve times."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []

    def constant(name: str, array: np.ndarray) -> str:
        constants.append(numpy_helper.from_array(array, name))
        return name

    def add(op: str, inputs: list[str], output: str, **attributes: object) -> str:
        nodes.append(helper.make_node(op, inputs, [output], f"{output}/{op}", **attributes))
        return output

    def dense(x: str, name: str, rows: int, columns: int) -> str:
        weight = random.standard_normal((rows, columns), np.float32) / np.float32(np.sqrt(rows))
        # Columns of a trained network differ in size; equal ones would flatter one scale for all.
        weight *= random.lognormal(0, 0.4, columns).astype(np.float32)
        bias = 0.1 * random.standard_normal(columns, np.float32)
        product = add("MatMul", [x, constant(f"{name}.weight", weight)], f"{name}.product")
        return add("Add", [product, constant(f"{name}.bias", bias)], f"{name}.out")

    def norm(x: str, name: str) -> str:
        scale = (1 + 0.1 * random.standard_normal(WIDTH)).astype(np.float32)
        shift = 0.1 * random.standard_normal(WIDTH, np.float32)
        inputs = [x, constant(f"{name}.scale", scale), constant(f"{name}.shift", shift)]
        return add("LayerNormalization", inputs, f"{name}.out")

    constant("split", np.array([0, 0, HEADS, WIDTH // HEADS]))
    constant("join", np.array([0, 0, WIDTH]))
    constant("root", np.array(1 / np.sqrt(WIDTH // HEADS), np.float32))
    x = "x"
    for layer in range(LAYERS):
        tag = f"layer{layer}"
        parts = {}
        for part, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
            flat = dense(x, f"{tag}.{part}", WIDTH, WIDTH)
            heads = add("Reshape", [flat, "split"], f"{tag}.{part}.heads")
            parts[part] = add("Transpose", [heads], f"{tag}.{part}.turned", perm=order)
        scores = add("MatMul", [parts["q"], parts["k"]], f"{tag}.scores")
        scores = add("Mul", [scores, "root"], f"{tag}.scaled")
        shares = add("Softmax", [scores], f"{tag}.shares", axis=-1)
        mixed = add("MatMul", [shares, parts["v"]], f"{tag}.mixed")
        turned = add("Transpose", [mixed], f"{tag}.turned", perm=[0, 2, 1, 3])
        joined = add("Reshape", [turned, "join"], f"{tag}.joined")
        out = dense(joined, f"{tag}.o", WIDTH, WIDTH)
        x = norm(add("Add", [out, x], f"{tag}.sum1"), f"{tag}.norm1")
        inner = add("Relu", [dense(x, f"{tag}.up", WIDTH, INNER)], f"{tag}.inner")
        out = dense(inner, f"{tag}.down", INNER, WIDTH)
        x = norm(add("Add", [out, x], f"{tag}.sum2"), f"{tag}.norm2")
    shape = ["batch", "length", WIDTH]
    graph = helper.make_graph(
        nodes,
        "encoder",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, shape)],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)


def work(who: str, source: str, target: str) -> None:
    """One measurement, in this process: quantize the file into another, or make the first."""
    if who == "make":
        make_encoder(Path(target))
        report(0)
        return
    if who == "ours":
        from bitwright.compat.onnxruntime import quantize_dynamic
    else:
        from onnxruntime.quantization import quantize_dynamic
    per_channel = target.endswith("-channels.onnx")
    start = time.perf_counter()
    quantize_dynamic(source, target, per_channel=per_channel)
    report(time.perf_counter() - start)


def run_model(path: Path, batches: list[np.ndarray]) -> tuple[list[np.ndarray], float]:
    """Return the outputs and the seconds of one run."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    outputs = [session.run(None, {"x": batch})[0] for batch in batches]
    start = time.perf_counter()
    for batch in batches:
        session.run(None, {"x": batch})
    return outputs, (time.perf_counter() - start) / len(batches)


def sqnr(wanted: list[np.ndarray], given: list[np.ndarray]) -> float:
    noise = sum(float(np.sum((a - b) ** 2.0)) for a, b in zip(wanted, given, strict=True))
    return 10 * np.log10(sum(float(np.sum(a**2.0)) for a in wanted) / noise)


def quantize_all(folder: Path) -> dict[tuple[str, str], Measured]:
    """Measure both tools before this process grows: a child starts with its parent's peak."""
    found: dict[tuple[str, str], Measured] = {}
    for kind in ("tensors", "channels"):
        for who in ("theirs", "ours"):
            measured = run_apart(
                "dynamic.py", who, folder / "encoder.onnx", model_of(folder, who, kind)
            )
            if isinstance(measured, str):
                raise SystemExit(f"{who}: {measured}")
            found[who, kind] = measured
    return found


def compare(folder: Path) -> None:
    source = folder / "encoder.onnx"
    if not source.exists():
        run_apart("dynamic.py", "make", source, source)
    found = quantize_all(folder)
    random = np.random.default_rng(1)
    batches = [random.standard_normal((1, LENGTH, WIDTH), np.float32) for _ in range(3)]
    wanted, float_time = run_model(source, batches)
    rows = [("float", "", "", "", "", f"{float_time * 1e3:.0f} ms", megabytes(source))]
    for (who, kind), measured in found.items():
        peer = found["theirs", kind]
        outputs, seconds = run_model(model_of(folder, who, kind), batches)
        rows.append(
            (
                f"{who}, one scale for {kind}",
                f"{measured.seconds:.2f} s",
                f"{measured.peak:.0f} MB",
                f"{measured.seconds / peer.seconds:.2f} / {measured.peak / peer.peak:.2f}",
                f"{sqnr(wanted, outputs):.1f} dB",
                f"{seconds * 1e3:.0f} ms",
                megabytes(model_of(folder, who, kind)),
            )
        )
    header = ("", "time", "peak memory", "time / memory ratio", "SQNR", "one run", "file")
    print_table(header, rows)


def model_of(folder: Path, who: str, kind: str) -> Path:
    return folder / f"{who}-{kind}.onnx"


def megabytes(path: Path) -> str:
    return f"{path.stat().st_size / 1e6:.0f} MB"


def main() -> None:
    if len(sys.argv) == 4:
        work(*sys.argv[1:])
    elif len(sys.argv) == 2:
        compare(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            compare(Path(folder))


if __name__ == "__main__":
    main()
