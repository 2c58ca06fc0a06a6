"""Completion of shells: the words that options take."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["complete_recipe", "complete_target", "completing"]


def complete_recipe(incomplete: str) -> list[str]:
    """Return the recipes whose names begin so, for the completion of shells.

    >>> complete_recipe("int4-g")
    ['int4-gptq']
    """
    from bitwright.recipe import RECIPES

    return [name for name in RECIPES if name.startswith(incomplete)]


def complete_target(incomplete: str) -> list[str]:
    """Return the targets whose names begin so.

    >>> complete_target("npu-t")
    ['npu-transformer']
    """
    from bitwright.recipe import TARGETS

    return [name for name in TARGETS if name.startswith(incomplete)]


def completing(*words: str) -> Callable[[str], list[str]]:
    """Return what completes one of a few words.

    >>> completing("low", "standard", "medium", "high")("m")
    ['medium']
    """

    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return complete
