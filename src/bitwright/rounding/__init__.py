"""From float weights and a plan to integers."""

from __future__ import annotations

from bitwright.rounding.nearest import round_to_nearest

__all__ = ["round_to_nearest"]
