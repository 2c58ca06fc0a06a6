"""Cases of Optimum's `ORTQuantizer`; run as `optimum_cases.py peer|ours FOLDER`."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace


def main(which: str, folder: Path) -> None:
    if which == "ours":
        from bitwright.compat import install_as

        install_as("onnxruntime.quantization")
    sys.path.insert(0, str(Path(__file__).parents[2]))
    import numpy as np
    import onnx
    import torch
    from onnxruntime.quantization import QuantFormat, QuantizationMode
    from optimum.onnxruntime import ORTQuantizer
    from optimum.onnxruntime.configuration import (
        AutoCalibrationConfig,
        AutoQuantizationConfig,
        QuantizationConfig,
    )
    from optimum.onnxruntime.preprocessors import QuantizationPreprocessor
    from optimum.onnxruntime.preprocessors.passes import ExcludeLayerNormNodes
    from support.tool_results import describe, describe_fault
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        ResNetConfig,
        ResNetForImageClassification,
    )

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    numbers = np.random.default_rng(0)

    class Samples(list):
        """What is read of a `datasets.Dataset`."""

        num_rows = property(len)
        split = "train"
        info = SimpleNamespace(builder_name="samples", config_name="none")

    class Logits(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, *inputs):
            return self.model(*inputs).logits

    def export(name, model, inputs, axes):
        for weight in model.parameters():  # equal ones would be stored once, behind Identity nodes
            weight.data += 0.03 * torch.randn_like(weight)
        target = folder / "float" / name
        target.mkdir(parents=True)
        model.config.save_pretrained(target)
        torch.onnx.export(
            Logits(model).eval(),
            tuple(inputs.values()),
            target / "model.onnx",
            input_names=list(inputs),
            output_names=["logits"],
            dynamic_axes=dict.fromkeys(inputs, axes),
            opset_version=17,
            dynamo=False,
        )
        return target

    bert = BertConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=64,
        attn_implementation="eager",
    )
    resnet = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=5
    )
    tokens = torch.randint(0, 60, (2, 12))
    ids = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    image = {"pixel_values": torch.randn(2, 3, 16, 16)}
    text_model = export("bert", BertForSequenceClassification(bert), ids, {0: "batch", 1: "length"})
    image_model = export("resnet", ResNetForImageClassification(resnet), image, {0: "batch"})
    text = Samples(
        {"input_ids": numbers.integers(0, 60, 12).tolist(), "attention_mask": [1] * 12}
        for _ in range(6)
    )
    images = Samples(
        {"pixel_values": numbers.standard_normal((3, 16, 16)).astype(np.float32).tolist()}
        for _ in range(6)
    )

    def feeds(samples):
        kinds = {"pixel_values": np.float32}
        return [
            {key: np.array([value], kinds.get(key, np.int64)) for key, value in sample.items()}
            for sample in samples
        ]

    def quantize(name, model, samples, config, calibration=None, steps=None, fit=(), **options):
        quantizer = ORTQuantizer.from_pretrained(model)
        ranges = None
        if calibration is not None:
            for start in range(0, len(samples), steps or len(samples)):
                quantizer.partial_fit(
                    Samples(samples[start : start + (steps or len(samples))]),
                    calibration,
                    onnx_augmented_model_name=str(folder / "augmented.onnx"),
                    operators_to_quantize=config.operators_to_quantize,
                    **dict(fit),
                )
            ranges = quantizer.compute_ranges()
        target = folder / name
        quantizer.quantize(config, target, calibration_tensors_range=ranges, **options)
        return describe(target / "model_quantized.onnx", model / "model.onnx", feeds(samples))

    auto, minmax = AutoQuantizationConfig, AutoCalibrationConfig.minmax
    cases = {}
    for kind, model, samples in (("bert", text_model, text), ("resnet", image_model, images)):
        everything = (model, samples)
        named = ("arm64", "avx2", "avx512", "avx512_vnni", "ppc64le")
        for name in named if kind == "bert" else ("avx512",):
            make = getattr(auto, name)
            cases[f"{kind} {name} dynamic"] = (*everything, make(is_static=False))
            cases[f"{kind} {name} static"] = (*everything, make(is_static=True), minmax(samples))
        static, products = auto.avx512(is_static=True), ["MatMul", "Gemm", "Conv"]
        symmetric = auto.arm64(is_static=True, use_symmetric_activations=True)
        cases |= {
            f"{kind} tensorrt": (*everything, auto.tensorrt(), minmax(samples)),
            f"{kind} symmetric": (*everything, symmetric, minmax(samples)),
            f"{kind} reduced range, one scale": (
                *everything,
                auto.avx2(is_static=True, per_channel=False, reduce_range=True),
                minmax(samples),
            ),
            f"{kind} parts": (*everything, static, minmax(samples), 3),
            f"{kind} moving average": (*everything, static, minmax(samples, moving_average=True)),
            f"{kind} entropy": (*everything, static, AutoCalibrationConfig.entropy(samples)),
            f"{kind} percentile": (
                *everything,
                static,
                AutoCalibrationConfig.percentiles(samples, percentile=99.5),
            ),
            f"{kind} products": (
                *everything,
                auto.avx512(is_static=True, operators_to_quantize=products),
                minmax(samples),
            ),
            f"{kind} dynamic products": (
                *everything,
                auto.avx512(is_static=False, operators_to_quantize=products),
            ),
            f"{kind} nothing of this type": (
                *everything,
                auto.avx512(is_static=True, operators_to_quantize=["Nope"]),
                minmax(samples),
            ),
            f"{kind} no ranges": (*everything, static),
        }
    first = [n.name for n in onnx.load(text_model / "model.onnx").graph.node if n.op_type == "Gemm"]
    excluded = auto.avx512(
        is_static=True, operators_to_quantize=["MatMul", "Gemm"], nodes_to_exclude=first[:1]
    )
    cases["bert excluded"] = (text_model, text, excluded, minmax(text))
    integer_ops = QuantizationConfig(
        is_static=True, format=QuantFormat.QOperator, mode=QuantizationMode.QLinearOps
    )
    cases["bert integer ops"] = (text_model, text, integer_ops, minmax(text))
    options = {
        "bert avx512 static": {"use_external_data_format": True},
        "resnet avx512 dynamic": {"use_external_data_format": True},
        "bert symmetric": {"fit": {"force_symmetric_range": True}.items()},
        "resnet entropy": {"fit": {"batch_size": 2}.items()},
    }
    without_norms = QuantizationPreprocessor()
    without_norms.register_pass(ExcludeLayerNormNodes())
    options["bert products"] = {"preprocessor": without_norms}
    results = {}
    for name, arguments in cases.items():
        try:
            results[name] = quantize(name, *arguments, **options.get(name, {}))
        except Exception as error:  # noqa: BLE001 - which one it is, is the result
            results[name] = describe_fault(error) | {"said": str(error)}
    (folder / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
