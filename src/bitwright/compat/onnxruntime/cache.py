"""Files of calibrated ranges, as ONNX Runtime's tool reads and writes them.

The classes of what they hold, `TensorData` and `TensorsData`, are the peer's own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bitwright.compat.onnxruntime.enums import CalibrationMethod, as_member
from bitwright.compat.onnxruntime.errors import InvalidDataError
from bitwright.compat.onnxruntime.peer import peer
from bitwright.support.files import make_folder, write_file

_FLOATS = {"avg", "std", "lowest", "highest", "hist_edges"}


def make_tensors_data(method: CalibrationMethod, data: Mapping[str, Any]) -> Any:
    """Return a `TensorsData` of the peer: data of tensors, each given by its fields."""
    calibrate = peer("calibrate")
    return calibrate.TensorsData(
        calibrate.CalibrationMethod[method.name],
        {name: calibrate.TensorData(**fields) for name, fields in data.items()},
    )


class CalibrationCacheEncoder(json.JSONEncoder):
    """Writes calibration data as JSON, arrays with their type."""

    def default(self, o: Any) -> Any:
        """Return a value that JSON knows in place of one that it does not."""
        if hasattr(o, "to_dict"):
            return o.to_dict()
        if isinstance(o, np.ndarray):
            return {"data": o.tolist(), "dtype": str(o.dtype), "CLS": "numpy.array"}
        if type(o).__name__ == "CalibrationMethod":
            return {"CLS": "CalibrationMethod", "value": str(o)}
        if isinstance(o, np.generic):
            return o.item()
        return super().default(o)


def save_tensors_data(tensors_data: Any, path: str | Path, *, smooth_quant: bool = False) -> None:
    """Write calibration data to a JSON file that ONNX Runtime's tool reads, too.

    >>> import tempfile
    >>> ends = {"lowest": np.array(-1, np.float32), "highest": np.array(2, np.float32)}
    >>> found = make_tensors_data(CalibrationMethod.MinMax, {"x": ends})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_tensors_data(found, f"{folder}/cache.json")
    ...     float(load_tensors_data(f"{folder}/cache.json")["x"].highest)
    2.0
    """
    make_folder(Path(path).parent)
    content = {**tensors_data.to_dict(), "smooth_quant": smooth_quant}
    write_file(Path(path), json.dumps(content, cls=CalibrationCacheEncoder))


def load_tensors_data(path: str | Path) -> Any:
    """Read calibration data from a file of `save_tensors_data`, or of ONNX Runtime's tool."""
    file = Path(path)
    if not file.exists():
        raise FileNotFoundError(f"there is no calibration cache {str(file)!r}.")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        name = str(content["calibration_method"]["value"]).rpartition(".")[2]
        method = as_member(CalibrationMethod, name, "calibration method")
        return make_tensors_data(method, {k: _fields(v) for k, v in content["data"].items()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidDataError(f"{str(file)!r} is not a calibration cache ({error}).") from error


def _fields(entry: Mapping[str, Any]) -> dict[str, Any]:
    fields = {}
    for name, value in entry.items():
        if isinstance(value, Mapping) and value.get("CLS") == "numpy.array":
            value = np.array(value["data"], dtype=np.dtype(value["dtype"]))
        elif name in _FLOATS and isinstance(value, int | float):
            value = np.array(value, np.float32)
        if name != "CLS":
            fields[name] = value
    return fields
