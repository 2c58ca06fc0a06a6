"""`QuantOperatorBase`, and how the classes of single operators are made."""

from __future__ import annotations

from typing import Any, NoReturn

from bitwright.compat.onnxruntime.errors import NoOperatorQuantizersError

__all__ = ["QuantOperatorBase", "operator_quantizer", "refuse_operator_quantizer"]


def refuse_operator_quantizer(name: str) -> NoReturn:
    """Raise the error that says what to use in the place of an operator's quantizer.

    >>> refuse_operator_quantizer("QDQConv")
    Traceback (most recent call last):
    bitwright.compat.onnxruntime.errors.NoOperatorQuantizersError: QDQConv works on one node at a \
time, and Bitwright plans a model as a whole; choose nodes by op_types_to_quantize and \
nodes_to_exclude, tensors by TensorQuantOverrides, or edit the plan of bitwright.make_plan.
    """
    raise NoOperatorQuantizersError(
        f"{name} works on one node at a time, and Bitwright plans a model as a whole; choose nodes "
        "by op_types_to_quantize and nodes_to_exclude, tensors by TensorQuantOverrides, or edit "
        "the plan of bitwright.make_plan."
    )


class QuantOperatorBase:
    """The base of quantizers that write integer operators; making one is an error.

    >>> QuantOperatorBase(None, None)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    bitwright.compat.onnxruntime.errors.NoOperatorQuantizersError: QuantOperatorBase works on ...
    """

    def __init__(self, onnx_quantizer: Any, onnx_node: Any) -> None:
        refuse_operator_quantizer(type(self).__name__)

    def should_quantize(self) -> bool:
        """Return whether the node is to be quantized; there is no such object to ask."""
        refuse_operator_quantizer(type(self).__name__)

    def quantize(self) -> None:
        """Quantize the node; there is no such object to do it."""
        refuse_operator_quantizer(type(self).__name__)


def operator_quantizer(name: str, base: type[QuantOperatorBase] = QuantOperatorBase) -> Any:
    """Return the class of an operator, by its name.

    >>> operator_quantizer("QArgMax").__mro__[1].__name__
    'QuantOperatorBase'
    """
    text = f"`{name}` of ONNX Runtime's tool; making one is an error."
    return type(name, (base,), {"__doc__": text, "__module__": base.__module__})
