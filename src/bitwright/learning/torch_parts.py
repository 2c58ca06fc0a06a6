"""Parts of a model run in torch, with the tensors between them on the device that computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from bitwright.errors import DataError, ModelError
from bitwright.graph import inline_copy, opset_of
from bitwright.learning.torch_graph.executor import TorchGraph
from bitwright.learning.torch_graph.movement import as_tensor
from bitwright.run.spool import Rows

_MAX_SHARE = 0.5
"""The share of a GPU's free memory that tensors between parts may take."""


class TorchParts:
    """Opens parts of a model in torch on one device."""

    def __init__(self, device: str) -> None:
        self._device = device

    def make_spool(self) -> DeviceSpool:
        """Return where the tensors between parts are kept."""
        return DeviceSpool(self._device)

    def open(self, part: ir.Model) -> Callable[[Mapping[str, Any]], dict[str, Any]] | None:
        """Return what runs a model on one sample, None where torch has not all of its operators."""
        outputs = [value.name or "" for value in part.graph.outputs]
        constants = {
            name: _as_constant(value.const_value, self._device)
            for name, value in part.graph.initializers.items()
            if value.const_value is not None
        }
        try:
            graph = TorchGraph(
                part.graph, outputs, opset=opset_of(part), device=self._device, constants=constants
            )
        except ModelError:
            return None

        def run(feeds: Mapping[str, Any]) -> dict[str, Any]:
            with torch.no_grad():
                given = {name: _as_fed(value, self._device) for name, value in feeds.items()}
                return dict(graph.run(given))

        return run


class DeviceSpool(Rows):
    """Named rows of tensors, one for each sample, in the memory of a device.

    What would take more than half of it waits in the host's memory.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = device
        self._room = float("inf")
        if device != "cpu":
            self._room = _MAX_SHARE * torch.cuda.mem_get_info(device)[0]

    def append(self, name: str, array: Any) -> None:
        """Add a sample's array to a row."""
        if isinstance(array, np.ndarray) and array.dtype.kind not in "fiubV":
            raise DataError(f"tensor {name!r} holds {array.dtype} values, which cannot be kept.")
        tensor = _as_fed(array, self._device)
        if tensor.device.type != "cpu":
            if tensor.nbytes > self._room:
                tensor = tensor.cpu()
            else:
                self._room -= tensor.nbytes
        self._places.setdefault(name, []).append(tensor)

    def row(self, name: str, index: int) -> Any:
        """Return one sample's tensor, floats on the device."""
        return _as_fed(self._places[name][index], self._device)

    def data_type(self, name: str) -> ir.DataType:
        """Return the element type of a row."""
        return ir.tensor_adapters.from_torch_dtype(self._places[name][0].dtype)

    def drop(self, name: str) -> None:
        """Forget a row."""
        dropped = self._places.pop(name, [])
        self._room += sum(tensor.nbytes for tensor in dropped if tensor.device.type != "cpu")


def _as_fed(value: Any, device: str) -> Tensor:
    """Return a value as a tensor; floats go to the device, integers say shapes and places."""
    if isinstance(value, Tensor):
        return value.to(device) if value.is_floating_point() else value
    return as_tensor(value, device)


def _as_constant(tensor: ir.TensorProtocol, device: str) -> Tensor:
    """Return a constant on the device; one that is made there does not leave it."""
    made = tensor.raw() if isinstance(tensor, ir.LazyTensor) else inline_copy(tensor)
    raw = made.raw
    return _as_fed(raw if isinstance(raw, Tensor) else made.numpy(), device)
