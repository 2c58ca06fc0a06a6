"""Cases of Olive's quantization passes; run as `olive_cases.py peer|ours FOLDER`."""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from pathlib import Path

QUANTIZATION = "olive.passes.onnx.quantization"


def main(which: str, folder: Path) -> None:
    if which == "ours":
        from bitwright.compat import install_as

        install_as("onnxruntime.quantization", "quark")
    sys.path.insert(0, str(Path(__file__).parents[2]))
    import numpy as np
    import onnx
    import torch
    from olive.data.config import DataComponentConfig, DataConfig
    from olive.data.registry import Registry
    from olive.hardware.accelerator import AcceleratorSpec
    from olive.model import ONNXModelHandler
    from olive.passes.olive_pass import create_pass_from_dict
    from support.models import build, node, weight
    from support.tool_results import describe, describe_fault

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    cnn = build(
        [
            node("Conv", ["x", "w1", "b1"], ["a"], name="conv1", pads=[1] * 4),
            node("Relu", ["a"], ["r"], name="relu"),
            node("Conv", ["r", "w2", "b2"], ["c"], name="conv2", pads=[1] * 4),
            node("Add", ["r", "c"], ["d"], name="add"),
            node("GlobalAveragePool", ["d"], ["g"], name="pool"),
            node("Flatten", ["g"], ["f"], name="flat"),
            node("Gemm", ["f", "w3", "b3"], ["y"], name="gemm"),
        ],
        {"x": [1, 3, 12, 12]},
        {"y": [1, 4]},
        {
            "w1": weight(8, 3, 3, 3, seed=1),
            "b1": weight(8, seed=2),
            "w2": weight(8, 8, 3, 3, seed=3),
            "b2": weight(8, seed=4),
            "w3": weight(8, 4, seed=5),
            "b3": weight(4, seed=6),
        },
    )
    mlp = build(
        [
            node("MatMul", ["x", "w1"], ["h"], name="first"),
            node("Relu", ["h"], ["r"], name="relu"),
            node("MatMul", ["r", "w2"], ["y"], name="second"),
        ],
        {"x": [1, 64]},
        {"y": [1, 32]},
        {"w1": weight(64, 64, seed=1), "w2": weight(64, 32, seed=2)},
    )
    shapes = {"cnn": (3, 12, 12), "mlp": (64,)}
    for name, model in (("cnn", cnn), ("mlp", mlp)):
        (folder / "float" / name).mkdir(parents=True)
        onnx.save(model, folder / "float" / name / f"{name}.onnx")

    class Samples(torch.utils.data.Dataset):
        def __init__(self, kind):
            numbers = np.random.default_rng(0).standard_normal((6, *shapes[kind]))
            self.samples = torch.from_numpy(numbers.astype(np.float32))

        def __len__(self):
            return len(self.samples)

        def __getitem__(self, index):
            return {"x": self.samples[index]}, torch.tensor(0)

    @Registry.register_dataset()
    def random_samples(data_dir=None, kind="cnn", **_):
        return Samples(kind)

    def data(kind):
        load = DataComponentConfig(type="random_samples", params={"kind": kind})
        loader = DataComponentConfig(params={"batch_size": 1})
        return {
            "data_config": DataConfig(name="d", load_dataset_config=load, dataloader_config=loader)
        }

    def run_pass(name, kind, path, config, provider="CPUExecutionProvider"):
        module, kind_of_pass = path.rsplit(".", 1)
        device = "NPU" if provider.startswith("QNN") else "CPU"
        made = create_pass_from_dict(
            getattr(importlib.import_module(module), kind_of_pass),
            config,
            disable_search=True,
            accelerator_spec=AcceleratorSpec(accelerator_type=device, execution_provider=provider),
        )
        source = folder / "float" / kind / f"{kind}.onnx"
        result = made.run(ONNXModelHandler(model_path=str(source)), str(folder / name / "model"))
        feeds = [{"x": sample[None].numpy()} for sample in Samples(kind).samples]
        found = describe(Path(result.model_path), source, feeds)
        overrides = (result.model_attributes or {}).get("mixed_precision_overrides")
        return found | {"overrides": json.loads(json.dumps(overrides, default=str))}

    cases = {}
    for kind in shapes:
        dynamic = f"{QUANTIZATION}.OnnxDynamicQuantization"
        static = f"{QUANTIZATION}.OnnxStaticQuantization"
        either = f"{QUANTIZATION}.OnnxQuantization"
        prepare = f"{QUANTIZATION}.OnnxQuantizationPreprocess"
        overriding = "olive.passes.onnx.mixed_precision_overrides.MixedPrecisionOverrides"
        qnn = "QNNExecutionProvider"
        cases |= {
            f"{kind} dynamic": (kind, dynamic, {}),
            f"{kind} dynamic MatMul": (kind, dynamic, {"op_types_to_quantize": ["MatMul"]}),
            f"{kind} dynamic without": (kind, dynamic, {"op_types_to_exclude": ["Conv"]}),
            f"{kind} not prepared": (kind, static, data(kind) | {"prepare_qdq_config": False}),
            f"{kind} integer ops": (
                kind,
                static,
                data(kind) | {"quant_format": "QOperator", "per_channel": True},
            ),
            f"{kind} 16 bits": (kind, static, data(kind) | {"activation_type": "uint16"}),
            f"{kind} 4 bits": (
                kind,
                static,
                data(kind) | {"activation_type": "uint16", "precision": "int4"},
            ),
            f"{kind} symmetric": (
                kind,
                static,
                data(kind)
                | {
                    "activation_type": "int8",
                    "activation_symmetric": True,
                    "per_channel": True,
                    "extra_options": {"AddQDQPairToWeight": True},
                },
            ),
            f"{kind} external": (
                kind,
                static,
                data(kind) | {"save_as_external_data": True, "size_threshold": 0},
            ),
            f"{kind} either": (kind, either, data(kind) | {"quant_mode": "static"}),
            f"{kind} QNN": (kind, static, data(kind) | {"activation_type": "uint16"}, qnn),
            f"{kind} preprocessed": (kind, prepare, {}),
            f"{kind} QNN preprocessed": (
                kind,
                "olive.passes.onnx.qnn.qnn_preprocess.QNNPreprocess",
                {},
                qnn,
            ),
            f"{kind} overrides": (kind, overriding, {"overrides_config": {"r": "QUInt16"}}, qnn),
            f"{kind} impossible types": (
                kind,
                static,
                data(kind)
                | {"activation_type": "int8", "precision": "uint8", "prepare_qdq_config": False},
            ),
        }
        for method in ("MinMax", "Entropy", "Percentile"):
            config = data(kind) | {"calibrate_method": method}
            cases[f"{kind} {method}"] = (kind, static, config)
    for precision in ("nf4", "fp4"):
        bnb4 = "olive.passes.onnx.bnb_quantization.OnnxBnb4Quantization"
        cases[f"mlp {precision}"] = ("mlp", bnb4, {"precision": precision})
    if which == "ours":  # Quark itself needs a compiler
        cases |= quark_cases(data)
    results = {}
    for name, arguments in cases.items():
        try:
            results[name] = run_pass(name, *arguments)
        except Exception as error:  # noqa: BLE001 - which one it is, is the result
            results[name] = describe_fault(error) | {"said": f"{error} {error.__cause__}"}
    (folder / "results.json").write_text(json.dumps(results))


def quark_cases(data):
    quark = "olive.passes.quark_quantizer.quark_quantization.QuarkQuantization"
    activation = {"symmetric": False, "calibration_method": "MinMax", "data_type": "UInt8"}
    weights = {"symmetric": True, "calibration_method": "MinMax", "data_type": "Int8"}
    plain = {"global_config": {"activation": activation, "weight": weights}}
    wide = {
        "input_tensors": {**activation, "data_type": "UInt16"},
        "weight": {**weights, "data_type": "Int16"},
    }
    learning = {"name": "adaround", "num_iterations": 5, "target_op_type": ["Conv", "Gemm"]}
    cases = {
        "quark": plain,
        "quark steps": {**plain, "algo_config": [{"name": "cle", "cle_steps": 2}, learning]},
        "quark smooth": {**plain, "algo_config": [{"name": "smooth_quant", "alpha": 0.6}]},
        "quark layers": {
            **plain,
            "specific_layer_config": [[wide, ["gemm"]]],
            "layer_type_config": [[wide, ["Conv"]]],
            "exclude": ["relu"],
        },
        "quark overrides": {
            **plain,
            "extra_options": {"TensorQuantOverrides": {"r": [{"quant_type": "UInt16"}]}},
        },
    }
    return {name: ("cnn", quark, data("cnn") | config) for name, config in cases.items()}


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
