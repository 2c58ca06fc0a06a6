"""Fuse the nodes that a Gelu is exported as.

Exporters write x / 2 (1 + erf(x / sqrt(2))) (Hendrycks and Gimpel 2016, arXiv:1606.08415) as five
nodes, each of which would be quantized, in an order of their own.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from bitwright.graph.editing import insert_before, like, remove_nodes, replace_value
from bitwright.prepare.matching import (
    Matched,
    divided,
    is_closed,
    lone_number,
    operands,
    private_producer,
    private_reader,
)
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
        found = _match(erf)
        if found is None:
            return False
        x, last, matched = found
        output = like(last.outputs[0], names.fresh(f"{last.outputs[0].name}_gelu"))
        insert_before(last, "Gelu", [x], output, last.name or "", domain=domain)
        replace_value(last.outputs[0], output)
        remove_nodes(matched.in_order())
        return True

    result = rewrite_nodes(model, ("Erf",), fuse, since=7)
    if result.changed and domain:
        model.opset_imports.setdefault(domain, 1)
    return result


def _match(erf: ir.Node) -> tuple[ir.Value, ir.Node, Matched] | None:
    """Return x, the last node and all nodes of the Gelu around an Erf."""
    scaled = private_producer(erf.inputs[0], erf)
    x = None if scaled is None else divided(scaled, math.sqrt(2), _is_number)
    plus_one = private_reader(erf.outputs[0])
    if scaled is None or x is None or plus_one is None:
        return None
    if not any(_is_number(one, 1.0, x) for _, one in operands(plus_one, "Add")):
        return None
    matched = Matched([scaled, erf, plus_one])
    last, missing = plus_one, {"x", "half"}
    while missing:
        following = private_reader(last.outputs[0])
        if following is None:
            return None
        factors = [other for one, other in operands(following, "Mul") if one is last.outputs[0]]
        found = _factors(factors[0], x, following, matched) if factors else set()
        if not found or not found <= missing:
            return None
        missing -= found
        matched.append(following)
        last = following
    return (x, last, matched) if is_closed(matched, last) else None


def _factors(value: ir.Value, x: ir.Value, reader: ir.Node, matched: Matched) -> set[str]:
    """Return what of x and 1/2 a factor is."""
    if value is x:
        return {"x"}
    if _is_number(value, 0.5, x):
        return {"half"}
    producer = private_producer(value, reader)
    if producer is not None and any(
        one is x and _is_number(other, 0.5, x) for one, other in operands(producer, "Mul")
    ):
        matched.append(producer)
        return {"x", "half"}
    return set()


def _is_number(constant: ir.Value | None, expected: float, x: ir.Value) -> bool:
    """Return whether a constant is this number, and does not enlarge what it meets."""
    found = lone_number(constant, x)
    # Exporters write the root with four digits or more.
    return found is not None and math.isclose(float(found), expected, rel_tol=1e-4)
