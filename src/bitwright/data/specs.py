"""Specifications of a model's inputs, the check of samples against them, stacks of samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from bitwright.errors import DataError, ModelError, did_you_mean
from bitwright.support.array_types import Array

__all__ = [
    "Array",
    "InputSpec",
    "Sample",
    "as_array",
    "check_sample",
    "session_inputs",
    "split_stack",
]

Sample: TypeAlias = dict[str, Array]

# The names ONNX Runtime gives to element types. Strings travel as object arrays.
_ELEMENT_TYPES: dict[str, type[Any]] = {
    "float": np.float32,
    "double": np.float64,
    "float16": np.float16,
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
    "uint8": np.uint8,
    "uint16": np.uint16,
    "uint32": np.uint32,
    "uint64": np.uint64,
    "bool": np.bool_,
    "string": np.object_,
}


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One model input: its name, its number type and its shape.

    A dimension is a number, a symbol (free, but the same everywhere in one sample) or None
    (free). A shape of None means that even the rank is unknown.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | str | None, ...] | None

    def __post_init__(self) -> None:
        # Exporters write 0 or -1 for "any size"; ONNX has no such convention, so it ends here.
        if self.shape is not None:
            dims = (None if isinstance(dim, int) and dim <= 0 else dim for dim in self.shape)
            object.__setattr__(self, "shape", tuple(dims))
        object.__setattr__(self, "dtype", np.dtype(self.dtype))

    def __str__(self) -> str:
        return f"{self.name!r} {self.dtype}{show_shape(self.shape)}"


def show_shape(shape: Sequence[int | str | None] | None) -> str:
    """Write a shape the way the error messages do."""
    if shape is None:
        return "[…]"
    return "[" + ",".join("?" if dim is None else str(dim) for dim in shape) + "]"


def session_inputs(session: Any) -> tuple[InputSpec, ...]:
    """Read the input specifications of an ONNX Runtime session, in the model's order.

    Initializers that are also listed as inputs have a value already and are not among them.
    """
    return tuple(
        InputSpec(
            node.name,
            _element_dtype(node.name, node.type),
            None if node.shape is None else tuple(node.shape),
        )
        for node in session.get_inputs()
    )


def _element_dtype(name: str, type_text: str) -> np.dtype[Any]:
    element = type_text.removeprefix("tensor(").removesuffix(")")
    if element == "bfloat16":
        import ml_dtypes

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    if not type_text.startswith("tensor(") or element not in _ELEMENT_TYPES:
        raise ModelError(
            f"the model's input {name!r} has type {type_text}, which cannot be fed from data; "
            "only dense tensor inputs of number, bool or string type can be calibrated."
        )
    return np.dtype(_ELEMENT_TYPES[element])


def as_array(value: Any) -> Array:
    """Turn what a user may hand over into an array: numpy, torch tensor, OrtValue, nested list.

    Torch is never imported for this; a tensor is known by its `detach` method.
    """
    if isinstance(value, np.ndarray):
        return value
    if callable(getattr(value, "detach", None)):
        tensor = value.detach().cpu()
        try:
            array = tensor.numpy()
        except TypeError:
            # numpy has no bfloat16 of its own; float32 holds every bfloat16 exactly.
            array = tensor.float().numpy()
    elif callable(getattr(value, "numpy", None)):
        array = value.numpy()
    else:
        array = np.asarray(value)
    result: Array = np.asarray(array)
    return result


def check_sample(
    sample: Mapping[str, Any], specs: Sequence[InputSpec], index: int, *, origin: str | None = None
) -> Sample:
    """Give the sample as arrays of exactly the model's types, or say in one sentence what is wrong.

    Names must match, types must be of the same kind (float64 becomes float32, int32 becomes
    int64; a float never becomes an integer nor the other way round), shapes must fit, a symbolic
    dimension must have one size within the sample, and floats must be finite. `origin` names the
    file that the sample came from, for the message.
    """
    where = f"sample {index}" if origin is None else f"sample {index} ({origin})"
    if not isinstance(sample, Mapping):
        raise DataError(
            f"{where} is a {type(sample).__name__}; give a dict that maps input names to arrays."
        )
    names = [spec.name for spec in specs]
    for name in sample:
        if name not in names:
            raise DataError(
                f"{where} names {name!r}, which is no input of the model."
                f"{did_you_mean(str(name), names)}"
            )
    for name in names:
        if name not in sample:
            given = ", ".join(map(repr, sample)) or "nothing"
            raise DataError(
                f"{where} has no value for the model's input {name!r} (it gives {given}); "
                "every sample needs one array for each input."
            )
    symbols: dict[str, tuple[int, str]] = {}
    checked: Sample = {}
    for spec in specs:
        array = _convert(sample[spec.name], spec, where)
        _check_shape(array.shape, spec, where, symbols)
        _check_finite(array, spec, where)
        checked[spec.name] = array
    return checked


def _convert(value: Any, spec: InputSpec, where: str) -> Array:
    try:
        array = as_array(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(
            f"{where}: the value for input {spec.name!r} cannot be read as an array ({error}); "
            f"give a numpy array {spec.dtype}{show_shape(spec.shape)}."
        ) from error
    if array.dtype == spec.dtype:
        # `order` instead of ascontiguousarray, which would turn a scalar into one dimension.
        return np.asarray(array, order="C")
    kind, wanted = _kind(array.dtype), _kind(spec.dtype)
    if kind != wanted:
        raise DataError(
            f"{where}: input {spec.name!r} takes {spec.dtype}, but the data is {array.dtype}; "
            f"convert it yourself, for example with "
            f".astype(np.{_astype_name(spec.dtype)}), after checking that its values mean the same."
        )
    with np.errstate(over="ignore"):
        converted = array.astype(spec.dtype, order="C")
    if wanted == "integer" and not np.array_equal(converted, array):
        raise DataError(
            f"{where}: input {spec.name!r} takes {spec.dtype}, but some {array.dtype} values "
            f"do not fit (they lie in {array.min()}..{array.max()}); correct the data."
        )
    if wanted == "float":
        lost = int(np.count_nonzero(np.isfinite(array) & ~np.isfinite(converted)))
        if lost:
            raise DataError(
                f"{where}: {lost} values of input {spec.name!r} are too large for {spec.dtype}; "
                "correct or rescale the data."
            )
    return converted


def _kind(dtype: np.dtype[Any]) -> str:
    if dtype.kind in "iu":
        return "integer"
    if dtype.kind == "f" or dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        return "float"
    if dtype.kind in "OUT":
        return "string"
    return dtype.name


def _astype_name(dtype: np.dtype[Any]) -> str:
    return "bool_" if dtype.kind == "b" else "object_" if dtype.kind == "O" else dtype.name


def _check_shape(
    shape: tuple[int, ...], spec: InputSpec, where: str, symbols: dict[str, tuple[int, str]]
) -> None:
    if spec.shape is None:
        return
    wanted = f"input {spec.name!r} takes shape {show_shape(spec.shape)}"
    given = show_shape(shape)
    if len(shape) != len(spec.shape):
        takes_one = spec.shape and (spec.shape[0] == 1 or not isinstance(spec.shape[0], int))
        if takes_one and len(shape) == len(spec.shape) - 1:
            remedy = "add the batch dimension with array[np.newaxis]"
        else:
            remedy = f"reshape it to {len(spec.shape)} dimensions"
        raise DataError(f"{where}: {wanted}, but the data has shape {given}; {remedy}.")
    if not _fits(shape, spec.shape) and len(shape) == 4:
        for order, said in (((0, 3, 1, 2), "NHWC"), ((0, 2, 3, 1), "NCHW")):
            if _fits([shape[axis] for axis in order], spec.shape):
                raise DataError(
                    f"{where}: {wanted}, but the data has shape {given}, which looks like {said}; "
                    f"transpose it with array.transpose{order}."
                )
    for axis, (size, dim) in enumerate(zip(shape, spec.shape, strict=True)):
        if isinstance(dim, int) and size != dim:
            raise DataError(
                f"{where}: {wanted}, but the data has shape {given}; "
                f"make dimension {axis} {dim} instead of {size}."
            )
        # ONNX's version converter calls every open dimension "?": no two of them need be equal.
        if isinstance(dim, str) and dim != "?":
            first, owner = symbols.setdefault(dim, (size, spec.name))
            if first != size:
                raise DataError(
                    f"{where}: dimension {dim!r} is {first} in input {owner!r} and {size} in "
                    f"input {spec.name!r}; give both the same size."
                )


def _fits(shape: Sequence[int], wanted: Sequence[int | str | None]) -> bool:
    return all(
        size == dim or not isinstance(dim, int) for size, dim in zip(shape, wanted, strict=True)
    )


def _check_finite(array: Array, spec: InputSpec, where: str) -> None:
    if _kind(spec.dtype) != "float":
        return
    finite = np.isfinite(array)
    if not finite.all():
        bad = int(array.size - np.count_nonzero(finite))
        raise DataError(
            f"{where}: input {spec.name!r} holds {bad} NaN or infinite values of {array.size}; "
            "leave the sample out or repair what produces it."
        )


def split_stack(
    arrays: Mapping[str, Array], specs: Sequence[InputSpec], *, origin: str, lone: bool
) -> tuple[int, Iterator[Sample]]:
    """Count the samples in a set of arrays, and give them one after the other.

    The rule, for each input of rank r:

    1. an array of rank r + 1 is a stack: its first dimension counts the samples;
    2. an array of rank r whose first dimension is a multiple of the model's fixed batch size is
       cut into batches of that size;
    3. where the model leaves the batch size open, an array that is all there is (`lone`: one file,
       or one array in memory) is cut into batches of one; one file among many is one sample.

    Inputs must agree in the number of samples; an input with only one is used for every sample.
    """
    by_name = {spec.name: spec for spec in specs}
    steps = {
        name: _samples_and_step(array, by_name[name], lone)
        for name, array in arrays.items()
        if name in by_name
    }
    counts = {name: count for name, (count, _) in steps.items() if count != 1}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name!r} {count}" for name, count in counts.items())
        raise DataError(
            f"the inputs in {origin} hold different numbers of samples ({listed}); "
            "give every input the same number."
        )
    total = next(iter(counts.values()), 1)

    def samples() -> Iterator[Sample]:
        for position in range(total):
            yield {
                name: _cut(array, steps.get(name, (1, None)), position)
                for name, array in arrays.items()
            }

    return total, samples()


def _samples_and_step(array: Array, spec: InputSpec, lone: bool) -> tuple[int, int | None]:
    """Return how many samples the array holds, and how many rows each has.

    A step of 0 takes one row and drops the dimension; None takes the array whole.
    """
    if spec.shape is None or array.ndim == 0:
        return 1, None
    rank, rows = len(spec.shape), array.shape[0]
    if array.ndim == rank + 1:
        return rows, 0
    if array.ndim != rank:
        return 1, None
    batch = spec.shape[0]
    if isinstance(batch, int):
        return (rows // batch, batch) if rows % batch == 0 else (1, None)
    return (rows, 1) if lone else (1, None)


def _cut(array: Array, step: tuple[int, int | None], position: int) -> Array:
    count, rows = step
    at = position if count != 1 else 0
    if rows is None:
        return array
    if rows == 0:
        piece: Array = array[at]
        return piece
    return array[at * rows : (at + 1) * rows]
