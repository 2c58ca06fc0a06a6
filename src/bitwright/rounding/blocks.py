"""A graph cut into blocks whose weights are learned together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from bitwright.graph import Piece, cut_model

__all__ = ["Block", "find_blocks"]

ACTIVATIONS = frozenset(
    "Clip Elu Gelu HardSigmoid HardSwish LeakyRelu LogSoftmax Mish PRelu Relu Sigmoid Softmax "
    "Softplus Tanh".split()
)
"""What belongs to the layer before it: its error is what the next layer sees."""


@dataclass(frozen=True, slots=True)
class Block:
    """Nodes that are learned together, in graph order, and what passes in and out of them."""

    nodes: tuple[ir.Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def first(self) -> str:
        """The name of the first node."""
        return self.nodes[0].name or ""


def find_blocks(
    model: ir.Model,
    learning: Collection[str],
    *,
    largest: int = 8,
    layers: bool = False,
    supported: Callable[[ir.Node], bool] = lambda node: True,
) -> list[Block]:
    """Return the blocks that hold the learning nodes of the main graph, by name, in order.

    A block ends where a single tensor leads on, of those that learning can change at all: what
    is computed beside the layers, such as an attention mask, passes every border. Blocks of more
    than `largest` learning nodes or with a node that is not `supported`, and all of them with
    `layers`, fall apart into one for each learning node.

    >>> x, y, z = (ir.Value(name=name) for name in "xyz")
    >>> w = ir.Value(name="w", const_value=ir.tensor([[1.0]]))
    >>> nodes = [ir.node("MatMul", [x, w], outputs=[y], name="product")]
    >>> nodes.append(ir.node("Relu", [y], outputs=[z], name="relu"))
    >>> graph = ir.Graph([x], [z], nodes=nodes, initializers=[w], opset_imports={"": 21})
    >>> [b.outputs for b in find_blocks(ir.Model(graph, ir_version=10), ["product"])]
    [('z',)]
    """
    nodes = list(model.graph)
    flow = _Flow(model, nodes, learning)
    blocks: list[list[int]] = []
    borders = [*flow.borders(), len(nodes)]
    start = 0
    for end in borders:
        members = [i for i in range(start, end) if (nodes[i].name or "") in learning]
        whole = flow.needed(start, end) if members else []
        apart = layers or len(members) > largest or not all(supported(nodes[i]) for i in whole)
        if members:
            blocks += [[i] for i in members] if apart else [whole]
        elif blocks and end - start == 1 and flow.continues(blocks[-1], start):
            blocks[-1].append(start)
        start = end
    for block in blocks:
        follower = flow.only_reader(block[-1]) if len(block) == 1 else None
        if follower is not None and flow.is_activation(follower):
            block.append(follower)
    return [flow.block(members) for members in blocks]


class _Flow:
    """Who reads what, by place in the graph."""

    def __init__(
        self, model: ir.Model, nodes: Sequence[ir.Node], learning: Collection[str]
    ) -> None:
        self._nodes = nodes
        names = [node.name or "" for node in nodes]
        # A piece for each node also knows what the bodies of If and Loop read.
        pieces: list[Piece] = cut_model(model, names)
        self._reads = [piece.inputs for piece in pieces]
        self._leaves = {value.name for value in model.graph.outputs}
        self._readers: dict[str, list[int]] = {}
        for index, read in enumerate(self._reads):
            for name in read:
                self._readers.setdefault(name, []).append(index)
        self._maker = {v.name or "": i for i, node in enumerate(nodes) for v in node.outputs}
        self._touched: set[str] = set()
        for index, node in enumerate(nodes):
            if names[index] in learning or self._touched.intersection(self._reads[index]):
                self._touched.update(value.name or "" for value in node.outputs)

    def borders(self) -> list[int]:
        """Return the places before which at most one tensor that learning changes is alive."""
        alive = [0] * (len(self._nodes) + 1)
        for name in self._touched:
            if readers := self._readers.get(name):
                for place in range(self._maker[name] + 1, max(readers) + 1):
                    alive[place] += 1
        return [place for place in range(1, len(self._nodes)) if alive[place] <= 1]

    def needed(self, start: int, end: int) -> list[int]:
        """Return the nodes of a stretch that learning changes, and those they need within it."""
        kept: set[int] = set()
        for index in reversed(range(start, end)):
            made = {value.name or "" for value in self._nodes[index].outputs}
            wanted = any(kept.intersection(self._readers.get(name, ())) for name in made)
            if wanted or made & self._touched:
                kept.add(index)
        return sorted(kept)

    def continues(self, block: Sequence[int], index: int) -> bool:
        """Whether a node is the activation of the block that ends before it."""
        return self.is_activation(index) and self.only_reader(block[-1]) == index

    def is_activation(self, index: int) -> bool:
        return self._nodes[index].op_type in ACTIVATIONS

    def only_reader(self, index: int) -> int | None:
        """Return the one node that reads a node's result, if there is no other and it stays."""
        names = [value.name or "" for value in self._nodes[index].outputs]
        readers = {reader for name in names for reader in self._readers.get(name, ())}
        if len(readers) != 1 or self._leaves.intersection(names):
            return None
        return readers.pop()

    def block(self, members: Sequence[int]) -> Block:
        """Return these nodes with their borders."""
        inside = set(members)
        made = {v.name or "" for i in members for v in self._nodes[i].outputs}
        inputs = dict.fromkeys(n for i in members for n in self._reads[i] if n not in made)
        outputs = [
            name
            for i in members
            for name in (v.name or "" for v in self._nodes[i].outputs)
            if name in self._leaves or any(r not in inside for r in self._readers.get(name, ()))
        ]
        # What learning cannot change is no goal.
        goals = tuple(name for name in outputs if name in self._touched)
        return Block(tuple(self._nodes[i] for i in members), tuple(inputs), goals)
