"""Dicts and lists that cannot be changed, for values that are handed on."""

from __future__ import annotations

from typing import Any, NoReturn


def _refuse(self: Any, *_: Any, **__: Any) -> NoReturn:
    kind = "dict" if isinstance(self, dict) else "list"
    raise TypeError(f"this {kind} belongs to a frozen value and cannot be changed; make a new one.")


class FrozenDict(dict[Any, Any]):
    """A dict that is only read; equal to a dict of the same items, and shown as one by JSON."""

    __setitem__ = __delitem__ = __ior__ = pop = popitem = clear = update = setdefault = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)


class FrozenList(list[Any]):
    """A list that is only read."""

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = extend = insert = pop = remove = clear = sort = reverse = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenList, (list(self),)


def frozen(value: Any) -> Any:
    """Return a dict or list, and those inside it, as frozen ones; other values as they are."""
    if isinstance(value, FrozenDict | FrozenList):
        return value
    if isinstance(value, dict):
        return FrozenDict({key: frozen(inner) for key, inner in value.items()})
    return FrozenList(map(frozen, value)) if isinstance(value, list) else value
