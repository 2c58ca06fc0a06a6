"""Where accuracy is lost: the same tensors of a float and a quantized model, side by side.

The names are those of `onnxruntime.quantization.qdq_loss_debug`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from bitwright import graph
from bitwright.assess import decibels, match_weights, signal_and_noise
from bitwright.compat.onnxruntime.calibrator import CalibraterBase, calibrated_tensors
from bitwright.compat.onnxruntime.onnx_model import ONNXModel
from bitwright.compat.onnxruntime.quant_utils import (
    DEQUANT_OP_NAME,
    DEQUANT_OUTPUT_SUFFIX,
    QUANT_INPUT_SUFFIX,
    TENSOR_NAME_QUANT_SUFFIX,
    find_by_name,
    load_model_with_shape_infer,
)
from bitwright.compat.onnxruntime.readers import CalibrationDataReader
from bitwright.data import open_data, session_inputs
from bitwright.errors import DataError, ModelError
from bitwright.graph.editing import append_node
from bitwright.run import open_session, run_session

__all__ = [
    "DEQUANT_OP_NAME",
    "DEQUANT_OUTPUT_SUFFIX",
    "QUANT_INPUT_SUFFIX",
    "TENSOR_NAME_QUANT_SUFFIX",
    "CalibraterBase",
    "CalibrationDataReader",
    "ONNXModel",
    "collect_activations",
    "compute_activation_error",
    "compute_signal_to_quantization_noice_ratio",
    "compute_weight_error",
    "create_activation_matching",
    "create_weight_matching",
    "find_by_name",
    "load_model_with_shape_infer",
    "modify_model_output_intermediate_tensors",
]

Array = npt.NDArray[Any]
Activations = Mapping[str, Sequence[Array]]

_SAVED = "_ReshapedSavedOutput"


def modify_model_output_intermediate_tensors(
    input_model_path: str | Path,
    output_model_path: str | Path,
    op_types_for_saving: Sequence[str] | None = None,
    save_as_external_data: bool = False,
) -> None:
    """Write a model whose float tensors are outputs, flattened, for `collect_activations`.

    >>> import tempfile, bitwright
    >>> demo = bitwright.load_demo()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = f"{folder}/augmented.onnx"
    ...     modify_model_output_intermediate_tensors(demo.model_path, file, ["Conv"])
    ...     "image" in collect_activations(file, demo.calibration[:1])
    True
    """
    model = graph.load_model(input_model_path)
    graph.infer_shapes(model)
    names = graph.NameScope(model)
    values = dict(graph.iter_values(model))
    length = graph.add_initializer(model.graph, names, "flat_shape", np.array([-1], np.int64))
    for name in calibrated_tensors(model, op_types_for_saving):
        source = values[name]
        output = ir.Value(name=f"{name}{_SAVED}", type=source.type, shape=ir.Shape([None]))
        label = names.fresh(f"{name}{_SAVED}")
        append_node(model.graph, "Reshape", [source, length], output, label)
        model.graph.outputs.append(output)
    external = True if save_as_external_data else None
    graph.check_destination(output_model_path, source=input_model_path)
    graph.save_model(model, output_model_path, external_data=external)


def collect_activations(
    augmented_model: str | Path,
    input_reader: Any,
    session_options: Any = None,
    execution_providers: Sequence[str] | None = None,
) -> dict[str, list[Array]]:
    """Return tensor name -> one flat array for each sample, from an augmented model.

    The model runs without graph optimizations unless `session_options` says otherwise.
    """
    if session_options is None:
        session = open_session(augmented_model, level="disabled", providers=execution_providers)
    else:
        import onnxruntime

        session = onnxruntime.InferenceSession(
            str(augmented_model),
            sess_options=session_options,
            providers=execution_providers or ["CPUExecutionProvider"],
        )
    saved = [o.name for o in session.get_outputs() if o.name.endswith(_SAVED)]
    if not saved:
        raise ModelError(
            f"{str(augmented_model)!r} has no saved tensors; make it with "
            "modify_model_output_intermediate_tensors."
        )
    collected: dict[str, list[Array]] = {name.removesuffix(_SAVED): [] for name in saved}
    for sample in open_data(input_reader, session_inputs(session)):
        for name, array in run_session(session, sample, saved).items():
            collected[name.removesuffix(_SAVED)].append(np.array(array))
    return collected


def create_activation_matching(
    qdq_activations: Activations, float_activations: Activations | None = None
) -> dict[str, dict[str, Sequence[Array]]]:
    """Return tensor name -> its values "pre_qdq" and "post_qdq", and in the "float" model.

    >>> values = [np.zeros(2, np.float32)]
    >>> found = create_activation_matching({"x": values, "x_DequantizeLinear_Output": values})
    >>> sorted(found["x"])
    ['post_qdq', 'pre_qdq']
    """
    matched: dict[str, dict[str, Sequence[Array]]] = {}
    for name, values in qdq_activations.items():
        # The first of the pairs that each have one reader stands for all.
        plain = name.removesuffix("_1") if name.endswith(f"{DEQUANT_OUTPUT_SUFFIX}_1") else name
        if name.endswith(QUANT_INPUT_SUFFIX):
            tensor = name.removesuffix(QUANT_INPUT_SUFFIX)
            before, after = values, qdq_activations.get(tensor)
        elif plain.endswith(DEQUANT_OUTPUT_SUFFIX):
            tensor = plain.removesuffix(DEQUANT_OUTPUT_SUFFIX)
            before, after = qdq_activations.get(tensor), values  # type: ignore[assignment]
        else:
            continue
        if before is not None and after is not None:
            matched[tensor] = {"pre_qdq": before, "post_qdq": after}
    for tensor, found in matched.items():
        if float_activations and tensor in float_activations:
            found["float"] = float_activations[tensor]
    return matched


def create_weight_matching(
    float_model_path: str | Path, qdq_model_path: str | Path
) -> dict[str, dict[str, Array]]:
    """Return weight name -> its values in the "float" model, and "dequantized"."""
    matched = match_weights(
        graph.load_model(float_model_path),
        graph.load_model(qdq_model_path),
        suffix=TENSOR_NAME_QUANT_SUFFIX,
    )
    return {
        name: {"float": weight, "dequantized": restored}
        for name, (weight, restored) in matched.items()
    }


def compute_signal_to_quantization_noice_ratio(
    x: Sequence[Array] | Array, y: Sequence[Array] | Array
) -> float:
    """Return how much stronger x is than x - y, in dB; neither counts as less than 2^-52.

    >>> round(compute_signal_to_quantization_noice_ratio(np.array([10.0]), np.array([9.0])), 6)
    20.0
    """
    one = [x] if isinstance(x, np.ndarray) else list(x)
    other = [y] if isinstance(y, np.ndarray) else list(y)
    if len(one) != len(other):
        raise DataError(f"{len(one)} arrays cannot be compared with {len(other)}.")
    least = float(np.finfo(np.float64).eps) ** 2
    signal, noise = signal_and_noise(one, other)
    return decibels(max(signal, least), max(noise, least))


def compute_weight_error(
    weights_match: Mapping[str, Mapping[str, Array]],
    err_func: Callable[[Any, Any], float] = compute_signal_to_quantization_noice_ratio,
) -> dict[str, float]:
    """Return weight name -> its error, by default the signal-to-noise ratio in dB."""
    return {
        name: err_func(match["float"], match["dequantized"])
        for name, match in weights_match.items()
    }


def compute_activation_error(
    activations_match: Mapping[str, Mapping[str, Sequence[Array]]],
    err_func: Callable[[Any, Any], float] = compute_signal_to_quantization_noice_ratio,
) -> dict[str, dict[str, float]]:
    """Return tensor name -> "qdq_err", which its own pair makes, and "xmodel_err", of it all.

    Without float activations there is no "xmodel_err".
    """
    errors = {}
    for name, match in activations_match.items():
        found = {"qdq_err": err_func(match["pre_qdq"], match["post_qdq"])}
        if match.get("float") is not None:
            found["xmodel_err"] = err_func(match["float"], match["post_qdq"])
        errors[name] = found
    return errors
