"""Names of packed nodes and constants as Neural Compressor writes them."""

from __future__ import annotations

import onnx_ir as ir

from bitwright.graph import NameScope
from bitwright.plan import QuantPlan

__all__ = ["is_packed_name", "rename_packed"]

_ENDINGS = ("Q{bits}G{block_size}", "scale", "zp")


def rename_packed(model: ir.Model, plan: QuantPlan) -> None:
    """Call nodes `<node>_Q4`, and constants `<weight>_Q4G32`, `_scale` and `_zp`, in place."""
    names = NameScope(model)
    packed = {n.name or "": n for n in model.graph if n.op_type == "MatMulNBits"}
    for weight, planned in plan.weights.items():
        for name in planned.nodes:
            node = packed.get(name)
            if node is None:
                continue
            bits = node.attributes.get_int("bits", 4)
            form = {"bits": bits, "block_size": node.attributes.get_int("block_size", 32)}
            node.name = names.fresh(f"{name}_Q{bits}")
            for value, ending in zip(node.inputs[1:4], _ENDINGS, strict=False):
                wanted = f"{weight}_{ending.format(**form)}"
                # A weight that two nodes read has its constants once.
                if value is not None and value.name != wanted:
                    value.name = names.fresh(wanted)


def is_packed_name(name: str, given: str) -> bool:
    """Whether a name is the packed form of a node that an earlier call quantized."""
    return name.startswith(f"{given}_Q") and name[len(given) + 2 :].isdigit()
