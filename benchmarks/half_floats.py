"""Conversion to float16 by three converters: what loads, how far it is from float, and its Casts.

Ours (without data, and with two samples) beside `onnxconverter_common.float16` and
`onnxruntime.transformers.float16`, all with inputs and outputs in float32, on small graphs of the
kinds that break, on trained models from packages, and on graphs of torch's two exporters.

    pip install onnxconverter-common
    python benchmarks/half_floats.py [--only TEXT] [--json FILE]

The error is |half - float| / |float| (root mean squares) over all outputs and samples, of a model
that rounds each result to half precision: ONNX Runtime's CPU provider, which runs it, computes
float16 in float32 and would hide what overflows. "-" is a model that the runtime does not open,
each in a process of its own.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from measure import print_table

ROOT = Path(__file__).parents[1]
# onnxruntime.transformers imports a module of its own by this one's name.
sys.path = [
    str(ROOT),
    str(ROOT / "tests"),
    *(p for p in sys.path if Path(p) != Path(__file__).parent),
]

from models.test_every_job import MODELS, PACKAGES  # noqa: E402
from support.half_models import CASES, make_case  # noqa: E402

import bitwright  # noqa: E402
from bitwright import graph  # noqa: E402
from bitwright.prepare.widen_float16 import simulate_float16  # noqa: E402
from bitwright.run import Session  # noqa: E402
from zoo.stored import restore  # noqa: E402

Samples = list[dict[str, np.ndarray]]
STORED = ROOT / "tests" / "zoo" / "graphs"
EXPORTED = (
    "transformers-bert-torchscript", "transformers-bert-dynamo", "transformers-gpt2-torchscript",
    "transformers-llama-dynamo", "transformers-llama-torchscript",
    "transformers-t5-encoder-dynamo", "transformers-wav2vec2-torchscript",
    "transformers-detr-dynamo", "transformers-vit-torchscript", "timm-swin-dynamo",
    "timm-convnext-torchscript", "timm-efficientnet-torchscript", "timm-mobilenetv3-dynamo",
    "rnn-lstm-bidirectional-two-layers-torchscript-17-static",
)  # fmt: skip
OPEN = "import onnxruntime as o, sys; o.InferenceSession(sys.argv[1])"


def by_peer(module: str) -> Callable[[onnx.ModelProto, Samples], onnx.ModelProto]:
    def convert(model: onnx.ModelProto, samples: Samples) -> onnx.ModelProto:
        peer = importlib.import_module(module)
        return peer.convert_float_to_float16(model, keep_io_types=True)

    return convert


def ours(*, data: bool) -> Callable[[onnx.ModelProto, Samples], onnx.ModelProto]:
    def convert(model: onnx.ModelProto, samples: Samples) -> onnx.ModelProto:
        given = {"data": samples} if data else {}
        made = bitwright.quantize(model, recipe="float16", progress=False, **given).model
        return ir.to_proto(made)

    return convert


CONVERTERS = {
    "ours": ours(data=False),
    "ours, data": ours(data=True),
    "onnxconverter_common": by_peer("onnxconverter_common.float16"),
    "onnxruntime": by_peer("onnxruntime.transformers.float16"),
}


def read_models(
    folder: Path,
) -> Iterator[tuple[str, Callable[[], tuple[onnx.ModelProto, Samples]]]]:
    for name in CASES:
        yield name, lambda name=name: make_case(name)
    for name, (path, draw, seed) in MODELS.items():

        def read(path: str = path, draw: Any = draw, seed: int = seed) -> Any:
            np.random.seed(seed)
            places = (Path(place) / path for place in (PACKAGES, *sys.path))
            return onnx.load(next(p for p in places if p.is_file())), list(draw(2))

        yield name, read
    for name in EXPORTED:

        def made(name: str = name) -> Any:
            case = restore(STORED / f"{name}.onnx.gz", folder)
            return onnx.load(case.path), case.judged

        yield name, made


def count_nodes(model: onnx.ModelProto) -> tuple[int, int]:
    """Return how many Casts a model has, and how many other nodes give float32."""
    loaded = graph.load_model(model)
    graph.infer_shapes(loaded)
    nodes = list(loaded.graph.all_nodes())
    casts = sum(node.op_type == "Cast" for node in nodes)
    wide = sum(
        any(value.dtype is not None and value.dtype.name == "FLOAT" for value in node.outputs)
        for node in nodes
        if node.op_type not in ("Cast", "Constant")
    )
    return casts, wide


def answers(model: Any, samples: Samples) -> list[dict[str, Any]]:
    session = Session(model)
    return [session.run(sample) for sample in samples]


def distance(expected: list[dict[str, Any]], found: list[dict[str, Any]]) -> float:
    error = power = 0.0
    for one, other in zip(expected, found, strict=True):
        for name, value in one.items():
            if value.dtype.kind == "f" and value.shape == other[name].shape:
                error += float(np.square(other[name].astype(np.float64) - value).sum())
                power += float(np.square(value.astype(np.float64)).sum())
    return (error / power) ** 0.5 if power else 0.0


def measure(
    convert: Any, model: onnx.ModelProto, samples: Samples, expected: Any, folder: Path
) -> dict[str, Any]:
    try:
        made = convert(onnx.ModelProto.FromString(model.SerializeToString()), samples)
    except Exception as error:  # noqa: BLE001 (another tool's, which is what is measured)
        return {"loads": False, "why": f"{type(error).__name__}: {error}"[:200]}
    path = folder / "made.onnx"
    onnx.save(made, path)
    opened = subprocess.run([sys.executable, "-c", OPEN, path], capture_output=True, check=False)
    if opened.returncode:
        why = opened.stderr.decode(errors="replace").strip().splitlines() or [""]
        return {"loads": False, "why": why[-1][:200]}
    casts, wide = count_nodes(made)
    half = graph.load_model(made)
    graph.normalize(half)
    graph.infer_shapes(half)
    simulate_float16(half)
    found = {"loads": True, "casts": casts, "wide": wide}
    return {**found, "error": distance(expected, answers(half, samples))}


def shown(result: dict[str, Any], source: tuple[int, int]) -> tuple[str, str, str]:
    if not result["loads"]:
        return "-", "-", "-"
    error = result["error"]
    words = "NaN" if not np.isfinite(error) else f"{error:.1e}" if error < 0.1 else f"{error:.2f}"
    return words, str(result["casts"] - source[0]), str(result["wide"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="models whose name has this text")
    parser.add_argument("--json", type=Path, help="write everything to this file, too")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    onnxruntime.set_default_logger_severity(4)
    rows, found = [], {}
    with tempfile.TemporaryDirectory(prefix="bitwright-bench-") as place:
        for name, read in read_models(Path(place)):
            if options.only not in name:
                continue
            model, samples = read()
            expected = answers(model, samples)
            source = count_nodes(model)
            results = {
                who: measure(convert, model, samples, expected, Path(place))
                for who, convert in CONVERTERS.items()
            }
            found[name] = results
            cells = [shown(result, source) for result in results.values()]
            rows.append((name, *(" / ".join(cell) for cell in cells)))
            print(*rows[-1], sep=" | ", flush=True)
            for who, result in results.items():
                if "why" in result:
                    print(f"    {who}: {result['why']}")
    print_table(("error / Casts added / float32 nodes", *CONVERTERS), rows)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
