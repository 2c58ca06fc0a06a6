"""Overrides of activation types completed so that every node reads and writes one type."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import NodeProto, TensorProto, ValueInfoProto

from bitwright.compat.onnxruntime.enums import QuantType
from bitwright.compat.onnxruntime.errors import InvalidSettingError
from bitwright.compat.onnxruntime.tensor_quant_overrides import (
    QuantTypeInfo,
    TensorQuantOverridesHelper,
)

__all__ = [
    "MixedPrecisionTensorQuantOverridesFixer",
    "QuantType",
    "QuantTypeInfo",
    "TensorQuantOverridesHelper",
    "TensorTypeRequest",
]

logger = logging.getLogger(__name__)

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)


@dataclass
class TensorTypeRequest:
    """The types that nodes ask of a tensor; None asks for nothing but the default.

    >>> TensorTypeRequest(QuantTypeInfo(QuantType.QUInt16), None).consumers is None
    True
    """

    producer: QuantTypeInfo | None
    """What its producer is to write."""
    consumers: tuple[QuantTypeInfo, set[str]] | None
    """What some readers are to read, and their names."""


class MixedPrecisionTensorQuantOverridesFixer:
    """Spreads overridden activation types over whole nodes and converts at the borders.

    Below, Add writes 16 bits, so it reads 16 bits too: `a` is converted for it.

    >>> from onnx import helper
    >>> infos = [helper.make_tensor_value_info(name, 1, [4]) for name in ("x", "a", "y")]
    >>> nodes = [helper.make_node("Relu", ["x"], ["a"], name="relu"),
    ...          helper.make_node("Add", ["a", "a"], ["y"], name="add")]
    >>> model = helper.make_model(helper.make_graph(nodes, "g", infos[:1], infos[2:]))
    >>> helper = TensorQuantOverridesHelper({"y": [{"quant_type": QuantType.QUInt16}]})
    >>> u8 = QuantType.QUInt8
    >>> make = MixedPrecisionTensorQuantOverridesFixer.create_from_model
    >>> make(helper, model, u8).apply(u8, False)
    >>> helper["a"][0]["convert"]["recv_nodes"]
    {'add'}
    """

    def __init__(
        self,
        overrides: TensorQuantOverridesHelper,
        producers: Mapping[str, NodeProto],
        consumers: Mapping[str, Sequence[NodeProto]],
        value_infos: Mapping[str, ValueInfoProto],
        initializers: Mapping[str, TensorProto],
    ) -> None:
        self.overrides = overrides
        self.producers = producers
        self.consumers = consumers
        self.value_infos = value_infos
        self.initializers = initializers

    @staticmethod
    def create_from_model(
        overrides: TensorQuantOverridesHelper,
        model: onnx.ModelProto,
        default_activation_qtype: Any,
    ) -> MixedPrecisionTensorQuantOverridesFixer:
        """Return a fixer of overrides for a model; overrides that do not fit it are an error."""
        graph = onnx.shape_inference.infer_shapes(model).graph
        consumers: dict[str, list[NodeProto]] = {}
        for node in graph.node:
            for name in filter(None, node.input):
                consumers.setdefault(name, []).append(node)
        fixer = MixedPrecisionTensorQuantOverridesFixer(
            overrides,
            producers={name: node for node in graph.node for name in node.output},
            consumers=consumers,
            value_infos={v.name: v for v in (*graph.value_info, *graph.output, *graph.input)},
            initializers={tensor.name: tensor for tensor in graph.initializer},
        )
        fixer._check("the given overrides", default_activation_qtype)
        return fixer

    def apply(self, default_activation_qtype: Any, default_activation_symmetric: bool) -> None:
        """Complete the overrides in place; types that contradict each other are an error."""
        requests = self.get_desired_tensor_types(
            default_activation_qtype, default_activation_symmetric
        )
        for tensor, request in requests.items():
            self._meet(tensor, request, QuantTypeInfo(default_activation_qtype))
        self._check("the completed overrides", default_activation_qtype)

    def get_desired_tensor_types(
        self, default_activation_qtype: Any, default_activation_symmetric: bool
    ) -> dict[str, TensorTypeRequest]:
        """Return what the nodes beside each overridden activation ask of their tensors."""
        requests: dict[str, TensorTypeRequest] = {}
        default = QuantTypeInfo(default_activation_qtype, default_activation_symmetric)
        for tensor, entries in self.overrides.items():
            if tensor in self.initializers or not self._is_float(tensor) or len(entries) != 1:
                continue
            wanted = QuantTypeInfo.load_from_dict(entries[0], default_activation_qtype)
            if wanted == default or "convert" in entries[0]:
                continue
            producer = self.producers.get(tensor)
            beside = [] if producer is None else [producer]
            for node in (*beside, *self.consumers.get(tensor, ())):
                self._ask_for(requests, wanted, node)
        return requests

    def _ask_for(
        self, requests: dict[str, TensorTypeRequest], wanted: QuantTypeInfo, node: NodeProto
    ) -> None:
        """Let a node ask for one type at all its float outputs and activations."""
        for name in filter(self._is_float, node.output):
            request = requests.setdefault(name, TensorTypeRequest(wanted, None))
            if request.producer is not None and request.producer != wanted:
                raise InvalidSettingError(
                    f"Tensor {name} has multiple types: {request.producer.quant_type} and "
                    f"{wanted.quant_type}."
                )
            request.producer = wanted
        for name in filter(self._is_float, node.input):
            if name in self.initializers:
                continue
            request = requests.setdefault(name, TensorTypeRequest(None, None))
            asked, names = request.consumers or (wanted, set())
            if asked != wanted:
                raise InvalidSettingError(
                    f"Tensor {name} has consumers requesting different types: "
                    f"{asked.quant_type} and {wanted.quant_type}."
                )
            if not node.name:
                raise InvalidSettingError(
                    f"the {node.op_type} that makes {node.output[0]!r} does not have a name; "
                    "give it one, as qnn_preprocess_model does."
                )
            request.consumers = asked, names | {node.name}

    def _meet(self, tensor: str, request: TensorTypeRequest, default: QuantTypeInfo) -> None:
        """Override a tensor so that its producer and its readers get what they ask for."""
        readers = {node.name for node in self.consumers.get(tensor, ())}
        asked, names = request.consumers or (default, readers)
        made = request.producer or self.overrides.get_node_output_qtype_info(
            tensor, default.quant_type
        )
        if made != asked:
            self._convert(tensor, made, asked, names)
        elif request.producer is None:
            if self._converts_for(tensor, names):
                raise InvalidSettingError(
                    f"the override of {tensor!r} converts it for nodes that need its own type: "
                    f"{', '.join(sorted(names))}."
                )
        elif others := readers - names:
            self._convert(tensor, made, default, others)
        else:
            if tensor not in self.overrides:
                self._add(tensor, made)
            if "convert" in self.overrides[tensor][0]:
                raise InvalidSettingError(
                    f"the override of {tensor!r} converts it, and all its readers need its own "
                    "type."
                )

    def _add(self, tensor: str, made: QuantTypeInfo) -> None:
        entry: dict[str, Any] = {}
        made.save_to_dict(entry)
        self.overrides[tensor] = [entry]

    def _convert(
        self, tensor: str, made: QuantTypeInfo, received: QuantTypeInfo, names: Collection[str]
    ) -> None:
        if not self.overrides.get(tensor):
            self._add(tensor, made)
        entry = self.overrides[tensor][0]
        _need_same(tensor, "producer", made, entry)
        if not names:
            return
        if "convert" not in entry:
            entry["convert"] = {}
            received.save_to_dict(entry["convert"])
        _need_same(tensor, "consumer", received, entry["convert"])
        entry["convert"].setdefault("recv_nodes", set()).update(names)

    def _converts_for(self, tensor: str, names: Collection[str]) -> bool:
        entry = (self.overrides.get(tensor) or [{}])[0]
        if "convert" not in entry:
            return False
        receivers = entry["convert"].get("recv_nodes")
        return receivers is None or not receivers.isdisjoint(names)

    def _is_float(self, tensor: str) -> bool:
        if tensor in self.initializers:
            return self.initializers[tensor].data_type in _FLOATS
        info = self.value_infos.get(tensor)
        return info is not None and info.type.tensor_type.elem_type in _FLOATS

    def _check(self, what: str, default_type: Any) -> None:
        valid, fault = self.overrides.is_valid(self.initializers, {*self.value_infos}, default_type)
        if not valid:
            logger.error("%s are not valid:\n%s", what, self.overrides.pprint_str(indent=4))
            raise InvalidSettingError(fault)


def _need_same(tensor: str, end: str, wanted: QuantTypeInfo, entry: Mapping[str, Any]) -> None:
    if wanted != QuantTypeInfo.load_from_dict(entry):
        raise InvalidSettingError(
            f"Desired {end} quant_type for {tensor} doesn't match existing type: {wanted} is "
            f"needed, and its override says {dict(entry)}."
        )
