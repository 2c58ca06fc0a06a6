"""Output formats: how quantized tensors are written, as facts that every stage reads."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Format(NamedTuple):
    """What is written for a quantized tensor."""

    pairs: bool = False
    """A quantizing and a dequantizing node, between float operators."""
    integer_ops: bool = False
    """Operators that compute on integers."""
    vendor_ops: bool = False
    """Nodes of the vendor's domain, whose bodies take every number type."""

    @property
    def standard_pairs(self) -> bool:
        """Whether pairs are QuantizeLinear and DequantizeLinear, which ONNX Runtime fuses."""
        return self.pairs and not self.vendor_ops

    @property
    def single_nodes(self) -> bool:
        """Whether one node of the vendor's quantizes and dequantizes a tensor."""
        return self.vendor_ops and not self.pairs


FormatName = Literal["qdq", "qoperator", "extended", "fix-neuron"]

FORMATS: dict[str, Format] = {
    "qdq": Format(pairs=True),
    "qoperator": Format(integer_ops=True),
    "extended": Format(pairs=True, vendor_ops=True),
    "fix-neuron": Format(vendor_ops=True),
}
"""Name of an output format -> what it is."""
