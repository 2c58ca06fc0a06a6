"""One Q/DQ pair for each reader of a tensor instead of one for all."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import onnx_ir as ir

from bitwright.decide.layout.entries import Entry, Layout

__all__ = ["dedicate_pairs"]


def dedicate_pairs(
    layout: Layout, marked: Mapping[ir.Value, str], names: Mapping[ir.Value, str]
) -> None:
    """Give each reader of a marked tensor an entry, and so a pair, of its own."""
    for value, key in marked.items():
        readers = [
            (name, index)
            for name, node in layout.nodes.items()
            for index, used in enumerate(node.inputs)
            if used == key
        ]
        if len(readers) + (layout.outputs.get(names[value]) is not None) < 2:
            continue
        producer = value.producer()
        if producer is not None and layout.outputs.get(names[value]) is None:
            # The shared entry stays as the root of the parameters, without a pair of its own.
            _rename_uses(layout, producer.name or "", key, f"{key}@{readers[0][0]}", "outputs")
        for name, _ in readers:
            own = f"{key}@{name}"
            entry = layout.entries[key]
            layout.entries[own] = Entry(entry.name, value, "activation", entry.qtype, same_as=key)
            _rename_uses(layout, name, key, own, "inputs")


def _rename_uses(layout: Layout, node: str, old: str, new: str, side: str) -> None:
    plan = layout.nodes.get(node)
    if plan is not None:
        keys = tuple(new if used == old else used for used in getattr(plan, side))
        layout.nodes[node] = msgspec.structs.replace(plan, **{side: keys})
