"""Function bodies of the vendor's operators, in standard operators that every runtime has."""

from __future__ import annotations

from bitwright.emit.functions.scaled import (
    QUARK_DOMAIN,
    VENDOR_DOMAIN,
    Op,
    Use,
    distinguishing_attributes,
    scaled_function,
)
from bitwright.emit.functions.shared_exponent import (
    block_attributes,
    block_function,
    block_op,
    distinguishing_block_attributes,
)

__all__ = [
    "QUARK_DOMAIN",
    "VENDOR_DOMAIN",
    "Op",
    "Use",
    "block_attributes",
    "block_function",
    "block_op",
    "distinguishing_attributes",
    "distinguishing_block_attributes",
    "scaled_function",
]
