"""Values of inner tensors through ONNX Runtime, in groups that fit in memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime as ort

from bitwright.errors import DataError, ModelError, did_you_mean
from bitwright.observe.observer import Feeds

__all__ = ["SessionRunner"]


class SessionRunner:
    """Runs a model so that the named tensors come out.

    The session is fully optimized: only the observed tensors are outputs, so that what is fused
    between them stays fused. When the tensors of one sample need more than `group_bytes`, they
    are cut into groups with a session each.
    """

    def __init__(self, model: Any, tensors: Sequence[str], *, group_bytes: int) -> None:
        self._model = _as_ir(model)
        self._group_bytes = group_bytes
        graph = self._model.graph
        inputs = {value.name for value in graph.inputs if value.name}
        known = {value.name for node in graph for value in node.outputs if value.name}
        for name in tensors:
            if name not in known | inputs:
                raise ModelError(
                    f"the model computes no tensor {name!r}.{did_you_mean(name, known | inputs)}"
                )
        # What is fed needs no run: it is observed as it comes.
        self._fed = tuple(name for name in tensors if name in inputs)
        self._computed = tuple(name for name in tensors if name not in inputs)
        self._largest = -1
        self._groups: list[tuple[str, ...]] = []
        self._sessions: dict[tuple[str, ...], ort.InferenceSession] = {}

    def groups(self, feeds: Feeds) -> Sequence[tuple[str, ...]]:
        """Return the groups for this sample; a sample larger than those before cuts anew."""
        fed = sum(array.nbytes for array in feeds.values())
        if fed > self._largest:
            self._largest = fed
            groups = self._cut(feeds)
            if groups != self._groups:
                self._groups = groups
                self._sessions = {g: s for g, s in self._sessions.items() if g in groups}
        return self._groups

    def run(self, group: tuple[str, ...], feeds: Feeds) -> Mapping[str, npt.NDArray[Any]]:
        """Return the tensors of one group."""
        values = {name: np.asarray(feeds[name]) for name in group if name in self._fed}
        wanted = [name for name in group if name not in values]
        if not wanted:
            return values
        session = self._sessions.get(group)
        if session is None:
            session = self._sessions[group] = _open(_exposed(self._model, wanted))
        values.update(_run(session, wanted, feeds))
        return values

    def _cut(self, feeds: Feeds) -> list[tuple[str, ...]]:
        if not self._computed:
            return [self._fed]
        sizes = self._sizes(feeds)
        groups: list[list[str]] = [list(self._fed)]
        filled = 0
        for name in self._computed:  # in order: neighbours share the work that leads to them
            if filled + sizes[name] > self._group_bytes and filled:
                groups.append([])
                filled = 0
            groups[-1].append(name)
            filled += sizes[name]
        return [tuple(group) for group in groups]

    def _sizes(self, feeds: Feeds) -> dict[str, int]:
        """Return the bytes of each computed tensor for this sample."""
        values = {v.name: v for node in self._model.graph for v in node.outputs}
        known = {name: _static_bytes(values[name]) for name in self._computed}
        sizes = {name: size for name, size in known.items() if size is not None}
        unknown = [name for name in self._computed if name not in sizes]
        if unknown:
            sizes.update(self._measured(unknown, feeds, values))
        return sizes

    def _measured(
        self, names: Sequence[str], feeds: Feeds, values: Mapping[str | None, ir.Value]
    ) -> dict[str, int]:
        """Ask the runtime for sizes: one run in which only the number of elements comes out."""
        proto = _exposed(self._model, names)
        del proto.graph.output[:]
        for index, name in enumerate(names):
            size = f"bitwright_size_{index}"
            proto.graph.node.append(onnx.helper.make_node("Size", [name], [size]))
            proto.graph.output.append(
                onnx.helper.make_tensor_value_info(size, onnx.TensorProto.INT64, [])
            )
        session = _open(proto)
        counted = _run(session, [output.name for output in session.get_outputs()], feeds)
        return {
            name: int(count) * _item_bytes(values[name])
            for name, count in zip(names, counted.values(), strict=True)
        }


def _item_bytes(value: ir.Value) -> int:
    return math.ceil(value.dtype.itemsize) if value.dtype is not None else 4


def _static_bytes(value: ir.Value) -> int | None:
    if value.shape is None:
        return None
    count = 1
    for dimension in value.shape:
        if not isinstance(dimension, int):
            return None
        count *= dimension
    return count * _item_bytes(value)


def _run(
    session: ort.InferenceSession, names: Sequence[str], feeds: Feeds
) -> dict[str, npt.NDArray[Any]]:
    wanted = {value.name for value in session.get_inputs()}
    arrays = {
        name: np.ascontiguousarray(feed) if feed.ndim else feed
        for name, feed in feeds.items()
        if name in wanted
    }
    try:
        if any(array.dtype.kind in "OUS" for array in arrays.values()):
            return dict(zip(names, session.run(list(names), arrays), strict=True))
        fed = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}
        outputs = session.run_with_ort_values(list(names), fed)
    except Exception as error:
        raise DataError(f"the model does not run on this sample: {error}") from error
    # `.numpy()` is a view of the runtime's memory, which it keeps alive.
    return {name: value.numpy() for name, value in zip(names, outputs, strict=True)}


def _as_ir(model: Any) -> ir.Model:
    if isinstance(model, ir.Model):
        return model
    if isinstance(model, onnx.ModelProto):
        return ir.from_proto(model)
    return ir.load(model)


def _exposed(model: ir.Model, names: Sequence[str]) -> onnx.ModelProto:
    proto = ir.to_proto(model)
    known = {value.name: value for value in [*proto.graph.value_info, *proto.graph.output]}
    del proto.graph.output[:]
    for name in names:
        proto.graph.output.append(
            known.get(name) or onnx.helper.make_value_info(name, onnx.TypeProto())
        )
    proto.ir_version = min(proto.ir_version, 13)
    return proto


def _open(proto: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.enable_cpu_mem_arena = False  # its blocks grow and are never given back
    options.log_severity_level = 3
    return ort.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
