"""Make model-local functions of the vendor's domain from ONNX's textual syntax."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx_ir as ir
from onnx import parser

__all__ = ["VENDOR_DOMAIN", "write_function"]

VENDOR_DOMAIN = "com.vai.quantize"


def write_function(
    name: str,
    inputs: Sequence[str],
    lines: Iterable[str],
    *,
    attributes: Sequence[str],
    opset: int,
    contrib: bool = False,
) -> ir.Function:
    """Return a function of the vendor's domain with one output, y, from ONNX's textual syntax.

    >>> relu = write_function("Relu2", ["x"], ["y = Relu (x)"], attributes=(), opset=17)
    >>> relu.domain, [node.op_type for node in relu]
    ('com.vai.quantize', ['Relu'])
    """
    imports = f'"" : {opset}' + (', "com.microsoft" : 1' if contrib else "")
    given = f"<{', '.join(attributes)}> " if attributes else ""
    text = (
        f'<opset_import: [{imports}], domain: "{VENDOR_DOMAIN}">\n'
        f"{name} {given}({', '.join(inputs)}) => (y) {{\n  " + "\n  ".join(lines) + "\n}"
    )
    return ir.serde.deserialize_function(parser.parse_function(text))
