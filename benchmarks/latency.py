"""Time of int8 models beside the prepared float model's, over the nets of `nets.py`, by each tool.

Each tool quantizes every net in a process of its own, from the same samples, as its documentation
says. Then all run in turns: the float model as Bitwright prepares it, which is 1.00 and is what
counts, the float model as it came, and what the tools wrote. On one thread CPU time counts, on all
cores the seconds that pass. A round opens all sessions anew; in parentheses are the least and the
largest of the rounds. The second table has the share of multiply-adds that ONNX Runtime computes in
integers, the size over float's, and the SQNR of the worst output.

    python benchmarks/latency.py                        all nets; what nets.py needs is needed here
    python benchmarks/latency.py --prepared models      write models, time nothing
    python benchmarks/latency.py --models models        time what was written
    python benchmarks/latency.py --models models --json times.json   go on where that was stopped

Models can be written on one machine and timed on another, which needs the repository and numpy,
onnx, onnxruntime, onnx-ir, lazy_loader and msgspec. `--hollow DIR`, with `--prepared`, also writes
them with weights left out, small enough to be sent; they are filled with random ones to be timed.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from measure import HERE, Measured, prepare_for_peer, print_table

from bitwright.assess.clock import Clock, middle_sized, time_models
from bitwright.graph import load_model, save_model

OURS = "bitwright"
USUAL = (OURS, "onnxruntime per channel", "nncf")
PREPARED, ORIGINAL = "prepared", "float"
"""Names of the float model's files, after our passes and before."""
JUDGED = 4
"""Samples that the error is taken of."""
FACTS, SAMPLE = "facts.json", "sample.npz"


# Writing the models.


def write_models(name: str, options: argparse.Namespace, folder: Path) -> None:
    """Write a net's float models and those of the tools, but for what is there already."""
    from nets import TRANSFORMERS, read_samples, write_net

    folder.mkdir(parents=True, exist_ok=True)
    samples = read_samples(write_net(name, options.floats))
    if not (folder / SAMPLE).exists():
        _write_floats(options.floats / f"{name}.onnx", folder)
        np.savez_compressed(folder / SAMPLE, **middle_sized(samples))
    facts = read_facts(folder)
    for tool in options.tools:
        if tool not in facts or tool in options.again:
            facts[tool] = _quantize(tool, folder, samples, transformer=name in TRANSFORMERS)
            print(f"{name}, {tool}: {facts[tool]}", flush=True)
            (folder / FACTS).write_text(json.dumps(facts, indent=1), encoding="utf-8")


def _write_floats(net: Path, folder: Path) -> None:
    from bitwright.jobs.timing import prepare_yardstick

    original = folder / f"{ORIGINAL}.onnx"
    shutil.copyfile(net, original)
    (folder / "samples").unlink(missing_ok=True)
    (folder / "samples").symlink_to(net.with_suffix("").resolve())
    prepare_for_peer(original)
    prepared = prepare_yardstick(original)
    if prepared is None:
        raise SystemExit(f"{net} cannot be prepared")
    save_model(prepared.reference, folder / f"{PREPARED}.onnx")


def _quantize(
    tool: str, folder: Path, samples: Sequence[Mapping[str, Any]], *, transformer: bool
) -> dict[str, Any]:
    """Run a tool, and return what is known of its model without timing it."""
    from accuracy import RUNTIME_ERRORS, count_products, path_of, quantize, worst_sqnr
    from peers import make_environment

    package = tool.split()[0]
    here = package in {OURS, "onnxruntime"}
    python = sys.executable if here else make_environment(package)
    path = path_of(folder, tool)
    path.unlink(missing_ok=True)
    done = quantize(tool, folder, python, transformer=transformer)
    if not isinstance(done, Measured):
        return {"error": done}
    try:
        work = count_products(path, middle_sized(samples))[2]
        outputs = [_run(model, samples) for model in (folder / f"{ORIGINAL}.onnx", path)]
    except RUNTIME_ERRORS as error:
        return {"error": str(error).splitlines()[0][:160]}
    return {
        "work": work,
        "size": path.stat().st_size / (folder / f"{ORIGINAL}.onnx").stat().st_size,
        "sqnr": worst_sqnr(*outputs),
        "cpu_seconds": done.extra["cpu"],
    }


def _run(path: Path, samples: Sequence[Mapping[str, Any]]) -> list[list[np.ndarray]]:
    from accuracy import open_model

    session = open_model(path)
    found = [session.run(None, sample) for sample in samples[:JUDGED]]
    return [[x for x in outputs if x.dtype == np.float32] for outputs in found]


def read_facts(folder: Path) -> dict[str, Any]:
    """Return what is known of each tool's model."""
    path = folder / FACTS
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


# Models without their weights: these are most of the bytes, and the time does not depend on them.

HOLLOWED = (np.float32, np.int8, np.uint8)
MIN_HOLLOWED = 512
"""Elements of a tensor below which it stays as it is."""


def _tensors(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    constants = [node.attribute[0] for node in model.graph.node if node.op_type == "Constant"]
    return [*model.graph.initializer, *(one.t for one in constants if one.name == "value")]


def hollow(model: onnx.ModelProto) -> None:
    """Leave out large weights, but for their smallest, largest and mean value and their spread."""
    for tensor in _tensors(model):
        array = onnx.numpy_helper.to_array(tensor)
        # Scales stay: the runtime compares those of biases with those of weights and activations.
        if array.dtype in HOLLOWED and array.size >= MIN_HOLLOWED and array.ndim > 1:
            figures = array.min(), array.max(), array.mean(dtype=float), array.std(dtype=float)
            empty = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
            empty.doc_string = json.dumps([float(figure) for figure in figures])
            tensor.CopyFrom(empty)


def refill(model: onnx.ModelProto) -> None:
    """Give random values to weights that were left out."""
    random = np.random.default_rng(0)
    for tensor in _tensors(model):
        if tensor.doc_string.startswith("["):
            low, high, mean, deviation = json.loads(tensor.doc_string)
            values = random.uniform(-1, 1, tuple(tensor.dims)) * math.sqrt(3) * deviation + mean
            kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
            values = values if kind == np.float32 else values.round()
            tensor.CopyFrom(
                onnx.numpy_helper.from_array(values.clip(low, high).astype(kind), tensor.name)
            )


def write_hollow(folder: Path, output: Path) -> None:
    """Copy what is needed to time a net, weights left out."""
    output.mkdir(parents=True, exist_ok=True)
    for name in (SAMPLE, FACTS):
        shutil.copyfile(folder / name, output / name)
    for name in (PREPARED, ORIGINAL, *read_facts(folder)):
        path = model_path(folder, name)
        if path.exists():
            model = onnx.load(path)
            hollow(model)
            onnx.save(model, output / path.name)


def model_path(folder: Path, name: str) -> Path:
    """Return the file of a tool's model, or of a float one."""
    return folder / f"{name.replace(' ', '-')}.onnx"


# Timing them.


@dataclass(frozen=True)
class Timed:
    """A net's times on so many threads."""

    net: str
    threads: int | None
    float_ms: float
    """Of the prepared float model: the median of the rounds."""
    clocks: dict[str, list[Clock]] = field(default_factory=dict)
    """For each other model, one a round."""

    def ratio(self, name: str) -> float:
        """Return the time over the prepared float model's, the median of the rounds."""
        return statistics.median(clock.ratio for clock in self.clocks[name])

    def cell(self, name: str) -> str:
        """Return the ratio with its spread, or nothing where the tool wrote no model."""
        if name not in self.clocks:
            return "-"
        ratios = [clock.ratio for clock in self.clocks[name]]
        return f"{self.ratio(name):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def time_net(folder: Path, options: argparse.Namespace, threads: int | None) -> Timed:
    """Time all models of a net in turns."""
    names = [PREPARED, ORIGINAL, *options.tools]
    names = [name for name in names if model_path(folder, name).exists()]
    with np.load(folder / SAMPLE) as arrays:
        sample = dict(arrays)
    models = []
    for name in names:
        proto = onnx.load(model_path(folder, name))
        refill(proto)
        models.append(load_model(proto))
    budget, rounds = options.seconds * len(names), []
    for _ in range(options.rounds):
        found = time_models(models, [sample] * len(names), threads=threads, budget=budget)
        if found is None:
            print(f"{folder.name} is too slow here: give more --seconds", file=sys.stderr)
            return Timed(folder.name, threads, math.nan)
        rounds.append(found)
    return Timed(
        folder.name,
        threads,
        statistics.median(found[0].float_ms for found in rounds),
        dict(zip(names[1:], map(list, zip(*rounds, strict=True)), strict=True)),
    )


def print_times(timed: Sequence[Timed], tools: Sequence[str]) -> None:
    """Print the ratios of each net, and of all: the median, the worst, and how many are slower."""
    columns = (ORIGINAL, *tools)
    rows = [(each.net, f"{each.float_ms:.2f}", *map(each.cell, columns)) for each in timed]
    having = [[each for each in timed if name in each.clocks] for name in columns]
    ratios = [
        [each.ratio(name) for each in found] for name, found in zip(columns, having, strict=True)
    ]
    slower = [
        f"{sum(all(clock.is_slower for clock in each.clocks[name]) for each in found)}"
        f" of {len(found)}"
        for name, found in zip(columns, having, strict=True)
    ]
    rows += [
        ("**median**", "", *(f"{statistics.median(x):.2f}" if x else "-" for x in ratios)),
        ("**worst**", "", *(f"{max(x):.2f}" if x else "-" for x in ratios)),
        ("**slower than float**", "", *slower),
    ]
    print_table(("net", "prepared float, ms", "float as it came", *tools), rows)


def print_facts(folders: Sequence[Path], tools: Sequence[str]) -> None:
    """Print what the models are: integers, size, error."""
    rows = []
    for folder in folders:
        facts, cells = read_facts(folder), []
        for tool in tools:
            found = facts.get(tool, {"error": "-"})
            cells.append(
                found.get("error")
                or f"{found['work']:.0%}, {found['size']:.0%}, {found['sqnr']:.1f} dB"
            )
        rows.append((folder.name, *cells))
    print_table(("integers, size, SQNR", *tools), rows)


def absolute(path: str) -> Path:
    """Return a path that holds in other processes, too, which have a folder of their own."""
    return Path(path).absolute()


def main() -> None:
    """Write models, time them, or both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nets", nargs="*", help="names of nets.py; all where none is given")
    parser.add_argument("--tools", nargs="*", default=USUAL, help="names of accuracy_worker.py")
    parser.add_argument("--again", nargs="*", default=[], help="tools to quantize with once more")
    parser.add_argument("--floats", type=absolute, default=HERE.parent / "build" / "nets")
    parser.add_argument("--prepared", type=absolute, help="write models here, and time nothing")
    parser.add_argument("--hollow", type=absolute, help="write them here, too, without weights")
    parser.add_argument("--models", type=absolute, help="time what was written here")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 0], help="0: all cores")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2, help="for each model and round")
    parser.add_argument("--json", type=Path, help="write all figures here")
    options = parser.parse_args()
    onnxruntime.set_default_logger_severity(4)
    with tempfile.TemporaryDirectory(prefix="bitwright-bench-") as place:
        models = options.models or options.prepared or Path(place)
        if options.models is None:
            from nets import ALL

            for name in options.nets or ALL:
                write_models(name, options, models / name)
                if options.hollow:
                    write_hollow(models / name, options.hollow / name)
        if options.prepared is None:
            chosen = [models / name for name in options.nets or ()]
            chosen = chosen or sorted(path.parent for path in models.glob(f"*/{FACTS}"))
            report(chosen, options)


def report(folders: Sequence[Path], options: argparse.Namespace) -> None:
    """Time nets that the file of figures does not have, and print what was found."""
    print_facts(folders, options.tools)
    found = read_times(options.json)
    for threads in options.threads:
        for folder in folders:
            if (folder.name, threads) in found:
                continue
            timed = found[folder.name, threads] = time_net(folder, options, threads or None)
            cells = [timed.cell(tool) for tool in options.tools]
            print(f"{folder.name}: {', '.join(cells)}", file=sys.stderr, flush=True)
            if options.json:
                figures = [asdict(each) for each in found.values()]
                options.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")
        print(f"\nTime over prepared float's, {f'{threads} thread' if threads else 'all cores'}:\n")
        print_times([found[folder.name, threads] for folder in folders], options.tools)


def read_times(path: Path | None) -> dict[tuple[str, int], Timed]:
    """Return the times that a file of figures has, by net and threads (0: all cores)."""
    if path is None or not path.exists():
        return {}
    found = {}
    for figures in json.loads(path.read_text(encoding="utf-8")):
        clocks = figures["clocks"].items()
        figures["clocks"] = {name: [Clock(**one) for one in rounds] for name, rounds in clocks}
        found[figures["net"], figures["threads"] or 0] = Timed(**figures)
    return found


if __name__ == "__main__":
    main()
