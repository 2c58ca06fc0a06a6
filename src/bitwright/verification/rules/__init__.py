"""The rules of a target, read from its file: one class a file, ten of them.

What a rule asks is a row in the `ASKS` of its class: what breaks it, and what a recipe does to keep
it. So a rule of hardware that none can say yet is a function and a row beside the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bitwright.errors import RecipeError, TargetError, did_you_mean
from bitwright.support.settings import convert
from bitwright.targets import Target
from bitwright.verification.rules.agreement import Agreement
from bitwright.verification.rules.attributes import Attributes
from bitwright.verification.rules.blocks import Blocks
from bitwright.verification.rules.encodings import Encodings
from bitwright.verification.rules.low_bit_products import LowBitProducts
from bitwright.verification.rules.operators import Operators
from bitwright.verification.rules.pairs import Pairs
from bitwright.verification.rules.product_sizes import ProductSizes
from bitwright.verification.rules.rule import Rule
from bitwright.verification.rules.scales import Scales
from bitwright.verification.rules.tensors import Tensors

__all__ = ["KINDS", "Rule", "read_rules"]

KINDS: tuple[type[Rule], ...] = (
    Encodings,
    Tensors,
    Scales,
    Blocks,
    LowBitProducts,
    ProductSizes,
    Agreement,
    Pairs,
    Operators,
    Attributes,
)
_CLASS_OF = {asks: kind for kind in KINDS for asks in kind.ASKS}


def read_rules(target: Target) -> dict[str, Rule]:
    """Return the rules of a target by their names."""
    return {name: _read_rule(data, target, name) for name, data in target.rules.items()}


def _read_rule(data: Mapping[str, Any], target: Target, name: str) -> Rule:
    source = f"{target.file or target.name}: rules.{name}"
    asks = data.get("kind")
    if asks not in _CLASS_OF:
        raise TargetError(f"{source}: unknown kind {asks!r}.{did_you_mean(str(asks), _CLASS_OF)}")
    fields = {"asks": asks, **{key: value for key, value in data.items() if key != "kind"}}
    if _CLASS_OF[asks] is ProductSizes:
        common = {key: data[key] for key in ("consequence", "fix", "source") if key in data}
        fields = {"asks": asks, **common, "sizes": data}
    try:
        return convert(fields, _CLASS_OF[asks], source)
    except RecipeError as error:
        raise TargetError(str(error)) from error
    except TargetError as error:
        raise TargetError(f"{source}: {error}") from error
