"""How time and memory of each verb grow with the number of nodes, beside ONNX Runtime's tool.

python benchmarks/graph_size.py [--sizes 500 2000 8000] [--verbs quantize-cpu compare ...]

The model is a chain of Conv, Relu and Add: small tensors, so that what is measured is the price of
a node. Each figure comes from a process of its own, CPU seconds on one thread, imports not counted.
The exponent is the slope of log(seconds) over log(nodes) by least squares: 1 is linear. A verb that
takes longer than --timeout at one size is not tried at larger ones.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from measure import Measured, print_table, report, run_apart
from onnx import TensorProto, helper, numpy_helper

CHANNELS, EDGE, SAMPLES, SEED = 4, 8, 4, 0
SENSITIVITY_NODES = 64
"""Nodes that `sensitivity` measures one by one, as the report does: all would be quadratic by
definition, since each is a run of what comes after it."""


def chain(nodes: int) -> onnx.ModelProto:
    """Return Conv -> Relu -> Add (to what the Conv read), again and again."""
    random = np.random.default_rng(SEED)
    made, weights = [], []
    # Residual branches of a variance of 1 / layers: values stay near one at any length.
    deviation = np.sqrt(3.0 / nodes / (9 * CHANNELS))
    block = x = "image"
    for index in range(nodes):
        op, inputs = ("Conv", "Relu", "Add")[index % 3], [x]
        if op == "Conv":
            block = x
            weight = random.normal(size=(CHANNELS, CHANNELS, 3, 3)) * deviation
            bias = random.normal(size=CHANNELS) * deviation
            for name, array in ((f"w{index}", weight), (f"b{index}", bias)):
                weights.append(numpy_helper.from_array(array.astype(np.float32), name))
                inputs.append(name)
        elif op == "Add":
            inputs.append(block)
        attributes = {"pads": [1] * 4} if op == "Conv" else {}
        x = "out" if index == nodes - 1 else f"t{index}"
        made.append(helper.make_node(op, inputs, [x], f"{op}_{index}", **attributes))
    shape = [1, CHANNELS, EDGE, EDGE]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in ("image", "out")]
    graph = helper.make_graph(made, "chain", values[:1], values[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def samples() -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(SEED + 1)
    shape = (1, CHANNELS, EDGE, EDGE)
    return [{"image": random.normal(size=shape).astype(np.float32)} for _ in range(SAMPLES)]


# One verb each: they get the model, the file of its quantized form, and that of the plan.


def _quantize(recipe: str) -> Callable[[Path, Path, Path], object]:
    def run(model: Path, quantized: Path, plan: Path) -> object:
        import bitwright

        dynamic = recipe == "int8-dynamic"
        options = {"force_dynamic": True} if dynamic else {"data": samples()}
        # Written beside what the other verbs read, and forgotten.
        output = quantized.with_name(f"{quantized.stem}-{recipe}.onnx")
        return bitwright.quantize(model, output, recipe=recipe, progress=False, **options)

    return run


def _plan(model: Path, quantized: Path, plan: Path) -> object:
    import bitwright

    made = bitwright.make_plan(model, data=samples(), recipe="int8", progress=False)
    made.save(plan)
    bitwright.apply_plan(made, model, quantized)
    return made


def _make_plan(model: Path, quantized: Path, plan: Path) -> object:
    import bitwright

    return bitwright.make_plan(model, data=samples(), recipe="int8", progress=False)


def _compare(model: Path, quantized: Path, plan: Path) -> object:
    import bitwright

    return bitwright.compare(model, quantized, data=samples(), progress=False)


def _sensitivity(model: Path, quantized: Path, plan: Path) -> object:
    import bitwright

    return bitwright.find_sensitivity(
        model, plan, data=samples()[:1], candidates=SENSITIVITY_NODES, progress=False
    )


def _report(model: Path, quantized: Path, plan: Path) -> object:
    import bitwright

    page = quantized.with_suffix(".html")
    return bitwright.write_report(
        model, quantized, page, data=samples(), latency=False, progress=False
    )


def _verify(model: Path, quantized: Path, plan: Path) -> object:
    import bitwright

    return bitwright.verify(quantized)


def _tune(model: Path, quantized: Path, plan: Path) -> object:
    import bitwright

    options = {"evaluate": "closeness", "purpose": "size", "effort": "low"}
    return bitwright.tune(model, data=samples(), eval_data=4 * samples(), max_drop=0.05, **options)


def _peer(model: Path, quantized: Path, plan: Path) -> object:
    import onnxruntime.quantization as peer

    class Reader(peer.CalibrationDataReader):
        def __init__(self) -> None:
            self.left = iter(samples())

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.left, None)

    output = quantized.with_name(f"{quantized.stem}-peer.onnx")
    return peer.quantize_static(model, output, Reader(), quant_format=peer.QuantFormat.QDQ)


VERBS: dict[str, Callable[[Path, Path, Path], object]] = {
    "quantize-cpu": _quantize("int8"),
    "quantize-npu": _quantize("npu-cnn"),
    "quantize-dynamic": _quantize("int8-dynamic"),
    "plan": _make_plan,
    "compare": _compare,
    "sensitivity": _sensitivity,
    "report": _report,
    "verify": _verify,
    "tune": _tune,
    "onnxruntime": _peer,
}


def run_here(verb: str, nodes: int, folder: Path) -> None:
    """Measure one verb in this process, with what it needs made before by another."""
    import bitwright  # noqa: F401 (imports are not counted)

    model, quantized, plan = (folder / f"{nodes}{end}" for end in (".onnx", ".q.onnx", ".json"))
    run = _plan if verb == "prepare" else VERBS[verb]
    begin, cpu = time.perf_counter(), time.process_time()
    run(model, quantized, plan)
    report(time.perf_counter() - begin, cpu=time.process_time() - cpu)


def measure(verb: str, nodes: int, folder: Path, timeout: float) -> Measured | str:
    # One thread: CPU seconds of threads that wait for each other say nothing.
    os.environ["OMP_NUM_THREADS"] = "1"
    return run_apart("graph_size.py", "--run", verb, nodes, folder, timeout=timeout)


def exponent(found: dict[int, Measured]) -> str:
    if len(found) < 2:
        return "-"
    seconds = [measured.extra["cpu"] for measured in found.values()]
    slope, _ = np.polyfit(np.log(list(found)), np.log(seconds), 1)
    return f"{slope:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[500, 2000, 8000])
    parser.add_argument("--verbs", nargs="+", choices=list(VERBS), default=list(VERBS))
    parser.add_argument("--timeout", type=float, default=300)
    parser.add_argument("--folder", type=Path, help="keep the models here")
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        verb, nodes, place = given.run
        run_here(verb, int(nodes), Path(place))
        return
    with tempfile.TemporaryDirectory() as made:
        folder = given.folder or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        sizes = sorted(given.sizes)
        for nodes in sizes:
            onnx.save(chain(nodes), folder / f"{nodes}.onnx")
            if not {"compare", "sensitivity", "report", "verify"}.isdisjoint(given.verbs):
                done = measure("prepare", nodes, folder, 10 * given.timeout)
                if isinstance(done, str):
                    raise SystemExit(f"{nodes} nodes could not be quantized: {done}")
        rows = []
        for verb in given.verbs:
            cells, found = [], dict[int, Measured]()
            for nodes in sizes:
                late = cells and cells[-1].startswith(("over", "-"))
                done = "-" if late else measure(verb, nodes, folder, given.timeout)
                if isinstance(done, Measured):
                    found[nodes] = done
                    done = f"{done.extra['cpu']:.1f} s, {done.peak:.0f} MB"
                cells.append(done)
            rows.append((verb, *cells, exponent(found)))
        print_table(("verb", *(f"{nodes:,} nodes" for nodes in sizes), "exponent"), rows)


if __name__ == "__main__":
    main()
