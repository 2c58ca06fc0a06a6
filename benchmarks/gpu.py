"""4-bit weights of a Llama-like model on a GPU: time of int4-rtn and int4-gptq, and of each stage.

Writes a float32 model of random weights (norms, rotary attention, gated layers) with external data,
and quantizes it. Stages wait for the GPU, which costs a little; `--no-stages` leaves that out.

    python benchmarks/gpu.py --device cuda                      3 GB, 32 samples of 512 tokens
    python benchmarks/gpu.py --device cpu --gigabytes 0.1 --width 512 --samples 4
"""

from __future__ import annotations

import argparse
import importlib
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measure import peak_memory, print_table
from onnx import TensorProto, helper, numpy_helper

VOCABULARY = 32000
HEAD = 64
STAGES = {
    "read float weights": ("jobs.weight_only.layers", "PlannedWeight", "read_on"),
    "run layers": ("run.layerwise", "LayerwiseRun", "_run_part"),
    "second moments": ("numerics.second_moment", "SecondMoment", "update"),
    "factor Hessians": ("jobs.weight_only.rounding", "factor_hessian"),
    "choose grids": ("rounding.gptq", "fit_block_scales"),
    "GPTQ's rows": ("rounding.gptq", "_sweep"),
    "guard (with a grid)": ("rounding.gptq", "_guarded"),
    "store": ("rounding.store", "BlockStore", "put"),
    "read from the store": ("rounding.store", "BlockStore", "get"),
    "pack": ("rounding.store", "pack_nbits"),
    "round and pack": ("jobs.weight_only.rounding", "pack_nearest"),
    "write (with packing)": ("graph.saving", "_write_data"),
}
"""Functions that take turns, but for those that name what they contain."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--gigabytes", type=float, default=3.0)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--length", type=int, default=512, help="tokens in a sample")
    parser.add_argument("--recipes", nargs="+", default=["int4-rtn", "int4-gptq"])
    parser.add_argument("--stages", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--folder", type=Path, help="where there is room; the temporary folder")
    options = parser.parse_args()
    import bitwright

    wait = start_device(options.device)
    spent: dict[str, float] = defaultdict(float)
    if options.stages:
        for stage, (module, *path) in STAGES.items():
            measure(stage, importlib.import_module(f"bitwright.{module}"), path, spent, wait)
    rng = np.random.default_rng(1)
    shape = (1, options.length)
    data = [{"ids": rng.integers(0, VOCABULARY, shape)} for _ in range(options.samples)]
    with tempfile.TemporaryDirectory(prefix="bitwright-gpu-", dir=options.folder) as folder:
        model = Path(folder) / "model.onnx"
        size = write_model(model, int(options.gigabytes * 1e9), options.width, options.length)
        print(f"{size / 1e9:.2f} GB of float32 on {options.device}")
        for recipe in options.recipes:
            spent.clear()
            started = time.perf_counter()
            bitwright.quantize(
                model,
                Path(folder) / "small.onnx",
                recipe=recipe,
                data=None if recipe == "int4-rtn" else data,
                device=options.device,
                external_data=True,
                progress=False,
            )
            seconds = time.perf_counter() - started
            rows = [(stage, f"{spent[stage]:.2f}") for stage in STAGES if spent[stage]]
            print(f"\n{recipe}: {seconds:.1f} s, {size / 1e9 / seconds:.2f} GB/s")
            print_table(("stage", "seconds"), [*rows, ("all", f"{seconds:.2f}")])
        print(f"\npeak memory of the host {peak_memory():.0f} MB")
        if options.device.startswith("cuda"):
            import torch

            print(f"peak memory of the GPU {torch.cuda.max_memory_allocated() / 1e6:.0f} MB")


def start_device(device: str) -> Callable[[], None]:
    """Start what runs on the device, and return what waits for its work."""
    if not device.startswith("cuda"):
        return lambda: None
    import torch

    started = time.perf_counter()
    torch.zeros(1, device=device) @ torch.zeros(1, device=device)
    torch.cuda.synchronize(device)
    print(f"torch {torch.__version__} started in {time.perf_counter() - started:.1f} s")
    return lambda: torch.cuda.synchronize(device)


def measure(
    stage: str, module: Any, path: list[str], spent: dict[str, float], wait: Callable[[], None]
) -> None:
    """Let a function add up the time it takes."""
    *owners, name = path
    owner = getattr(module, owners[0]) if owners else module
    function = getattr(owner, name)

    def timed(*arguments: Any, **options: Any) -> Any:
        wait()
        started = time.perf_counter()
        try:
            return function(*arguments, **options)
        finally:
            wait()
            spent[stage] += time.perf_counter() - started

    setattr(owner, name, timed)


def write_model(path: Path, size: int, width: int, length: int) -> int:
    """Write a model of about this many bytes, a weight at a time; return how many they are."""
    hidden, heads = width * 11 // 4, width // HEAD
    per_layer = 4 * width * width + 3 * width * hidden
    layers = max(1, round((size / 4 - 2 * VOCABULARY * width) / per_layer))
    rng = np.random.default_rng(0)
    nodes, tensors = [], []
    data = path.with_suffix(".data")
    with data.open("wb") as file:

        def add(name: str, array: np.ndarray) -> str:
            if array.nbytes < 1024:
                tensors.append(numpy_helper.from_array(array, name))
                return name
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            tensor = TensorProto(name=name, data_type=kind, dims=array.shape)
            tensor.data_location = TensorProto.EXTERNAL
            place = {"location": data.name, "offset": file.tell(), "length": array.nbytes}
            for key, value in place.items():
                tensor.external_data.add(key=key, value=str(value))
            file.write(array.data)
            tensors.append(tensor)
            return name

        def weight(name: str, *shape: int) -> str:
            array = rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[0]))
            return add(name, array)

        def node(op: str, inputs: list[str], output: str, **attributes: Any) -> str:
            made = helper.make_node(op, inputs, [output], name=f"{output}/{op}", **attributes)
            nodes.append(made)
            return output

        def norm(x: str, name: str) -> str:
            square = node("Mul", [x, x], f"{name}_square")
            mean = node("ReduceMean", [square, "last"], f"{name}_mean", keepdims=1)
            root = node("Sqrt", [node("Add", [mean, "epsilon"], f"{name}_sum")], f"{name}_root")
            scaled = node("Div", [x, root], f"{name}_scaled")
            gain = add(f"{name}_gain", np.ones(width, np.float32))
            return node("Mul", [scaled, gain], f"{name}_out")

        def heads_of(x: str, name: str, *, rotate: bool) -> str:
            parts = node("Reshape", [x, "by_head"], f"{name}_parts")
            turned = node("Transpose", [parts], f"{name}_heads", perm=[0, 2, 1, 3])
            if not rotate:
                return turned
            first = node("Slice", [turned, "zero", "half", "three"], f"{name}_first")
            second = node("Slice", [turned, "half", "whole", "three"], f"{name}_second")
            opposite = node("Neg", [second], f"{name}_negative")
            swapped = node("Concat", [opposite, first], f"{name}_swapped", axis=-1)
            straight = node("Mul", [turned, "cosines"], f"{name}_straight")
            across = node("Mul", [swapped, "sines"], f"{name}_across")
            return node("Add", [straight, across], f"{name}_rotated")

        for name, number in {"zero": 0, "half": HEAD // 2, "whole": HEAD, "three": 3}.items():
            add(name, np.array([number], np.int64))
        add("last", np.array([-1], np.int64))
        add("epsilon", np.array(1e-5, np.float32))
        add("root", np.array(np.sqrt(HEAD), np.float32))
        add("by_head", np.array([0, 0, heads, HEAD], np.int64))
        add("flat", np.array([0, 0, width], np.int64))
        angles = np.outer(np.arange(length), 10000.0 ** (-np.arange(0, HEAD, 2) / HEAD))
        angles = np.concatenate([angles, angles], 1)
        add("cosines", np.cos(angles).astype(np.float32))
        add("sines", np.sin(angles).astype(np.float32))
        add("mask", np.triu(np.full((length, length), -1e4, np.float32), 1))
        x = node("Gather", [weight("table", VOCABULARY, width), "ids"], "x0")
        for n in range(layers):
            h = norm(x, f"norm{n}")
            parts = [
                node("MatMul", [h, weight(f"{kind}{n}_weight", width, width)], f"{kind}{n}")
                for kind in "qkv"
            ]
            q, k, v = (
                heads_of(part, f"{kind}{n}", rotate=kind != "v")
                for part, kind in zip(parts, "qkv", strict=True)
            )
            keys = node("Transpose", [k], f"keys{n}", perm=[0, 1, 3, 2])
            scores = node("Div", [node("MatMul", [q, keys], f"dots{n}"), "root"], f"scores{n}")
            masked = node("Add", [scores, "mask"], f"masked{n}")
            shares = node("Softmax", [masked], f"shares{n}", axis=-1)
            mixed = node("MatMul", [shares, v], f"mixed{n}")
            joined = node("Transpose", [mixed], f"joined{n}", perm=[0, 2, 1, 3])
            rows = node("Reshape", [joined, "flat"], f"rows{n}")
            o = node("MatMul", [rows, weight(f"o{n}_weight", width, width)], f"o{n}")
            x = node("Add", [x, o], f"a{n}")
            h = norm(x, f"after{n}")
            gate = node("MatMul", [h, weight(f"gate{n}_weight", width, hidden)], f"gate{n}")
            up = node("MatMul", [h, weight(f"up{n}_weight", width, hidden)], f"up{n}")
            silu = node("Mul", [gate, node("Sigmoid", [gate], f"open{n}")], f"silu{n}")
            both = node("Mul", [silu, up], f"both{n}")
            down = node("MatMul", [both, weight(f"down{n}_weight", hidden, width)], f"down{n}")
            x = node("Add", [x, down], f"x{n + 1}")
        node("MatMul", [norm(x, "last_norm"), weight("head", width, VOCABULARY)], "logits")
    graph = helper.make_graph(
        nodes,
        "llama",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [1, length])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, length, VOCABULARY])],
        tensors,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    path.write_bytes(model.SerializeToString())
    return path.stat().st_size + data.stat().st_size


if __name__ == "__main__":
    main()
