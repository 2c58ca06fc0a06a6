"""Ranges of tensors as calibrators return them, and their files, as ONNX Runtime's."""

from __future__ import annotations

import json
from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bitwright.compat.onnxruntime.enums import CalibrationMethod, as_member
from bitwright.compat.onnxruntime.errors import InvalidDataError
from bitwright.errors import DataError, MissingPackageError, did_you_mean
from bitwright.support.files import make_folder, write_file

__all__ = [
    "CalibrationCacheEncoder",
    "TensorData",
    "TensorsData",
    "load_tensors_data",
    "save_tensors_data",
    "write_calibration_table",
]


class TensorData:
    """The range of one tensor, and what else the method found of it.

    >>> data = TensorData(lowest=np.array(-1, np.float32), highest=np.array(2, np.float32))
    >>> [float(end) for end in data.range_value]
    [-1.0, 2.0]
    """

    _allowed = frozenset(["avg", "std", "lowest", "highest", "hist", "hist_edges", "bins"])
    _floats = frozenset(["avg", "std", "lowest", "highest", "hist_edges"])

    def __init__(self, **kwargs: Any) -> None:
        self._attrs = list(kwargs)
        for name, value in kwargs.items():
            if name not in self._allowed:
                raise DataError(
                    f"tensor data has no {name!r}.{did_you_mean(name, sorted(self._allowed))}"
                )
            kind = getattr(value, "dtype", None)
            if name in self._floats and kind not in (np.float16, np.float32):
                raise DataError(f"{name!r} is a float32 or float16 array, not {value!r}.")
            setattr(self, name, value)

    @property
    def range_value(self) -> tuple[Any, Any]:
        """The pair (lowest, highest)."""
        return self._pair("lowest", "highest")

    @property
    def avg_std(self) -> tuple[Any, Any]:
        """The pair (mean, standard deviation)."""
        return self._pair("avg", "std")

    def _pair(self, first: str, second: str) -> tuple[Any, Any]:
        for name in (first, second):
            if not hasattr(self, name):
                raise AttributeError(f"this tensor data has no {name!r}.")
        return getattr(self, first), getattr(self, second)

    def to_dict(self) -> dict[str, Any]:
        """Return everything by name, for JSON."""
        return {**{name: getattr(self, name) for name in self._attrs}, "CLS": "TensorData"}

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> TensorData:
        """Return what `to_dict` was called on, from Python values or from JSON."""
        fields = {}
        for name, value in d.items():
            if name == "CLS":
                continue
            if isinstance(value, Mapping) and value.get("CLS") == "numpy.array":
                value = np.array(value["data"], dtype=np.dtype(value["dtype"]))
            elif name in cls._floats and isinstance(value, int | float):
                value = np.array(value, np.float32)
            fields[name] = value
        return cls(**fields)


class TensorsData:
    """A `TensorData` for each tensor, and the method that gave them. Works like a dict.

    >>> ends = np.array(0, np.float32), np.array(6, np.float32)
    >>> found = TensorsData(CalibrationMethod.MinMax, {"x": ends})
    >>> "x" in found, float(found["x"].highest)
    (True, 6.0)
    """

    _TUPLES: ClassVar[dict[int, tuple[str, ...]]] = {
        2: ("lowest", "highest"),
        4: ("lowest", "highest", "hist", "bins"),
    }

    def __init__(self, calibration_method: Any, data: Mapping[str, Any]) -> None:
        self.calibration_method = calibration_method
        self.data: dict[str, TensorData] = {}
        for name, value in data.items():
            if not isinstance(name, str):
                raise TypeError(f"tensor names are strings, not {name!r}.")
            if isinstance(value, tuple) and len(value) in self._TUPLES:
                value = TensorData(**dict(zip(self._TUPLES[len(value)], value, strict=True)))
            if not isinstance(value, TensorData):
                raise TypeError(f"the data of {name!r} is a TensorData, not {value!r}.")
            self.data[name] = value

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def __contains__(self, key: object) -> bool:
        return key in self.data

    def __getitem__(self, key: str) -> TensorData:
        return self.data[key]

    def __setitem__(self, key: str, value: TensorData) -> None:
        if key not in self.data:
            raise RuntimeError(f"only a tensor that is there can be changed; {key!r} is not.")
        self.data[key] = value

    def __len__(self) -> int:
        return len(self.data)

    def get(self, key: str) -> TensorData | None:
        """Return the data of a tensor, or None."""
        return self.data.get(key)

    def keys(self) -> KeysView[str]:
        """Return the tensor names."""
        return self.data.keys()

    def values(self) -> ValuesView[TensorData]:
        """Return the data of all tensors."""
        return self.data.values()

    def items(self) -> ItemsView[str, TensorData]:
        """Return (name, data) pairs."""
        return self.data.items()

    def to_dict(self) -> dict[str, Any]:
        """Return everything by name, for JSON."""
        return {
            "CLS": "TensorsData",
            "data": self.data,
            "calibration_method": self.calibration_method,
        }

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> TensorsData:
        """Return what `to_dict` was called on, from Python values or from JSON."""
        method = d["calibration_method"]
        if isinstance(method, Mapping):
            name = str(method["value"]).rpartition(".")[2]
            method = as_member(CalibrationMethod, name, "calibration method")
        data = {
            name: value if isinstance(value, TensorData) else TensorData.from_dict(value)
            for name, value in d["data"].items()
        }
        return cls(method, data)


class CalibrationCacheEncoder(json.JSONEncoder):
    """Writes calibration data as JSON, arrays with their type.

    >>> json.dumps(np.array([1], np.int8), cls=CalibrationCacheEncoder)
    '{"data": [1], "dtype": "int8", "CLS": "numpy.array"}'
    """

    def default(self, o: Any) -> Any:
        """Return a value that JSON knows in place of one that it does not."""
        if isinstance(o, TensorData | TensorsData):
            return o.to_dict()
        if isinstance(o, np.ndarray):
            return {"data": o.tolist(), "dtype": str(o.dtype), "CLS": "numpy.array"}
        if isinstance(o, CalibrationMethod):
            return {"CLS": "CalibrationMethod", "value": str(o)}
        if isinstance(o, np.generic):
            return o.item()
        return super().default(o)


def save_tensors_data(
    tensors_data: TensorsData, path: str | Path, *, smooth_quant: bool = False
) -> None:
    """Write calibration data to a JSON file that ONNX Runtime's tool reads, too.

    >>> import tempfile
    >>> ends = np.array(0, np.float32), np.array(6, np.float32)
    >>> found = TensorsData(CalibrationMethod.MinMax, {"x": ends})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_tensors_data(found, f"{folder}/cache.json")
    ...     float(load_tensors_data(f"{folder}/cache.json")["x"].highest)
    6.0
    """
    make_folder(Path(path).parent)
    content = {**tensors_data.to_dict(), "smooth_quant": smooth_quant}
    write_file(Path(path), json.dumps(content, cls=CalibrationCacheEncoder))


def load_tensors_data(path: str | Path) -> TensorsData:
    """Read calibration data from a file of `save_tensors_data`, or of ONNX Runtime's tool."""
    file = Path(path)
    if not file.exists():
        raise FileNotFoundError(f"there is no calibration cache {str(file)!r}.")
    try:
        return TensorsData.from_dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidDataError(f"{str(file)!r} is not a calibration cache ({error}).") from error


def write_calibration_table(calibration_cache: Any, dir: str | Path = ".") -> None:
    """Write calibration.json, calibration.flatbuffers and calibration.cache into a folder.

    The last two hold, for TensorRT, the largest magnitude of each tensor. `calibration_cache` is
    a `TensorsData` or its `data`.

    >>> import tempfile
    >>> ends = np.array(-8, np.float32), np.array(6, np.float32)
    >>> found = TensorsData(CalibrationMethod.MinMax, {"x": ends})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_calibration_table(found, folder)
    ...     (Path(folder) / "calibration.cache").read_text()
    'x 8.0\\n'
    """
    data = getattr(calibration_cache, "data", calibration_cache)
    largest = {
        name: str(max(float(np.max(np.abs(end))) for end in data[name].range_value))
        for name in sorted(data)
    }
    folder = Path(dir)
    table = json.dumps(data, cls=CalibrationCacheEncoder)
    write_file(folder / "calibration.json", table)
    write_file(folder / "calibration.flatbuffers", _trt_table(largest))
    lines = (f"{name} {value}\n" for name, value in largest.items())
    write_file(folder / "calibration.cache", "".join(lines))


def _trt_table(entries: Mapping[str, str]) -> bytes:
    """Return a table of pairs of strings, as the TensorRT provider reads it.

    Its schema: table KeyValue { key: string; value: string; }
    and table TrtTable { dict: [KeyValue]; }.
    """
    try:
        import flatbuffers
    except ImportError as error:
        raise MissingPackageError(
            "writing a TensorRT table needs flatbuffers; run: pip install flatbuffers."
        ) from error
    builder = flatbuffers.Builder(1024)
    pairs = []
    for name, value in entries.items():
        texts = [builder.CreateString(name), builder.CreateString(value)]
        builder.StartObject(2)
        for slot, text in enumerate(texts):
            builder.PrependUOffsetTRelativeSlot(slot, text, 0)
        pairs.append(builder.EndObject())
    builder.StartVector(4, len(pairs), 4)
    for pair in pairs:
        builder.PrependUOffsetTRelative(pair)
    vector = builder.EndVector()
    builder.StartObject(1)
    builder.PrependUOffsetTRelativeSlot(0, vector, 0)
    builder.Finish(builder.EndObject())
    return bytes(builder.Output())
