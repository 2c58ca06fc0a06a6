"""Plans that somebody edited."""

from __future__ import annotations

import msgspec


def edited(plan, **changes):
    """Return a plan with these items in its mappings, by the name of the mapping."""
    merged = {name: {**getattr(plan, name), **items} for name, items in changes.items()}
    return msgspec.structs.replace(plan, **merged)
