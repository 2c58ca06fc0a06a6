"""Which weights get more bits than the others: by what they lose, or by where they stand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bitwright.decide.layout.branches import Branch
from bitwright.errors import RecipeError

__all__ = ["choose_by_loss", "choose_by_place"]


def choose_by_loss(
    losses: Mapping[str, float],
    sizes: Mapping[str, int],
    *,
    narrow: int,
    wide: int,
    average_bits: float,
) -> set[str]:
    """Return the weights to store in `wide` bits, so that all take `average_bits` at most.

    `losses` is what a weight loses in `narrow` bits, `sizes` how many numbers it has; weights
    without a loss stay narrow. Those that save most for a byte come first, and whatever still fits
    after them.

    >>> sizes = {"a": 10, "b": 10, "c": 60}
    >>> losses = {"a": 1.0, "b": 3.0, "c": 9.0}
    >>> sorted(choose_by_loss(losses, sizes, narrow=4, wide=8, average_bits=4.5))
    ['b']
    """
    if not narrow < average_bits <= wide:
        raise RecipeError(
            f"mixed weights take between {narrow} and {wide} bits each, and {average_bits:.3g} "
            "would be left for those without bits of their own; choose another average_bits, or "
            "leave the head and overrides as the others are."
        )
    left = (average_bits - narrow) / (wide - narrow) * sum(sizes.values())
    chosen = set()
    for name in sorted(losses, key=lambda name: (-losses[name] / sizes[name], name)):
        if sizes[name] <= left:
            chosen.add(name)
            left -= sizes[name]
    return chosen


def choose_by_place(branches: Sequence[Branch]) -> set[str]:
    """Return the products that llama.cpp's k-quants give more bits, for a mixture without data.

    Those are the values of an attention and the last product of a feed-forward network, in the
    first and last eighth of the layers and in every third between.

    >>> mlp = [Branch(f"add{i}", (f"up{i}", f"down{i}"), False, ()) for i in range(8)]
    >>> sorted(choose_by_place(mlp))
    ['down0', 'down3', 'down6', 'down7']
    """
    attentions = [branch for branch in branches if branch.is_attention]
    others = [branch for branch in branches if not branch.is_attention]
    found = {name for branch in _salient(attentions) for name in branch.values}
    return found | {branch.last for branch in _salient(others)}


def _salient(layers: Sequence[Branch]) -> Iterable[Branch]:
    edge = len(layers) // 8
    for index, layer in enumerate(layers):
        if index < edge or index >= len(layers) - edge or (index - edge) % 3 == 2:
            yield layer
