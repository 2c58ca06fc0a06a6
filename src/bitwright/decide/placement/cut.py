"""The cheapest division of nodes into those in integers and those in float: a minimum cut.

Every price has one shape: it is paid where one of some nodes is in integers while one of others is
in float. A node's own times, the border of a tensor and nodes that go together are such prices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import count
from typing import NamedTuple

INTEGERS, FLOAT = "in integers, always", "in float, always"
"""What is no node, and is never on the other side."""


_UNITS = 1000
"""Capacities are whole numbers: a flow of floats that fills an edge leaves a rest by rounding."""


class Price(NamedTuple):
    """What is paid where one of the first is in integers and one of the others in float.

    On one of the two sides stands one name.

    >>> Price(("conv",), (FLOAT,), 22.0).time  # what the node takes in integers
    22.0
    """

    integers: tuple[str, ...]
    floats: tuple[str, ...]
    time: float

    def paid(self, chosen: Collection[str]) -> bool:
        """Return whether it is to be paid when these nodes are in integers.

        >>> Price(("conv",), ("pool", "sum"), 3.0).paid({"conv", "pool"})
        True
        """
        return any(name in chosen or name == INTEGERS for name in self.integers) and any(
            name not in chosen and name != INTEGERS for name in self.floats
        )


def priced(prices: Iterable[Price], chosen: Collection[str]) -> float:
    """Return the time in all when these nodes are in integers.

    >>> priced([Price(("a",), (FLOAT,), 2.0), Price((INTEGERS,), ("a",), 5.0)], {"a"})
    2.0
    """
    return sum(price.time for price in prices if price.paid(chosen))


def cheapest(prices: Sequence[Price]) -> frozenset[str]:
    """Return the nodes that are in integers where the time in all is least.

    >>> own = [Price(("a",), (FLOAT,), 2.0), Price((INTEGERS,), ("a",), 5.0)]
    >>> sorted(cheapest(own)), sorted(cheapest([*own, Price(("a",), (FLOAT,), 4.0)]))
    (['a'], [])
    """
    import networkx  # few recipes ask for it

    graph = networkx.DiGraph()
    graph.add_nodes_from((INTEGERS, FLOAT))
    hubs = (f"border {number}" for number in count())
    for price in prices:
        if price.time > 0:
            _enter(price, graph.add_edge, graph.get_edge_data, next(hubs))
    solver = networkx.algorithms.flow.boykov_kolmogorov
    _, (chosen, _) = networkx.minimum_cut(graph, INTEGERS, FLOAT, flow_func=solver)
    named = {name for price in prices for name in (*price.integers, *price.floats)}
    return frozenset(chosen & named - {INTEGERS})


def _enter(
    price: Price,
    add: Callable[..., None],
    find: Callable[[str, str], dict[str, float] | None],
    hub: str,
) -> None:
    """Enter a price as edges; of several nodes on a side, all go through one hub that pays once."""
    (starts, ends), time = (price.integers, price.floats), price.time
    if len(starts) > 1:
        for name in starts:
            add(name, hub)  # without a capacity: infinite
        starts = (hub,)
    elif len(ends) > 1:
        for name in ends:
            add(hub, name)
        ends = (hub,)
    (start,), (end,) = starts, ends
    known = find(start, end)
    if math.isinf(time) or (known is not None and "capacity" not in known):
        add(start, end)
        if known is not None:
            known.pop("capacity", None)
        return
    whole = round(time * _UNITS) + (0 if known is None else int(known["capacity"]))
    add(start, end, capacity=whole)
