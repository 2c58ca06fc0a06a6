"""`ModelQuantizer`: quantizes models as a configuration says, also one with layers of its own."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from copy import copy
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import onnx

from bitwright.api import quantize
from bitwright.compat.onnxruntime.override_checks import graph_only
from bitwright.compat.options import refuse_unknown
from bitwright.compat.quark.algorithms import AlgoConfig, AutoMixprecisionConfig
from bitwright.compat.quark.config import Config, QConfig, QuantizationConfig, RefusedPreset
from bitwright.compat.quark.flattening import LEARNING, flatten, step_options
from bitwright.compat.quark.mixing import choose_layers, distance_of
from bitwright.compat.quark.simplify import simplify
from bitwright.compat.vai_q_onnx import static
from bitwright.compat.vai_q_onnx.enums import read_format, read_type
from bitwright.compat.vai_q_onnx.options import read_request
from bitwright.data import Sample, open_data
from bitwright.errors import DataError, RecipeError
from bitwright.graph import check_destination, load_model
from bitwright.jobs.opening import input_specs
from bitwright.numerics.types import BFLOAT16, FLOAT16
from bitwright.recipe import Recipe, Selection
from bitwright.recipe.formats import FORMATS
from bitwright.run import Session

_DYNAMIC = (
    "per_channel reduce_range optimize_model op_types_to_quantize nodes_to_quantize "
    "nodes_to_exclude subgraphs_to_exclude".split()
)
"""The arguments that have a meaning in a dynamic model, beside the weight's type."""


# What Quark converts where nothing is said, but not for the compiler that takes casts.
_CONVERSIONS = (
    *("ConvertSplitToSlice", "ConvertBNToConv", "ConvertReduceMeanToGlobalAvgPool"),
    "SplitLargeKernelPool",
)


class ModelQuantizer:
    """Quantizes models as a configuration of Quark says.

    >>> import bitwright
    >>> from bitwright.compat.quark import ModelQuantizer, QConfig
    >>> demo = bitwright.load_demo()
    >>> quantizer = ModelQuantizer(QConfig.get_default_config("U8S8_AAWS"))
    >>> quantizer.config.print_summary = False
    >>> model = quantizer.quantize_model(
    ...     demo.model_path, calibration_data_reader=demo.calibration[:8]
    ... )
    >>> bitwright.inspect(model).is_quantized
    True
    """

    def __init__(self, config: Config | QConfig) -> None:
        if isinstance(config, RefusedPreset):
            config.arguments()
        if not isinstance(config, Config | QConfig):
            raise RecipeError(
                f"a configuration is a Config or a QConfig, not a {type(config).__name__}; "
                "wrap a QuantizationConfig as Config(global_quant_config=...)."
            )
        self._layered = config if isinstance(config, QConfig) else None
        self.config = (
            config.global_quant_config if isinstance(config, Config) else QuantizationConfig()
        )

    def quantize_model(
        self,
        model_input: str | Path | onnx.ModelProto,
        model_output: str | Path | None = None,
        calibration_data_reader: Any = None,
        calibration_data_path: str | Path | None = None,
    ) -> onnx.ModelProto | None:
        """Quantize a model; it is written to `model_output`, or returned where there is none."""
        config = self.config
        if self._layered is not None:
            layered = self._layered
            steps = layered.algo_config
            step_options(steps)  # refuses those that there are not
            if any(isinstance(step, AutoMixprecisionConfig) and step.searches for step in steps):
                samples = _read(model_input, calibration_data_reader, calibration_data_path)
                calibration_data_reader, calibration_data_path = samples, None
                layered = _without_search(layered, model_input, samples)
            config = flatten(layered, graph_only(model_input))
        quiet = config.ignore_warnings or config.extra_options.get("IgnoreWarnings")
        with warnings.catch_warnings():
            if quiet:
                warnings.simplefilter("ignore")
            return _quantize(
                config, model_input, model_output, calibration_data_reader, calibration_data_path
            )


def _read(model: Any, reader: Any, path: Any) -> list[Sample]:
    """Read the samples once: a search calibrates and compares with them again and again."""
    data = reader if reader is not None else path
    if data is None:
        raise DataError(
            "AutoMixprecisionConfig with a threshold compares outputs on samples; give a "
            "calibration_data_reader or a calibration_data_path."
        )
    return list(open_data(data, input_specs(load_model(model))))


def _without_search(config: QConfig, model: Any, samples: list[Sample]) -> QConfig:
    """Return the configuration with the layers that the search chose in its place."""
    steps = list(config.algo_config)
    [place] = [n for n, s in enumerate(steps) if isinstance(s, AutoMixprecisionConfig)]
    step = steps[place]
    assert isinstance(step, AutoMixprecisionConfig)
    settings = step.settings
    size = settings.get("data_size", 0) or len(samples)
    output = settings.get("metric_output_index", 0)
    distance = distance_of(settings)

    def outputs(of: Any) -> list[list[Any]]:
        session = Session(load_model(of))
        found = [list(session.run(sample).values()) for sample in samples[:size]]
        return [[each[output]] if 0 <= output < len(each) else each for each in found]

    def with_layers(layers: dict[Any, list[str]], others: Sequence[AlgoConfig]) -> QConfig:
        chosen = [step.only(layers)] if layers else []
        changed = copy(config)
        changed.algo_config = [*others[:place], *chosen, *others[place:]]
        return changed

    # What learns comes behind the choice of layers, as there.
    plain = [s for s in steps if s is not step and not isinstance(s, LEARNING)]
    expected = outputs(model)

    def score(layers: dict[Any, list[str]]) -> float:
        flat = replace(flatten(with_layers(layers, plain), graph_only(model)), print_summary=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the model that is kept gives them again
            return distance(expected, outputs(_quantize(flat, model, None, samples, None)))

    nodes = {node.name: node.op_type for node in graph_only(model).graph.node}
    layers = choose_layers(
        score,
        step.choices(nodes),
        threshold=settings.get("metric_threshold", 0),
        optimize=settings.get("metric_optimize_object", "speed"),
    )
    return with_layers(layers, [s for s in steps if s is not step])


def _quantize(
    config: QuantizationConfig, model: Any, output: Any, reader: Any, path: Any
) -> onnx.ModelProto | None:
    if config.use_dynamic_quant:
        return _quantize_dynamic(config, model, output)
    has_data = reader is not None or path is not None
    if _needs_data(config) and not has_data and not config.extra_options.get("UseRandomData"):
        raise DataError(
            "quantize_model needs a calibration_data_reader or a calibration_data_path; set "
            "extra_options['UseRandomData'] to try things out with random data."
        )
    options = {**_pair_options(config, model), **config.extra_options}
    if read_format(config.quant_format)[0] == "extended":
        options.setdefault("FoldRelu", False)
    elif not _is_wide(config):
        options.pop("FoldRelu", None)  # which only that format reads, and types of 16 bits have it
    arguments = replace(config, extra_options=options).arguments()
    if config.optimize_model and not options.get("UseMatMulNBits"):
        if output is not None:
            check_destination(output, source=model)
        given, model = model, simplify(model, options)
        arguments["optimize_model"] = given is model
        options.pop("FoldBatchNorm", None)
    arguments["vendor_names"] = "quark"
    return static.quantize_static(model, output, reader, calibration_data_path=path, **arguments)


def _pair_options(config: QuantizationConfig, model: Any) -> dict[str, Any]:
    """Return where Quark, other than the documented older tool, leaves pairs out or names them."""
    if config.extra_options.get("UseMatMulNBits"):
        return {}
    format, _ = read_format(config.quant_format)
    if FORMATS[format].integer_ops:
        return {}
    weight, options = read_type(config.weight_type, "weight type"), dict[str, Any]()
    if format == "extended" and not config.extra_options.get("BF16QDQToCast"):
        options |= dict.fromkeys(_CONVERSIONS, True)
    # Operators of blocks stand everywhere there, also between Conv and its activation.
    fused = () if weight.shares_exponent else fused_options(config)
    options |= dict.fromkeys(fused, True)
    if weight in (FLOAT16, BFLOAT16):
        options["AddQDQPairToWeight"] = True  # as there: float weights, which their pairs round
    # Standard pairs of 16 bits begin with opset 21; below, the runtime has its own.
    opset = next((o.version for o in graph_only(model).opset_import if o.domain == ""), 1)
    if _is_wide(config) and format == "qdq" and 13 <= opset < 21:
        options["UseQDQContribOps"] = True
    return options


def _is_wide(config: QuantizationConfig) -> bool:
    types = (config.activation_type, config.weight_type)
    return 16 in (read_type(given, "number type").bits for given in types)


def fused_options(config: QuantizationConfig) -> tuple[str, ...]:
    """Return the options of activations that have no pair before them, where nothing is said."""
    symmetric = config.extra_options.get("ActivationSymmetric") or config.enable_npu_cnn
    names = ["Relu", "Clip"]
    stays = config.extra_options.get("FoldRelu") is False and _is_wide(config)
    if not (symmetric or stays) and read_format(config.quant_format)[0] == "qdq":
        # Asymmetric quantizers do what those do that are quantized.
        types = config.op_types_to_quantize
        names = [name for name in names if types and name not in types]
    return tuple(f"RemoveQDQConv{name}" for name in (*names, "LeakyRelu", "PRelu"))


def quantize_static(
    model_input: str | Path | onnx.ModelProto,
    model_output: str | Path | None = None,
    calibration_data_reader: Any = None,
    calibration_data_path: str | Path | None = None,
    **settings: Any,
) -> onnx.ModelProto | None:
    """Quantize a model with the arguments of a `QuantizationConfig`, and Quark's defaults.

    >>> import bitwright
    >>> from bitwright.compat import quark
    >>> demo = bitwright.load_demo()
    >>> model = quark.quantize_static(
    ...     demo.model_path,
    ...     calibration_data_reader=demo.calibration[:8],
    ...     calibrate_method=quark.PowerOfTwoMethod.MinMSE,
    ...     print_summary=False,
    ... )
    >>> bitwright.inspect(model).is_quantized
    True
    """
    quantizer = ModelQuantizer(Config(_settings(settings)))
    return quantizer.quantize_model(
        model_input, model_output, calibration_data_reader, calibration_data_path
    )


def quantize_dynamic(
    model_input: str | Path | onnx.ModelProto,
    model_output: str | Path | None = None,
    **settings: Any,
) -> onnx.ModelProto | None:
    """Store weights as integers and quantize activations while the model runs.

    >>> import bitwright
    >>> from bitwright.compat import quark
    >>> model = quark.quantize_dynamic(bitwright.load_demo().model_path, print_summary=False)
    >>> bitwright.inspect(model).is_quantized
    True
    """
    config = _settings({**settings, "use_dynamic_quant": True})
    return ModelQuantizer(Config(config)).quantize_model(model_input, model_output)


def _settings(given: dict[str, Any]) -> QuantizationConfig:
    refuse_unknown(given, [field.name for field in fields(QuantizationConfig)], " of quantization")
    return QuantizationConfig(**given)


def _needs_data(config: QuantizationConfig) -> bool:
    if config.extra_options.get("UseMatMulNBits"):  # of which only GPTQ looks at data
        return (config.extra_options.get("MatMulNBitsParams") or {}).get("Algorithm") == "GPTQ"
    return read_type(config.activation_type, "activation type").needs_range


def _quantize_dynamic(
    config: QuantizationConfig, model: str | Path | onnx.ModelProto, output: str | Path | None
) -> onnx.ModelProto | None:
    """Store weights as integers; what is about activations has no meaning here."""
    if config.extra_options:
        raise RecipeError(
            f"option {next(iter(config.extra_options))!r} has no effect in a dynamic model; "
            "leave it out."
        )
    parts = read_request({name: getattr(config, name) for name in _DYNAMIC}, None)
    weight = read_type(config.weight_type, "weight type")
    select = Selection(**parts.select)
    result = quantize(
        model,
        output,
        recipe=Recipe(
            name="quark-dynamic",
            mode="dynamic",
            dynamic_scale="tensor",
            weight=weight,
            select=select,
            **parts.recipe,
        ),
        force_dynamic=True,
        external_data=True if config.use_external_data_format else None,
        providers=config.execution_providers,
    )
    if config.print_summary:
        print(result)
    return result.to_proto() if output is None else None
