"""The few array operations that heavy algorithms need, on numpy or on torch (CPU or GPU).

An algorithm takes one of these as `xp`, brings its inputs over with `xp.array`, works with
operators (`@`, `+`, slices) and the methods here, and gives numpy back with `xp.numpy`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

from bitwright.errors import MissingPackageError, RecipeError, did_you_mean
from bitwright.support.array_types import Array

Float = Literal["float16", "bfloat16", "float32", "float64"]


# Elements that are worked on at once: a few arrays of this size fit a cache of 2 MiB, and numpy's
# calls take less than a tenth of the time (in pieces of a quarter, a third).
_CHUNK = 1 << 18


class Arrays:
    """Operations on numpy arrays; a class below has the same ones for torch."""

    name = "numpy"
    device = "cpu"
    chunk = _CHUNK

    def __init__(self, module: Any = np) -> None:
        # These have the same name and meaning in both.
        self.abs: Any = module.abs
        self.sqrt: Any = module.sqrt
        self.sign: Any = module.sign
        self.where: Any = module.where
        self.maximum: Any = module.maximum
        self.minimum: Any = module.minimum
        self.isfinite: Any = module.isfinite
        self.matmul: Any = module.matmul
        self.einsum: Any = module.einsum
        self.concatenate: Any = module.concatenate
        self.amax: Any = module.amax
        self.amin: Any = module.amin
        self.rint: Any = module.round  # ties to even
        self.solve: Any = module.linalg.solve

    def __reduce__(self) -> str | tuple[Any, ...]:
        # In another process it is that process's own, so that `xp is NUMPY` holds there.
        return "NUMPY" if type(self) is Arrays else super().__reduce__()

    def array(self, values: Any, dtype: Float = "float32") -> Any:
        """Return the values as an array of floats; without a copy where they are that already."""
        return np.asarray(values).astype(_NUMPY_FLOATS[dtype], copy=False)

    def indices(self, values: Any) -> Any:
        """Return the values as an array that can index others."""
        return np.asarray(values, np.int64)

    def numpy(self, values: Any) -> Array:
        """Return the values as a numpy array."""
        return np.asarray(values)

    def empty(self, *shape: int) -> Any:
        """Return an array of float32 without values."""
        return np.empty(shape, np.float32)

    def zeros(self, *shape: int, dtype: Float = "float32") -> Any:
        """Return an array of zeros."""
        return np.zeros(shape, _NUMPY_FLOATS[dtype])

    def copy(self, values: Any) -> Any:
        """Return a copy of its own."""
        return np.array(values)

    def bytes(self, values: npt.NDArray[np.uint8]) -> Any:
        """Return bytes of numpy as an array, without a copy where they are that already."""
        return values

    def codes(self, values: Any) -> Any:
        """Return whole numbers from 0 to 255 as bytes."""
        return np.asarray(values).astype(np.uint8)

    def empty_codes(self, *shape: int) -> Any:
        """Return an array of bytes without values."""
        return np.empty(shape, np.uint8)

    def transposed(self, values: Any) -> Any:
        """Return a matrix transposed, its rows one after the other in memory."""
        return np.ascontiguousarray(values.T)

    def captured(self, name: Hashable, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of arrays that a GPU can start as one piece of work.

        It takes arrays only, may overwrite them, and neither looks at their values nor keeps any.
        What it returns holds until the next call. Functions of one name do the same.
        """
        return function

    def clip_(self, values: Any, low: Any, high: Any) -> Any:
        """Limit the values in place, by numbers or by arrays."""
        # np.clip takes longer, three times as long with arrays as bounds.
        np.maximum(values, low, out=values)
        return np.minimum(values, high, out=values)

    def rint_(self, values: Any) -> Any:
        """Round in place, ties to even."""
        return np.rint(values, out=values)

    def flip(self, values: Any) -> Any:
        """Return a matrix with rows and columns in the opposite order."""
        return values[::-1, ::-1]

    def descending(self, values: Any) -> Any:
        """Return the places of a vector's values from the largest down; ties in their order."""
        return np.argsort(-values, kind="stable")

    def cholesky(self, matrix: Any) -> Any:
        """Return the lower factor, or None if the matrix is not positive definite."""
        try:
            return np.linalg.cholesky(matrix)
        except np.linalg.LinAlgError:
            return None

    def rounded(self, values: Any, dtype: Float) -> Any:
        """Return float32 values as they are once stored in another float type."""
        if dtype in ("float32", "float64"):
            return values
        return values.astype(_NUMPY_FLOATS[dtype]).astype(np.float32)


class _TorchArrays(Arrays):
    """The same on torch tensors; torch is imported when one of these is made."""

    name = "torch"

    def __init__(self, device: str = "cpu") -> None:
        try:
            import torch
        except ImportError as error:
            raise MissingPackageError(
                "torch is not installed; install bitwright[torch], or compute on numpy."
            ) from error
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise MissingPackageError("torch finds no CUDA device here; compute on the CPU.")
        super().__init__(torch)
        self._torch = torch
        self.device = device
        self._captured: dict[Hashable, Callable[..., Any]] = {}
        # A GPU has no cache worth tiling for; fewer, larger launches are what counts.
        self.chunk = _CHUNK if device == "cpu" else 1 << 26

    def array(self, values: Any, dtype: Float = "float32") -> Any:
        torch = self._torch
        if isinstance(values, torch.Tensor):
            return values.to(self.device, getattr(torch, dtype))
        array = np.asarray(values)
        if array.dtype == ml_dtypes.bfloat16:  # torch does not know numpy's stand-in
            array = array.astype(np.float32)
        if self.device != "cpu" and array.flags.c_contiguous:
            # As it is over the bus, and widened there. Torch warns of what it must not write to.
            own = array if array.flags.writeable else array.copy()
            return torch.from_numpy(own).to(self.device).to(getattr(torch, dtype))
        if self.device != "cpu" and array.ndim == 2 and array.T.flags.c_contiguous:
            return self.array(array.T, dtype).T.contiguous()  # turned there
        return torch.tensor(array, dtype=getattr(torch, dtype), device=self.device)

    def indices(self, values: Any) -> Any:
        return self._torch.as_tensor(values, dtype=self._torch.int64, device=self.device)

    def numpy(self, values: Any) -> Array:
        return np.asarray(values.cpu().numpy())

    def empty(self, *shape: int) -> Any:
        return self._torch.empty(shape, dtype=self._torch.float32, device=self.device)

    def zeros(self, *shape: int, dtype: Float = "float32") -> Any:
        return self._torch.zeros(shape, dtype=getattr(self._torch, dtype), device=self.device)

    def copy(self, values: Any) -> Any:
        return values.clone()

    def bytes(self, values: npt.NDArray[np.uint8]) -> Any:
        own = values if values.flags.writeable else values.copy()
        return self._torch.from_numpy(own).to(self.device)

    def codes(self, values: Any) -> Any:
        return values.to(self._torch.uint8)

    def transposed(self, values: Any) -> Any:
        return values.T.contiguous()

    def empty_codes(self, *shape: int) -> Any:
        return self._torch.empty(shape, dtype=self._torch.uint8, device=self.device)

    def captured(self, name: Hashable, function: Callable[..., Any]) -> Callable[..., Any]:
        if self.device == "cpu":
            return function
        if name not in self._captured:
            self._captured[name] = _CapturedOnGPU(self._torch, self.device, function)
        return self._captured[name]

    def clip_(self, values: Any, low: Any, high: Any) -> Any:
        return values.clamp_(low, high)

    def rint_(self, values: Any) -> Any:
        return values.round_()

    def flip(self, values: Any) -> Any:
        return values.flip(0, 1)

    def descending(self, values: Any) -> Any:
        return self._torch.argsort(values, descending=True, stable=True)

    def cholesky(self, matrix: Any) -> Any:
        factor, failed = self._torch.linalg.cholesky_ex(matrix)
        return None if int(failed) else factor

    def rounded(self, values: Any, dtype: Float) -> Any:
        if dtype in ("float32", "float64"):
            return values
        return values.to(getattr(self._torch, dtype)).to(self._torch.float32)


class _CapturedOnGPU:
    """A function as one CUDA graph for each shape of its arrays: a thousand launches become one."""

    def __init__(self, torch: Any, device: str, function: Callable[..., Any]) -> None:
        self._torch, self._device, self._function = torch, device, function
        self._graphs: dict[Any, tuple[Any, list[Any], Any]] = {}

    def __call__(self, *arrays: Any) -> Any:
        key = tuple((tuple(array.shape), array.dtype) for array in arrays)
        with self._torch.cuda.device(self._device):
            if key not in self._graphs:
                self._graphs[key] = self._capture(arrays)
            graph, inputs, results = self._graphs[key]
            for own, given in zip(inputs, arrays, strict=True):
                own.copy_(given)
            graph.replay()
        return results

    def _capture(self, arrays: Sequence[Any]) -> tuple[Any, list[Any], Any]:
        cuda = self._torch.cuda
        inputs = [array.clone() for array in arrays]
        # Once beforehand, beside the main stream: libraries allocate when they are first used,
        # which they may not in a graph.
        beside = cuda.Stream()
        beside.wait_stream(cuda.current_stream())
        with cuda.stream(beside):
            self._function(*(array.clone() for array in inputs))
        cuda.current_stream().wait_stream(beside)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            results = self._function(*inputs)
        return graph, inputs, results


NUMPY = Arrays()

_NUMPY_FLOATS: dict[str, Any] = {
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float32": np.float32,
    "float64": np.float64,
}


def float_type(name: Float) -> Any:
    """Return numpy's type of this name."""
    return _NUMPY_FLOATS[name]


def arrays_on(name: str) -> Arrays:
    """Return the operations for "numpy", "torch" (its CPU), "cuda" or "cuda:1"."""
    if name == "numpy":
        return NUMPY
    if name == "torch":
        return _TorchArrays("cpu")
    if name == "cuda" or name.startswith("cuda:"):
        return _TorchArrays(name)
    raise RecipeError(f"nothing computes on {name!r}.{did_you_mean(name, ('cpu', 'cuda'))}")
