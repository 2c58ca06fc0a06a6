"""`QDQOperatorBase`."""

from __future__ import annotations

from bitwright.compat.onnxruntime.operators.base_operator import QuantOperatorBase

__all__ = ["QDQOperatorBase"]


class QDQOperatorBase(QuantOperatorBase):
    """The base of quantizers that put pairs around a node; making one is an error."""
