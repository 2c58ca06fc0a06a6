"""A model that is larger than the memory it may take: time and peak memory of weight-only jobs.

Writes a float32 language model of the asked size, its weights streamed to a data file, quantizes it
in a process of its own, checks one product of the result, and deletes everything. The bar for
nearest rounding is 1 GB at 6 GB; a calibrated method may take one layer's Hessian and inputs.

    python benchmarks/large_model.py                                    1 GB, nearest
    python benchmarks/large_model.py --gigabytes 6
    python benchmarks/large_model.py --gigabytes 1.5 --recipe int4-gptq --samples 16
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from measure import Measured, peak_memory, print_table, run_apart
from onnx import TensorProto, helper

HIDDEN_RATIO = 3
VOCABULARY = 16384


def main() -> None:
    if sys.argv[1:2] == ["worker"]:
        work(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--recipe", default="int4-rtn")
    parser.add_argument("--samples", type=int, default=8, help="for methods with data")
    parser.add_argument("--length", type=int, default=256, help="tokens in a sample")
    parser.add_argument("--folder", type=Path, help="where there is room; the temporary folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bitwright-large-", dir=options.folder) as folder:
        # The model, its rounded weights while they wait, and the result.
        needed = 2 * options.gigabytes * 1e9
        free = shutil.disk_usage(folder).free
        if free < needed:
            sys.exit(
                f"{needed / 1e9:.0f} GB of disk are needed here, and {free / 1e9:.0f} are free"
            )
        model = Path(folder) / "model.onnx"
        started = time.perf_counter()
        written = write_model(model, int(options.gigabytes * 1e9), options.width)
        print(f"wrote {written / 1e9:.2f} GB in {time.perf_counter() - started:.0f} s", flush=True)
        found = run_apart(
            Path(__file__).name,
            "worker",
            model,
            options.recipe,
            options.samples,
            options.length,
            timeout=7200,
        )
        if not isinstance(found, Measured):
            sys.exit(f"failed: {found}")
    columns = ["recipe", "float GB", "result GB", "seconds", "peak MB", "output error"]
    print_table(
        columns,
        [
            [
                options.recipe,
                f"{written / 1e9:.2f}",
                f"{found.extra['bytes'] / 1e9:.2f}",
                f"{found.seconds:.0f}",
                f"{found.peak:.0f}",
                f"{found.extra['error']:.4f}",
            ]
        ],
    )


def write_model(path: Path, size: int, width: int) -> int:
    """Write a model of about this many bytes, a weight at a time; return how many they are."""
    hidden = HIDDEN_RATIO * width
    layers = max(1, round((size / 4 - 2 * VOCABULARY * width) / (3 * width * hidden)))
    rng = np.random.default_rng(0)
    nodes, tensors = [], []
    data = path.with_suffix(".data")
    with data.open("wb") as file:

        def add(name: str, *shape: int, ones: bool = False) -> str:
            array = np.ones(shape, np.float32)
            if not ones:
                array = rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[0]))
            tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (
                ("location", data.name),
                ("offset", file.tell()),
                ("length", array.nbytes),
            ):
                tensor.external_data.add(key=key, value=str(value))
            file.write(array.data)
            tensors.append(tensor)
            return name

        def node(op: str, inputs: list[str], output: str) -> str:
            nodes.append(helper.make_node(op, inputs, [output], name=f"{output}/{op}"))
            return output

        x = node("Gather", [add("table", VOCABULARY, width), "ids"], "x0")
        for n in range(layers):
            gain = add(f"gain{n}", width, ones=True)
            h = node("LayerNormalization", [x, gain], f"h{n}")
            gate = node("MatMul", [h, add(f"gate{n}", width, hidden)], f"g{n}")
            up = node("MatMul", [h, add(f"up{n}", width, hidden)], f"u{n}")
            both = node("Mul", [node("Sigmoid", [gate], f"s{n}"), up], f"b{n}")
            down = node("MatMul", [both, add(f"down{n}", hidden, width)], f"d{n}")
            x = node("Add", [x, down], f"x{n + 1}")
        node("MatMul", [x, add("head", width, VOCABULARY)], "logits")
    graph = helper.make_graph(
        nodes,
        "large",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [1, "n"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, "n", VOCABULARY])],
        tensors,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    path.write_bytes(model.SerializeToString())
    return path.stat().st_size + data.stat().st_size


def work(model: str, recipe: str, samples: str, length: str) -> None:
    """Quantize, and print time and memory as JSON; then check what was written."""
    import bitwright
    from bitwright import load_recipe

    rng = np.random.default_rng(1)
    ids = [{"ids": rng.integers(0, VOCABULARY, (1, int(length)))} for _ in range(int(samples))]
    needs_data = load_recipe(recipe).weights.needs_data
    output = Path(model).with_name("small.onnx")
    started = time.perf_counter()
    result = bitwright.quantize(
        model, output, recipe=recipe, data=ids if needs_data else None, progress=False
    )
    seconds, peak = time.perf_counter() - started, peak_memory()
    error = error_of_first_product(Path(model), output)
    print(json.dumps({"seconds": seconds, "peak": peak, "bytes": result.size, "error": error}))


def error_of_first_product(model: Path, output: Path) -> float:
    """Return the relative error of what the first product computes, read from both files."""
    import onnxruntime

    width = next(t for t in onnx.load(model, load_external_data=False).graph.initializer).dims[1]
    x = np.random.default_rng(2).standard_normal((16, width), np.float32)
    found = []
    for path in (model, output):
        proto = onnx.load(path, load_external_data=False)
        # Other tools rename nodes.
        product = next(n for n in proto.graph.node if n.output[0] == "g0")
        product.input[0] = "x"
        product.output[0] = "y"
        used = [t for t in proto.graph.initializer if t.name in product.input]
        graph = helper.make_graph(
            [product],
            "one",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["m", width])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["m", None])],
            used,
        )
        part = helper.make_model(graph, opset_imports=proto.opset_import, ir_version=10)
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(path.parent)
        )
        session = onnxruntime.InferenceSession(part.SerializeToString(), options)
        found.append(session.run(None, {"x": x})[0])
    return float(np.linalg.norm(found[0] - found[1]) / np.linalg.norm(found[0]))


if __name__ == "__main__":
    main()
