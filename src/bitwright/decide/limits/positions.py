"""The fixed-point positions of a plan: read, and moved where others share them."""

from __future__ import annotations

import math

import msgspec
import onnx_ir as ir

from bitwright.errors import RecipeError
from bitwright.plan import QuantPlan, TensorPlan


class PlanPositions:
    """The positions of every scale in a plan, each under the entry that owns it.

    It also tells where the scales of the float graph are (`graph.npu_sites.Edges`).
    """

    def __init__(self, plan: QuantPlan) -> None:
        self._plan = plan
        self._reasons: dict[str, str] = {}
        self.start = {
            key: _position(key, entry)
            for key, entry in plan.tensors.items()
            if entry.scale is not None and entry.qtype.is_integer
        }
        self.now = dict(self.start)

    def move(self, key: str, position: int, reason: str) -> None:
        """Put a scale to another position, for this reason."""
        self.now[key] = position
        self._reasons[key] = reason

    @property
    def moved(self) -> dict[str, str]:
        """The scales that are not where they were, and why."""
        return {
            key: reason for key, reason in self._reasons.items() if self.now[key] != self.start[key]
        }

    def tensors(self) -> dict[str, TensorPlan]:
        """Return the plan's entries with the positions as they are now.

        A zero point is where zero lies between the ends of the range, and stays: what a coarser
        scale adds and what a finer one cuts off is shared by both sides.
        """
        tensors = dict(self._plan.tensors)
        for key, reason in self.moved.items():
            entry = tensors[key]
            tensors[key] = msgspec.structs.replace(
                entry,
                scale=2.0 ** -self.now[key],
                method=f"{entry.method or 'given'}, moved by {reason.replace('_', ' ')}",
            )
        return tensors

    # Edges of the float graph -------------------------------------------------------------

    def read(self, node: ir.Node, index: int) -> str | None:
        """Return the scale through which a node reads an input."""
        planned = self._plan.nodes.get(node.name or "")
        return None if planned is None else self._owner(planned.inputs[index])

    def write(self, value: ir.Value) -> str | None:
        """Return the scale of the pair behind a result."""
        maker = value.producer()
        planned = None if maker is None else self._plan.nodes.get(maker.name or "")
        return None if planned is None else self._owner(planned.outputs[value.index() or 0])

    def origin(self, node: ir.Node, index: int) -> ir.Value | None:
        """Return the tensor that a node reads: here, no pair stands before it."""
        return node.inputs[index]

    def _owner(self, key: str | None) -> str | None:
        """Return the entry whose scale an entry has; a bias at a product of scales has none."""
        root = None if key is None else self._plan.root(key)
        return root if root in self.start else None


def _position(key: str, entry: TensorPlan) -> int:
    scale = entry.scale
    mantissa, exponent = (0.0, 0) if isinstance(scale, list) else math.frexp(scale or 0.0)
    if mantissa != 0.5:
        shown = "several scales" if isinstance(scale, list) else f"the scale {scale}"
        raise RecipeError(
            f"tensor {key!r} has {shown}, and limits need one power of two for each tensor; "
            "change its override, or leave out limits."
        )
    return 1 - exponent
