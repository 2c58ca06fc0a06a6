"""`python -m bitwright.compat.onnxruntime.static_quantize_runner`, with ONNX Runtime's flags.

Calibration data lies beside the model, as the test data of the ONNX model zoo does: folders
`test_data_set_*`, each with `input_0.pb`, `input_1.pb` and so on.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from bitwright import graph
from bitwright.compat.onnxruntime.enums import CalibrationMethod, QuantFormat, QuantType
from bitwright.compat.onnxruntime.errors import InvalidSettingError, raises_builtins
from bitwright.compat.onnxruntime.options import OPTIONS
from bitwright.compat.onnxruntime.peer import peer
from bitwright.compat.onnxruntime.quantize import StaticQuantConfig, quantize
from bitwright.compat.onnxruntime.readers import CalibrationDataReader
from bitwright.errors import BitwrightError, DataError
from bitwright.support.array_types import Array

_COMMAND = "python -m bitwright.compat.onnxruntime.static_quantize_runner"
_TYPES = {kind.name.lower(): kind for kind in QuantType}
_METHODS = {method.name.lower(): method for method in CalibrationMethod}
_FORMATS = {"qdq": QuantFormat.QDQ, "qoperator": QuantFormat.QOperator}


class OnnxModelCalibrationDataReader(CalibrationDataReader):
    """Samples from the folders `test_data_set_*` beside a model, one each, by number."""

    def __init__(self, model_path: str | Path) -> None:
        model = Path(model_path)
        self.model_dir = str(model.parent)
        loaded = graph.load_model(model)
        constants = loaded.graph.initializers
        names = [value.name or "" for value in loaded.graph.inputs if value.name not in constants]
        folders = sorted(filter(Path.is_dir, model.parent.glob("test_data_set_*")), key=_number)
        if not folders:
            raise DataError(
                f"there is no folder 'test_data_set_...' beside {str(model)!r}; put samples there, "
                "each a folder with input_0.pb, input_1.pb and so on."
            )
        samples = [
            {name: self.read_onnx_pb_data(folder / f"input_{i}.pb") for i, name in enumerate(names)}
            for folder in folders
        ]
        self.calibration_data: Iterator[dict[str, Any]] = iter(samples)

    def get_next(self) -> dict[str, Any] | None:
        """Return the inputs of the next sample, or None at the end."""
        return next(self.calibration_data, None)

    def read_onnx_pb_data(self, file_pb: str | Path) -> Array:
        """Return the array in a file that holds a serialized `TensorProto`."""
        path = Path(file_pb)
        try:
            return onnx.numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes()))
        except FileNotFoundError as error:
            raise DataError(
                f"there is no {path.name!r} in {str(path.parent)!r}; a sample has a file for each "
                "input of the model."
            ) from error
        except Exception as error:
            raise DataError(f"{str(path)!r} is not a serialized TensorProto ({error}).") from error


def _number(folder: Path) -> tuple[int, str]:
    digits = folder.name.rpartition("_")[2]
    return (int(digits) if digits.isdigit() else sys.maxsize, folder.name)


def get_tensor_quant_overrides(file: str | Path | None) -> dict[str, list[dict[str, Any]]]:
    """Return the overrides in a JSON file, with scale and zero point as arrays.

    Each entry has both. Types may be given by name: {"x": [{"scale": 0.1, "zero_point": 3,
    "quant_type": "QUInt8"}]}. Without a file nothing is overridden.
    """
    if not file:
        return {}
    try:
        overrides = json.loads(Path(file).read_text(encoding="utf-8"))
        entries = [entry for many in overrides.values() for entry in many]
        for entry in entries:
            entry["scale"] = np.array(entry["scale"], np.float32)
            entry["zero_point"] = np.array(entry["zero_point"])
    except KeyError as error:
        raise InvalidSettingError(
            f"an entry in {str(file)!r} has no {error}; each needs 'scale' and 'zero_point'."
        ) from error
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise InvalidSettingError(
            f"{str(file)!r} is not a JSON file of overrides ({error})."
        ) from error
    for entry in entries:
        if "quant_type" in entry:
            entry["quant_type"] = QuantType.from_string(entry["quant_type"])
    return dict(overrides)


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the flags of a command line, by default of this process, as the peer reads them.

    An axis is a number here; the peer leaves it a text, and fails.
    """
    before = sys.argv
    sys.argv = [_COMMAND, *(before[1:] if arguments is None else arguments)]
    try:
        options: argparse.Namespace = peer("static_quantize_runner").parse_arguments()
    finally:
        sys.argv = before
    axes = options.op_per_channel_axis
    for op_type, axis in axes:
        if not axis.lstrip("-").isdigit():
            sys.stderr.write(f"error: {axis!r} is no axis of {op_type}; give a number\n")
            raise SystemExit(2)
    options.op_per_channel_axis = [[op_type, int(axis)] for op_type, axis in axes]
    return options


@raises_builtins()
def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; faults other than in flags are exceptions, as there."""
    options = parse_arguments(arguments)
    quantize(options.input_model_path, options.output_quantized_model_path, _config(options))


def _config(options: argparse.Namespace) -> StaticQuantConfig:
    flags = {name.replace("_", ""): value for name, value in vars(options).items()}
    extra_options = {name: flags[name.lower()] for name in OPTIONS if name.lower() in flags}
    return StaticQuantConfig(
        OnnxModelCalibrationDataReader(options.input_model_path),
        calibrate_method=_METHODS[options.calibration_method],
        quant_format=_FORMATS[options.quant_format],
        activation_type=_TYPES[options.activation_type],
        weight_type=_TYPES[options.weight_type],
        nodes_to_quantize=options.nodes_to_quantize,
        nodes_to_exclude=options.nodes_to_exclude,
        per_channel=options.per_channel,
        extra_options={
            **extra_options,
            "QuantizeBias": not options.disable_quantize_bias,
            "QDQOpTypePerChannelSupportToAxis": dict(options.op_per_channel_axis),
            "TensorQuantOverrides": get_tensor_quant_overrides(options.tensor_quant_overrides),
        },
    )


if __name__ == "__main__":
    try:
        main()
    except BitwrightError as error:
        raise SystemExit(f"error: {error}") from error  # printed, with status 1
