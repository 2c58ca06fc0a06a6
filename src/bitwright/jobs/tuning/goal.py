"""What a model is tuned for: how far a metric may fall, what is to be saved, and in which time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from bitwright.errors import ArgumentError, RecipeError, did_you_mean
from bitwright.recipe import Purpose
from bitwright.support.wording import read_bytes

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """How far the metric may fall, and what is worth the more of two models within that."""

    max_drop: float = 0.01
    relative: bool = False
    """Whether the drop is a share of the float model's score."""
    is_share: bool = False
    """Whether it was given in percent, of a metric between 0 and 1."""
    purpose: Purpose = "speed"
    max_size: int | None = None
    """Bytes that the model may have: of all that fit, the one that loses least is looked for."""
    keep_quantized: bool = False
    """Whether a quantized model is wanted where float is as fast, too."""
    seconds: float | None = None

    @classmethod
    def asked(
        cls,
        max_drop: float | str,
        relative: bool,
        purpose: str,
        max_size: int | str | None,
        keep_quantized: bool,
        time: float | str | None,
    ) -> Goal:
        """Return the goal that a user's words say."""
        check_word("purpose", purpose, get_args(Purpose))
        drop, is_share = read_drop(max_drop)
        if max_size is not None and purpose != "size":
            raise ArgumentError('max_size is a number of bytes: tune for size (purpose="size").')
        if keep_quantized and purpose == "size":
            raise ArgumentError(
                "keep_quantized is about speed: for size, what is quantized is smaller."
            )
        return cls(
            max_drop=drop,
            relative=relative,
            is_share=is_share and not relative,
            purpose=purpose,  # type: ignore[arg-type]  # checked above
            max_size=None if max_size is None else read_bytes(max_size),
            keep_quantized=keep_quantized,
            seconds=read_time(time),
        )

    @property
    def is_timed(self) -> bool:
        """Whether time is to be saved, and not bytes."""
        return self.purpose != "size"

    def limit(self, float_score: float) -> float:
        """Return how far the metric may fall, in its own units."""
        if self.relative:
            return self.max_drop * abs(float_score)
        if self.is_share and abs(float_score) > 1:
            raise RecipeError(
                f"a drop in percent is of a metric between 0 and 1, and float scores "
                f"{float_score:.4g}; give the drop in the metric's own units, or make it relative."
            )
        return self.max_drop


def check_word(option: str, word: str, known: Sequence[str]) -> None:
    """Refuse a word that an option does not know."""
    if word not in known:
        raise ArgumentError(
            f"{option} is {' or '.join(map(repr, known))}, not {word!r}.{did_you_mean(word, known)}"
        )


def read_drop(drop: float | str) -> tuple[float, bool]:
    """Return a drop as a number, and whether it was given in percent."""
    text = str(drop).strip()
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)(e-?\d+)?\s*(%?)", text)
    if found is None:
        raise RecipeError(f"{text!r} is no drop of a metric; write 0.5%, or 0.005.")
    number = float(f"{found.group(1)}{found.group(2) or ''}")
    return (number / 100, True) if found.group(3) else (number, False)


def read_time(time: float | str | None) -> float | None:
    """Return seconds."""
    if time is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", str(time).strip().lower())
    if found is None or found.group(2) not in _UNITS or float(found.group(1)) <= 0:
        raise RecipeError(f"{str(time)!r} is no length of time; write 90s, 20m or 1.5h.")
    return float(found.group(1)) * _UNITS[found.group(2)]
