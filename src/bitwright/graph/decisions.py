"""What became of the nodes of a model, counted, in the metadata of what was written."""

from __future__ import annotations

import msgspec
import onnx_ir as ir

_KEY = "bitwright.nodes"
_MAX_REASONS = 8
"""How many reasons an op type has by name."""


class Decisions(msgspec.Struct, frozen=True):
    """How many nodes were quantized, and left float for which reason: what a written model says.

    >>> Decisions({"Conv": 2}, {"Erf": {"no rule for Erf": 3}}).why("Erf")
    'no rule for Erf'
    """

    quantized: dict[str, int]
    """Op type -> how many."""
    left_float: dict[str, dict[str, int]]
    """Op type -> reason -> how many, the most frequent first."""

    @classmethod
    def read(cls, model: ir.Model) -> Decisions | None:
        """Return what a model's metadata says; None where it is missing or malformed."""
        try:
            return msgspec.json.decode(model.metadata_props.get(_KEY, ""), type=cls)
        except msgspec.DecodeError:
            return None

    def write(self, model: ir.Model) -> None:
        """Put it into a model, as a kilobyte or two: reasons that few nodes have count as one."""
        kept = {}
        for op, reasons in sorted(self.left_float.items()):
            ranked = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
            kept[op] = dict(ranked[:_MAX_REASONS])
            if rest := sum(count for _, count in ranked[_MAX_REASONS:]):
                kept[op]["other reasons, which the plan tells"] = rest
        found = Decisions(dict(sorted(self.quantized.items())), kept)
        model.metadata_props[_KEY] = msgspec.json.encode(found).decode()

    def why(self, op: str) -> str | None:
        """Return why nodes of a type are float: for one of these reasons."""
        return ", or: ".join(self.left_float.get(op, ())) or None
