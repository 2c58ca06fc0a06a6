"""Layout: one entry for each tensor to quantize, one decision for each node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

import onnx_ir as ir

from bitwright.decide.ops import OpRule
from bitwright.graph.constants import constant_of
from bitwright.numerics.types import INT32, QType
from bitwright.plan import Action, NodePlan
from bitwright.recipe import Override

ABSORBED = "the quantizer of its output clips as it does"
"""Why a Relu or Clip is dropped."""


def plan_node(
    node: ir.Node,
    inputs: Iterable[str | None] | None = None,
    outputs: Iterable[str | None] | None = None,
    *,
    action: Action = "quantize",
    reason: str | None = None,
) -> NodePlan:
    """Return the decision for a node; a side without entries is read or written as floats."""
    read = (None,) * len(node.inputs) if inputs is None else tuple(inputs)
    written = (None,) * len(node.outputs) if outputs is None else tuple(outputs)
    return NodePlan(op=node.op_type, action=action, reason=reason, inputs=read, outputs=written)


def plan_as_float(node: ir.Node, reason: str) -> NodePlan:
    """Return the decision for a node that reads and writes floats."""
    return plan_node(node, action="float", reason=reason)


@dataclass(slots=True)
class Entry:
    """One tensor that is to be quantized, with what is known of it without data."""

    name: str
    """The tensor's qualified name in the float model."""
    value: ir.Value
    role: Literal["activation", "weight", "bias"]
    qtype: QType
    axis: int | None = None
    block_size: int = 0
    same_as: str | None = None
    source: str | None = None
    """The entry behind whose pair this one's stands."""
    bias_of: tuple[str, str] | None = None
    tile: int = 1
    fixed_range: tuple[float, float] | None = None
    override: Override | None = None
    range_of: str | None = None
    """The tensor whose observed range it takes in place of its own."""
    absorbed_by: str | None = None
    """The Relu or Clip behind this tensor that the quantizer may replace."""
    operand: bool = False
    """A constant beside activations, such as an addend: it is laid out as they are."""
    shared_zero_point: bool = False
    """The operator takes a scale for each channel of this weight, and one zero point for all."""
    leaves_model: bool = False
    """Its integers leave the model: whatever the range method, nothing of them is clipped."""

    @property
    def depends_on(self) -> tuple[str, ...]:
        """The entries that this one has its parameters or its values from."""
        return tuple(key for key in (self.same_as, self.source, *(self.bias_of or ())) if key)

    @property
    def needs_data(self) -> bool:
        """Whether its range must be observed."""
        if self.role != "activation" or self.same_as is not None or self.fixed_range is not None:
            return False
        given = self.override
        known = given is not None and (
            given.scale is not None or (given.rmin is not None and given.rmax is not None)
        )
        return self.qtype.needs_range and not known


@dataclass(slots=True)
class Layout:
    """The tensors and nodes of a model that will be quantized."""

    entries: dict[str, Entry] = field(default_factory=dict)
    nodes: dict[str, NodePlan] = field(default_factory=dict)
    outputs: dict[str, str | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """What the user should know of how it came about."""

    @property
    def observed(self) -> list[str]:
        """Names of the tensors whose values must be seen."""
        seen = (e.range_of or e.name for e in self.entries.values() if e.needs_data)
        return list(dict.fromkeys(seen))

    def root(self, key: str) -> str:
        """Return the entry that an entry has its parameters from, through all `same_as`."""
        while (other := self.entries[key].same_as) is not None:
            key = other
        return key

    def enter_constant(self, wanted: Entry, reader: str) -> str:
        """Enter a constant for one of its readers; uses that agree share one entry."""
        for key in _keys(wanted.name, reader):
            found = self.entries.setdefault(key, wanted)
            if all(
                getattr(found, field) == getattr(wanted, field)
                for field in ("qtype", "axis", "block_size", "role", "operand")
            ):
                break
        return key

    def enter_bias(
        self,
        name: str,
        value: ir.Value,
        node: ir.Node,
        rule: OpRule,
        bias_of: tuple[str, str],
        qtype: QType = INT32,
    ) -> str | None:
        """Enter a bias at (input scale x weight scale); None where it has no such scale."""
        entry, array = self.entries[bias_of[1]], constant_of(value)
        if entry.role != "weight" or entry.block_size or not entry.qtype.is_integer:
            return None
        tile = 1 if rule.tile is None else rule.tile(node)
        axis = None
        if entry.axis is not None:
            channels = constant_of(entry.value).shape[entry.axis]  # type: ignore[union-attr]
            if array is None or array.ndim == 0 or array.shape[-1] != channels * tile:
                return None
            axis = array.ndim - 1
        # The node may read the same constant as its weight: exporters store all zeros once.
        key = next(key for key in _keys(name, node.name or "") if key not in self.entries)
        self.entries[key] = Entry(name, value, "bias", qtype, axis, bias_of=bias_of, tile=tile)
        return key

    def writer_of(self, value: ir.Value) -> NodePlan | None:
        """Return what is decided for the node that computes a tensor."""
        producer = value.producer()
        return None if producer is None else self.nodes.get(producer.name or "")

    def users(self, key: str) -> list[str]:
        """Names of the nodes that read or write this entry."""
        return [
            name for name, node in self.nodes.items() if key in node.inputs or key in node.outputs
        ]


def _keys(name: str, reader: str) -> Iterator[str]:
    """Yield what the entries of a tensor may be called: its name, then names of a reader's own."""
    yield name
    yield f"{name}@{reader}"
    yield from (f"{name}@{reader}#{number}" for number in count(2))
