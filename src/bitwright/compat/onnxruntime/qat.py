"""`quantize_qat` as ONNX Runtime once had it, on Bitwright's import of trained models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import onnx

from bitwright import graph
from bitwright.api import import_qat
from bitwright.compat.onnxruntime.dynamic import quantize_dynamic
from bitwright.compat.onnxruntime.enums import QuantFormat, QuantType, as_member
from bitwright.compat.onnxruntime.errors import raises_builtins
from bitwright.compat.onnxruntime.options import translate_options
from bitwright.compat.onnxruntime.override_checks import graph_only
from bitwright.compat.onnxruntime.writing import RETIRED
from bitwright.errors import RecipeError
from bitwright.numerics.types import QType
from bitwright.recipe import Recipe, Selection
from bitwright.support.wording import warn_user

_TRAINED_OPS = {"QuantizeLinear", "DequantizeLinear", "FakeQuantize"}

Names = Sequence[str] | None


@raises_builtins(retired=RETIRED)
def quantize_qat(
    model_input: str | Path | onnx.ModelProto,
    model_output: str | Path,
    quant_format: Any = QuantFormat.QDQ,
    op_types_to_quantize: Sequence[str] | None = None,
    per_channel: bool | None = None,
    reduce_range: bool = False,
    activation_type: Any = None,
    weight_type: Any = None,
    nodes_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | None = None,
    use_external_data_format: bool = False,
    extra_options: Mapping[str, Any] | None = None,
) -> None:
    """Write a model that was trained with Q/DQ pairs so that ONNX Runtime fuses it.

    Types, scales and channels are those of the training. `per_channel`, `activation_type` and
    `weight_type` are there for old code and are checked against it: what asks for something else
    than was trained is an error, since a scale cannot be had without training again. So is
    `reduce_range`. Any extra option other than `EnableSubgraph` is ignored with a warning.

    A model without such pairs is quantized dynamically, with a warning, as it was there.

    >>> import tempfile, warnings, bitwright
    >>> from bitwright.compat.onnxruntime import quantize_qat
    >>> with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True):
    ...     quantize_qat(bitwright.load_demo().model_path, f"{folder}/q.onnx")
    ...     bitwright.inspect(f"{folder}/q.onnx").is_quantized
    True
    """
    if not _has_pairs(model_input):
        warn_user(
            "the model has no Q/DQ pairs from training and is quantized dynamically, as releases "
            "of ONNX Runtime with quantize_qat did."
        )
        quantize_dynamic(
            model_input,
            model_output,
            op_types_to_quantize,
            bool(per_channel),
            reduce_range,
            QuantType.QInt8 if weight_type is None else weight_type,
            nodes_to_quantize,
            nodes_to_exclude,
            use_external_data_format,
            extra_options,
        )
        return
    if reduce_range:
        raise RecipeError(
            "reduce_range changes scales, and those of a trained model are kept; leave it out, "
            "or train with reduced ranges."
        )
    member = as_member(QuantFormat, quant_format, "quantization format")
    select = _selection(
        extra_options or {}, op_types_to_quantize, nodes_to_quantize, nodes_to_exclude
    )
    asked = _asked_types(activation_type, weight_type)
    graph.check_destination(model_output, source=model_input)
    written: Literal["qdq", "qoperator"] = "qdq" if member is QuantFormat.QDQ else "qoperator"
    result = import_qat(model_input, format=written, select=select)
    _check_trained(result.plan.recipe, asked, per_channel)
    result.save(model_output, external_data=True if use_external_data_format else None)


def _selection(
    extra_options: Mapping[str, Any], op_types: Names, nodes: Names, exclude: Names
) -> Selection:
    """Return which nodes are asked for; any other option than `EnableSubgraph` is ignored."""
    for key in sorted(extra_options):
        if key != "EnableSubgraph":
            warn_user(
                f"option {key!r} is ignored: it has no meaning for a model whose scales were "
                "trained."
            )
    parts = translate_options(extra_options)
    parts.choose_nodes(op_types, nodes, exclude)
    return Selection(**parts.select)


def _asked_types(activation_type: Any, weight_type: Any) -> dict[str, QType]:
    """Return the types that are asked for, by the role of what has them."""
    given = {"activation": activation_type, "weight": weight_type}
    return {
        role: as_member(QuantType, value, f"{role} type").qtype
        for role, value in given.items()
        if value is not None
    }


def _check_trained(recipe: Recipe, asked: Mapping[str, QType], per_channel: bool | None) -> None:
    """Refuse what asks for something else than was trained."""
    for role, qtype in asked.items():
        if getattr(recipe, role) is not qtype:
            raise RecipeError(
                f"{role}_type is {qtype}, but the model was trained with {getattr(recipe, role)}; "
                "leave it out, or train with that type."
            )
    if per_channel is not None and per_channel is not recipe.per_channel:
        trained = "a scale for each channel" if recipe.per_channel else "one scale for each tensor"
        raise RecipeError(
            f"per_channel is {per_channel}, but the model was trained with {trained}; leave it out."
        )


def _has_pairs(model: str | Path | onnx.ModelProto) -> bool:
    if not isinstance(model, onnx.ModelProto) and not Path(model).is_file():
        return True  # what is missing is said where it is opened
    return any(node.op_type in _TRAINED_OPS for node in graph_only(model).graph.node)
