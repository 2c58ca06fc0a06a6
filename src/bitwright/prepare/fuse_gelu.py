"""Fuse the nodes that a Gelu is exported as.

Exporters write x / 2 (1 + erf(x / sqrt(2))) (Hendrycks and Gimpel 2016, arXiv:1606.08415) as five
nodes, each of which would be quantized, in an order of their own.
"""

from __future__ import annotations

import onnx_ir as ir

from bitwright.decide.ops.matching import match_gelu
from bitwright.graph.editing import insert_before, like, remove_nodes, replace_value
from bitwright.prepare.passes import PassResult, Scope, rewrite_nodes

_STANDARD_OPSET = 20
"""Before, only ONNX Runtime's own domain has a Gelu."""
_MICROSOFT = "com.microsoft"


def fuse_gelu(model: ir.Model) -> PassResult:
    """Replace the nodes of every Gelu by one, whatever the order of operands.

    The last tensor keeps its name. Nodes stay where a tensor in between has other readers.
    """
    domain = "" if model.opset_imports.get("", 0) >= _STANDARD_OPSET else _MICROSOFT

    def fuse(erf: ir.Node, names: Scope) -> bool:
        found = match_gelu(erf)
        if found is None:
            return False
        last = found.last
        output = like(last.outputs[0], names.fresh(f"{last.outputs[0].name}_gelu"))
        insert_before(last, "Gelu", [found.x], output, last.name or "", domain=domain)
        replace_value(last.outputs[0], output)
        remove_nodes(found.nodes.in_order())
        return True

    result = rewrite_nodes(model, ("Erf",), fuse, since=7)
    if result.changed and domain:
        model.opset_imports.setdefault(domain, 1)
    return result
