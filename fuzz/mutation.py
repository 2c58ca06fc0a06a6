"""Mutations that know the structure of what they change: messages, JSON, bytes."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message

INTEGERS = (0, 1, -1, 2, 3, 7, 16, 255, 2**31 - 1, 2**31, 2**32, 2**40, 2**62, -(2**63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-45, 1e38, float("inf"), float("-inf"), float("nan"), 1e300)
TEXTS = (
    "",
    "x",
    "y",
    "Conv",
    "MatMul",
    "a/b:c",
    "\x00",
    "é" * 9,
    "../../x",
    "x" * 3000,
    "[[[",
    "%s",
)


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """Flip, cut, repeat or overwrite a few bytes."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        place = rng.randrange(len(found) + 1)
        count = rng.choice((1, 2, 4, 8, 64))
        kind = rng.randrange(6)
        if kind == 0 and place < len(found):
            found[place] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del found[place:]
        elif kind == 2:
            del found[place : place + count]
        elif kind == 3:
            found[place:place] = rng.randbytes(count)
        elif kind == 4:
            found[place:place] = found[place : place + count]
        else:
            found[place : place + count] = bytes([rng.choice((0, 0xFF, 0x7F, 0x80))]) * count
    return bytes(found)


def mutate_message(message: Message, rng: random.Random, times: int | None = None) -> None:
    """Change a few fields of a protobuf message, anywhere in it."""
    for _ in range(times or rng.choice((1, 1, 1, 2, 3, 8))):
        places = list(_places(message))
        if not places:
            return
        # Each kind of field as often, however many of them there are.
        names = sorted({field.full_name for _, field in places})
        name = rng.choice(names)
        owner, field = rng.choice([place for place in places if place[1].full_name == name])
        _change(owner, field, rng, places)


def _places(message: Message) -> Any:
    for field, value in message.ListFields():
        yield message, field
        if field.message_type is not None:
            for one in value if field.is_repeated else (value,):
                yield from _places(one)


def _change(owner: Any, field: Any, rng: random.Random, places: list[Any]) -> None:
    name = field.name
    if not field.is_repeated:
        if rng.random() < 0.2:
            owner.ClearField(name)
        elif field.message_type is not None:
            others = [getattr(o, f.name) for o, f in places if f is field]
            getattr(owner, name).CopyFrom(copy.deepcopy(rng.choice(others)))
        else:
            _set(lambda value: setattr(owner, name, value), getattr(owner, name), rng)
        return
    items = getattr(owner, name)
    if not len(items):
        return
    place, kind = rng.randrange(len(items)), rng.randrange(5)
    if kind == 0:
        del items[place]
    elif kind == 1:
        items.append(copy.deepcopy(items[place]))
    elif kind == 2 and len(items) > 1:
        kept = [copy.deepcopy(item) for item in items]
        rng.shuffle(kept)
        del items[:]
        items.extend(kept)
    elif kind == 3 and rng.random() < 0.3:
        del items[:]
    elif field.message_type is None:
        if field.type == field.TYPE_STRING and rng.random() < 0.5:
            texts = [text for o, f in places if f is field for text in getattr(o, f.name)]
            items[place] = rng.choice(texts)
        else:
            _set(lambda value: items.__setitem__(place, value), items[place], rng)


def _set(put: Callable[[Any], None], old: Any, rng: random.Random) -> None:
    try:
        put(change_value(old, rng))
    except (ValueError, TypeError, OverflowError):
        put(old)  # an enumeration, or fewer bits than that


def change_value(old: Any, rng: random.Random) -> Any:
    """Return another value of the same kind."""
    if isinstance(old, bool):
        return not old
    if isinstance(old, int):
        return rng.choice((*INTEGERS, old + 1, old - 1, -old, old * 2))
    if isinstance(old, float):
        return rng.choice((*FLOATS, -old, old * 2, old * 1e6, old * 1e-6))
    if isinstance(old, bytes):
        return mutate_bytes(old, rng)
    if isinstance(old, str):
        return rng.choice((*TEXTS, old + "x", old[:-1], old[::-1]))
    return old


def mutate_json(document: Any, rng: random.Random) -> Any:
    """Return a document with a few of its values, keys or lists changed."""
    document = copy.deepcopy(document)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places: list[tuple[Any, Any]] = []
        _collect(document, places)
        if not places:
            return rng.choice((None, [], {}, 0, "x"))
        owner, key = rng.choice(places)
        kind = rng.randrange(6)
        if kind == 0:
            del owner[key]
        elif kind == 1:
            owner[key] = rng.choice((None, True, [], {}, "", [[]], {"": None}, -1, 1e300, "x"))
        elif kind == 2 and isinstance(owner, dict):
            owner[rng.choice(TEXTS)] = copy.deepcopy(owner[key])
        elif kind == 3:
            other_owner, other_key = rng.choice(places)
            if other_key in (
                other_owner if isinstance(other_owner, dict) else range(len(other_owner))
            ):
                owner[key] = copy.deepcopy(other_owner[other_key])
        else:
            owner[key] = change_value(owner[key], rng)
    return document


def _collect(value: Any, places: list[tuple[Any, Any]]) -> None:
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in pairs:
        places.append((value, key))
        if isinstance(inner, (dict, list)):
            _collect(inner, places)
