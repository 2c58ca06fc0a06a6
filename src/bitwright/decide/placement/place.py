"""Placement by cost: which of a plan's integer nodes are to be float, since that is faster.

The prices are what kernels take by the cost table of a class of CPU: each node's in float and in
its cheapest integer form, and those of borders, where a tensor changes from one to the other.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from types import MappingProxyType

import onnx_ir as ir

from bitwright.decide.ops import LINEAR_OPS
from bitwright.decide.placement.convolutions import channel_ties
from bitwright.decide.placement.cut import FLOAT, INTEGERS, Price, cheapest, priced
from bitwright.decide.placement.hosts import float_host, integer_host
from bitwright.decide.placement.kernels import (
    dequantize_work,
    float_work,
    hosted_work,
    integer_work,
    quantize_work,
    transpose_work,
)
from bitwright.graph import is_constant, iter_values, maker_of
from bitwright.plan import NodePlan
from bitwright.targets.costs import CostTable, Work

MIN_GAIN = 0.1
"""A model of which integers would save less by the costs stays float: they are estimates."""

_RESIZES = frozenset({"Resize", "Upsample"})
_BOUND_TO_NEIGHBOURS = frozenset({"MaxPool"})
"""The runtime computes them on blocks of integers only where both neighbours are integer nodes."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Where the nodes of a plan run by cost."""

    times: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Node that is to be float -> its microseconds there and in integers, with the borders."""
    integers: int = 0
    """How many nodes run in integers."""
    float_time: float = 0.0
    """Microseconds of the whole model in float."""
    planned_time: float = 0.0
    """Of the plan as it was."""
    time: float = 0.0
    """Of the model as placed."""


@dataclass(slots=True)
class PartTimes:
    """What parts of a model take, in microseconds, and the borders between them."""

    in_float: list[float]
    """Of each part."""
    in_integers: list[float]
    """Of each part; what it reads of the model's inputs is converted first."""
    borders: dict[tuple[int, int], float] = field(default_factory=dict)
    """Two parts -> what it takes where one is in integers and the other is not: the mean of both
    directions."""
    fixed: float = 0.0
    """Of all else, which stays as it is planned."""


def place(
    model: ir.Model,
    nodes: Mapping[str, NodePlan],
    paired: Collection[str],
    costs: CostTable,
    *,
    preference: float,
    noises: Mapping[str, float] = MappingProxyType({}),
) -> Placed | None:
    """Return which integer nodes are to be float; None: the sizes of products are not known.

    Integers are taken where they take less than `preference` times the time of float. `paired` are
    the activations that have integers. `noises` says what the rounding of some of them is worth, as
    a share of the float model's time.
    """
    sites = _Sites(model, nodes, paired, costs)
    if not sites.are_known():
        return None
    prices = [*sites.prices()]
    wished = [
        price._replace(time=price.time * (1 / preference if price.integers == (INTEGERS,) else 1))
        for price in prices
    ]
    finite = [price for price in prices if math.isfinite(price.time)]
    always = sites.always_float()
    in_float = always + priced(prices, ())
    chosen = cheapest([*wished, *sites.noise_prices(noises, in_float)])
    placed = always + priced(prices, chosen)
    if placed > (1 - MIN_GAIN) * in_float:
        chosen, placed = frozenset[str](), in_float
    left = [name for name in sites.planned if name not in chosen]
    return Placed(
        integers=len(sites.planned) - len(left),
        times=dict(zip(left, _times(left, prices, chosen), strict=True)),
        float_time=in_float,
        planned_time=always + priced(finite, sites.planned),
        time=placed,
    )


def time_parts(
    model: ir.Model,
    nodes: Mapping[str, NodePlan],
    paired: Collection[str],
    costs: CostTable,
    parts: Sequence[Collection[str]],
) -> PartTimes | None:
    """Return what parts of a plan take, each by the names of its nodes; None as for `place`."""
    sites = _Sites(model, nodes, paired, costs)
    if not sites.are_known():
        return None
    owner = {name: part for part, names in enumerate(parts) for name in names}
    for node in model.graph:  # an activation is where its writer is
        maker = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
        if sites.may_change(node) and maker is not None and maker.name in owner:
            owner.setdefault(node.name or "", owner[maker.name])
    found = PartTimes([0.0] * len(parts), [0.0] * len(parts), fixed=sites.always_float())
    for price in sites.prices():
        if not math.isinf(price.time):
            _add_up(price, owner, found)
    return found


_ALWAYS = -1
"""Instead of a part: what is on its side whatever becomes of the parts."""


def _add_up(price: Price, owner: Mapping[str, int], found: PartTimes) -> None:
    """Add a price to the parts that it depends on; a node of none is as it is planned."""
    integers = {owner.get(name, _ALWAYS) for name in price.integers}
    in_float = {owner.get(n, _ALWAYS) for n in price.floats if n in owner or n == FLOAT}
    if _ALWAYS in integers and _ALWAYS in in_float:
        found.fixed += price.time
    elif _ALWAYS in integers:
        for part in in_float:
            found.in_float[part] += price.time
    elif _ALWAYS in in_float:
        found.in_integers[min(integers)] += price.time
    else:
        for one, other in product(integers, in_float):
            if one != other:
                ends = min(one, other), max(one, other)
                found.borders[ends] = found.borders.get(ends, 0.0) + price.time / 2


def _times(
    names: Iterable[str], prices: Sequence[Price], chosen: frozenset[str]
) -> Iterable[tuple[float, float]]:
    """Yield what each of these nodes takes in float and in integers, the others as chosen."""
    touched = defaultdict[str, list[Price]](list)
    for price in prices:
        if math.isfinite(price.time):
            for name in dict.fromkeys((*price.integers, *price.floats)):
                touched[name].append(price)
    for name in names:
        yield tuple(
            round(priced(touched[name], one), 1) for one in (chosen - {name}, chosen | {name})
        )  # type: ignore[misc]  # two of them


class _Sites:
    """The nodes that may run in integers, and what each answer costs."""

    def __init__(
        self,
        model: ir.Model,
        nodes: Mapping[str, NodePlan],
        paired: Collection[str],
        costs: CostTable,
    ) -> None:
        self._costs, self._paired = costs, paired
        self._names = {value: name for name, value in iter_values(model)}
        self._ties = channel_ties(model.graph)
        self._nodes = [node for node in model.graph if (node.name or "") in nodes]
        self.planned = [n.name or "" for n in self._nodes if nodes[n.name or ""].quantized]
        self._either = frozenset(self.planned)

    def may_change(self, node: ir.Node) -> bool:
        """Whether a node may run in integers as well as in float."""
        return node.name in self._either

    def are_known(self) -> bool:
        """Whether it can be said what each product takes."""
        products = [n for n in self._nodes if n.name in self._either and n.op_type in LINEAR_OPS]
        return all(float_work(node) is not None for node in products)

    def always_float(self) -> float:
        """Return what the nodes take that are float wherever all others run."""
        return sum(
            self._time((float_work if self._host(node, float_host) is None else hosted_work)(node))
            for node in self._nodes
            if node.name not in self._either
        )

    def prices(self) -> Iterable[Price]:
        """Yield all that depends on where nodes run."""
        for node in self._nodes:
            yield from self._own(node)
            for value in node.outputs:
                yield from self._border(value, self._side(node))
            if node.name in self._either and node.op_type in _BOUND_TO_NEIGHBOURS:
                yield from self._bind(node)
            if node.op_type in _RESIZES:
                yield from self._behind_integers(node)
        inputs = (value for value in self._names if value.producer() is None)
        for value in inputs:
            if not is_constant(value):
                yield from self._border(value, FLOAT)

    def noise_prices(self, noises: Mapping[str, float], float_time: float) -> Iterable[Price]:
        """Yield what the rounding of an activation costs, if any node around it is in integers."""
        for value, name in self._names.items():
            if name not in self._paired or name not in noises:
                continue
            around = [use.node for use in value.uses()]
            around += [] if (maker := value.producer()) is None else [maker]
            sides = tuple(dict.fromkeys(n.name or "" for n in around if self.may_change(n)))
            if sides:
                yield Price(sides, (FLOAT,), noises[name] * float_time)

    def _own(self, node: ir.Node) -> Iterable[Price]:
        side, host = self._side(node), self._host(node, float_host)
        in_float = self._time(float_work(node))
        if host is not None:  # its kernel does this as well, if it is float
            hosted = self._time(hosted_work(node))
            if host != FLOAT:
                yield Price((host,), (side,), in_float - hosted)
            in_float = hosted
        if side != FLOAT:
            yield Price((INTEGERS,), (side,), in_float)
        if side == FLOAT:
            return
        maker = self._host(node, integer_host)
        if maker is not None:
            yield Price((side,), (maker,), math.inf)
            if maker != FLOAT:
                yield Price((maker,), (side,), math.inf)
            return
        work = integer_work(node, self._ties)
        yield Price((side,), (FLOAT,), self._time(work) if work else self._between_pairs(node))

    def _between_pairs(self, node: ir.Node) -> float:
        """Return what a node takes that runs in float between pairs."""
        read = [v for v in node.inputs if v is not None and self._names.get(v) in self._paired]
        written = [v for v in node.outputs if self._names.get(v) in self._paired]
        works = (*map(dequantize_work, read), *map(quantize_work, written), float_work(node))
        return sum(map(self._time, works))

    def _border(self, value: ir.Value, writer: str) -> Iterable[Price]:
        """Yield what it costs that a tensor is written in one of both and read in the other."""
        readers = dict.fromkeys(self._side(use.node) for use in value.uses())
        if self._names.get(value) not in self._paired:  # what is computed with its readers
            for reader in readers:
                if FLOAT not in (writer, reader):
                    yield Price((writer,), (reader,), math.inf)
                    yield Price((reader,), (writer,), math.inf)
            return
        if value.is_graph_output():
            readers[FLOAT] = None
        integers = tuple(name for name in readers if name != FLOAT)
        if integers:
            yield Price(integers, (writer,), self._time(quantize_work(value)))
        if writer != FLOAT and readers:
            yield Price((writer,), tuple(readers), self._time(dequantize_work(value)))

    def _bind(self, node: ir.Node) -> Iterable[Price]:
        """Keep a node in integers only with its neighbours."""
        maker = maker_of(node.inputs[0])
        around = [FLOAT if maker is None else self._side(maker)]
        around += [self._side(use.node) for use in node.outputs[0].uses()]
        for other in dict.fromkeys(around):
            yield Price((node.name or "",), (other,), math.inf)

    def _behind_integers(self, node: ir.Node) -> Iterable[Price]:
        """Yield what a float resize takes more behind integers.

        It does not run on blocks, and the runtime moves the transposition of what it reads, which
        is part of the border, behind it, where there are more values.
        """
        maker, work = maker_of(node.inputs[0]), float_work(node)
        if maker is None or work is None or not self.may_change(maker):
            return
        plain = work._replace(kernel=work.kernel.removesuffix("_blocked"))
        yield Price((self._side(maker),), (self._side(node),), self._time(plain) - self._time(work))
        readers = dict.fromkeys(self._side(use.node) for use in node.outputs[0].uses())
        before, after = (transpose_work(value) for value in (node.inputs[0], node.outputs[0]))
        moved = self._time(after) - self._time(before)
        if readers and moved > 0:
            yield Price((self._side(maker),), tuple(readers), moved)

    def _side(self, node: ir.Node) -> str:
        name = node.name or ""
        return name if name in self._either else FLOAT

    def _host(self, node: ir.Node, find: Callable[[ir.Node], ir.Node | None]) -> str | None:
        """Return where the node runs that computes this one as well; None: it is alone."""
        host = find(node)
        return None if host is None else self._side(host)

    def _time(self, work: Work | None) -> float:
        return 0.0 if work is None else self._costs.time(work)
