"""Models that travel to other processes: of any size, with their tensors wherever they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from bitwright.graph.cloning import BIG_TENSOR_BYTES, clone_model
from bitwright.graph.tensors import external_like, inline_copy, shape_of, tensor_slots

Bytes = npt.NDArray[np.uint8]


class PortableModel:
    """A model that can be pickled; in the process that made it, it is that model itself.

    Tensors travel beside the graph, as arrays: one message cannot have more than 2 GB, and arrays
    are shared by all workers of a machine.
    """

    def __init__(self, model: ir.Model) -> None:
        self.model = model

    def __reduce__(self) -> tuple[Any, ...]:
        clone = clone_model(self.model)
        arrays: list[Bytes] = []
        for slot in tensor_slots(clone):
            tensor = slot.tensor
            if tensor.nbytes <= BIG_TENSOR_BYTES or tensor.dtype == ir.DataType.STRING:
                slot.put(inline_copy(tensor))
                continue
            place = str(len(arrays))
            flat = np.ascontiguousarray(inline_copy(tensor).numpy()).reshape(-1)
            arrays.append(flat.view(np.uint8))
            slot.put(external_like(tensor, place, 0, None))
        # What is known of the model beside its graph, such as where it was read from, is text.
        meta = {key: value for key, value in self.model.meta.items() if isinstance(value, str)}
        return _arrive, (ir.to_proto(clone).SerializeToString(), arrays, meta)


def _arrive(message: bytes, arrays: list[Bytes], meta: dict[str, str]) -> PortableModel:
    model = ir.from_proto(onnx.ModelProto.FromString(message))
    for slot in tensor_slots(model):
        tensor = slot.tensor
        if isinstance(tensor, ir.ExternalTensor):
            shape = shape_of(tensor)
            array = (
                arrays[int(str(tensor.location))].view(tensor.dtype.numpy()).reshape(shape.numpy())
            )
            slot.put(ir.Tensor(array, dtype=tensor.dtype, shape=shape, name=tensor.name))
    model.meta.update(meta)
    return PortableModel(model)


def carry_model(model: Any) -> Any:
    """Return what travels in place of a model; what is no model of ours travels as it is."""
    return PortableModel(model) if isinstance(model, ir.Model) else model


def carried_model(model: Any) -> Any:
    """Return the model that travelled."""
    return model.model if isinstance(model, PortableModel) else model
