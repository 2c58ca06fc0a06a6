"""Checks of the file: quantizers, domains, node order and types."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from bitwright.errors import ModelError
from bitwright.graph import Quantizers, check_model, check_order, find_quantized_nodes, name_of
from bitwright.verification.findings import Finding


def check_quantized(quantizers: Quantizers) -> Iterable[Finding]:
    """Find that there is nothing to verify."""
    if not find_quantized_nodes(quantizers.model) and not quantizers.found:
        yield Finding("quantized", "", "nothing in it is quantized; quantize it first")


def check_pairs(quantizers: Quantizers) -> Iterable[Finding]:
    """Find that there are no Q/DQ pairs, from which the NPU's compiler takes its scales."""
    if not quantizers.found:
        yield Finding("quantized", "", "it has no Q/DQ pairs; quantize it in the format qdq")
        return
    for node in find_quantized_nodes(quantizers.model):
        if not node.op_type.endswith(("QuantizeLinear", "DequantizeLinear", "FixNeuron")):
            yield Finding(
                "quantized",
                name_of(node),
                f"{node.op_type} is an integer operator, and the NPU's compiler takes Q/DQ pairs; "
                "quantize it in the format qdq",
            )


def check_domains(model: ir.Model) -> Iterable[Finding]:
    """Find domains whose ops are used and whose opset is not imported."""
    missing: dict[str, ir.Node] = {}
    for node in model.graph.all_nodes():
        domain = "" if node.domain == "ai.onnx" else node.domain
        if domain not in model.opset_imports:
            missing.setdefault(domain, node)
    for domain, node in missing.items():
        shown = domain or "ai.onnx"
        yield Finding(
            "domains",
            name_of(node),
            f"its op {node.op_type} is of the domain {shown!r}, whose opset is not imported",
            {"domain": shown},
        )


def check_node_order(model: ir.Model) -> Iterable[Finding]:
    """Find the first node that comes before what it reads."""
    try:
        check_order(model)
    except ModelError as error:
        yield Finding("order", "", str(error).rstrip("."))


def check_form(model: ir.Model) -> Iterable[Finding]:
    """Find what ONNX's checker complains about, in a model whose nodes are in order."""
    if any(check_domains(model)):
        return  # the checker would say the same, less clearly
    try:
        check_model(model)
    except ModelError as error:
        yield Finding("onnx", "", str(error).rstrip("."))
