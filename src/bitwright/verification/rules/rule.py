"""A rule of a target as one value: what it asks, why, how bad a breach is, what keeps it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
import onnx_ir as ir

from bitwright.decide.ops.quantized_view import Breach, QuantizedView
from bitwright.errors import TargetError
from bitwright.graph.quantizers import Quantizer, name_of
from bitwright.recipe import Recipe
from bitwright.targets.target import Consequence
from bitwright.verification.findings import Finding

Breaches = Iterator[tuple[str, str]]
"""(what was found, what is allowed instead) for each breach at an operator or a tensor."""

Changes = dict[str, Any]
"""Options of a recipe and what they have to be, as `Recipe.replace` takes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One thing that rules of a class ask: what breaks it, and what a recipe does to keep it.

    What breaks it is found at operators, at tensors or in the model as a whole.
    """

    node: Callable[[Any, QuantizedView, ir.Node], Breaches] | None = None
    """At one of the operators that are the rule's `ops`; all operators where it has none."""
    tensor: Callable[[Any, QuantizedView, Quantizer], Breaches] | None = None
    tensors: Callable[[Any, QuantizedView], Iterable[Quantizer]] = lambda rule, view: (
        view.found.values()
    )
    """Which tensors are looked at."""
    model: Callable[[Any, QuantizedView], Iterator[Breach]] | None = None

    needs: tuple[str, ...] = ()
    """Fields of the rule that have to be given."""
    change: Callable[[Any, Recipe], Changes] = lambda rule, recipe: {}
    """What a static recipe has to change."""
    change_weights: Callable[[Any, Recipe], Changes] = lambda rule, recipe: {}
    """What a weight-only recipe has to change."""
    why_unfit: Callable[[Any, Recipe], str | None] = lambda rule, recipe: None
    """What a static recipe has that no change makes fit."""
    why_weights_unfit: Callable[[Any, Recipe], str | None] = lambda rule, recipe: None

    def breaches(self, rule: Any, view: QuantizedView) -> Iterator[Breach]:
        """Return where a model breaks a rule that asks this."""
        if self.node is not None:
            for node in view.of_types(getattr(rule, "ops", ())):
                for found, allowed in self.node(rule, view, node):
                    yield Breach(name_of(node), found, allowed)
        if self.tensor is not None:
            for quantizer in self.tensors(rule, view):
                for found, allowed in self.tensor(rule, view, quantizer):
                    yield view.breach(quantizer, found, allowed)
        if self.model is not None:
            yield from self.model(rule, view)


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rule: what it asks, what follows where it is broken, what to do about it, who says so."""

    ASKS: ClassVar[Mapping[str, Ask]] = {}
    """Each thing that rules of this class can ask, by its name."""

    asks: str
    """What its file calls its kind."""
    consequence: Consequence
    fix: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        for name in self.ASKS[self.asks].needs:
            if getattr(self, name) in (None, ()):
                raise TargetError(f"a rule of the kind {self.asks} needs {name!r}.")

    def find(self, name: str, view: QuantizedView) -> Iterator[Finding]:
        """Return what in a model breaks the rule, which has this name in its target."""
        for breach in self.ASKS[self.asks].breaches(self, view):
            yield Finding(
                name,
                breach.node,
                f"{breach.found}; allowed: {breach.allowed}",
                level="warning" if self.consequence in ("float", "slow") else "error",
                remedy=self.fix,
                tensor=breach.tensor,
                found=breach.found,
                allowed=breach.allowed,
                consequence=self.consequence,
                source=self.source,
            )

    def change(self, recipe: Recipe) -> Changes:
        """Return what a recipe has to change to keep the rule."""
        ask = self.ASKS[self.asks]
        if recipe.mode == "weight-only":
            return ask.change_weights(self, recipe)
        return ask.change(self, recipe) if recipe.mode == "static" else {}

    def why_unfit(self, recipe: Recipe) -> str | None:
        """Return what of a recipe breaks the rule, where no change makes it fit."""
        ask = self.ASKS[self.asks]
        if recipe.mode == "weight-only":
            return ask.why_weights_unfit(self, recipe)
        return ask.why_unfit(self, recipe) if recipe.mode == "static" else None
