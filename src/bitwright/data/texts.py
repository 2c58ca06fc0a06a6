"""Text files as calibration data for language models: tokenized, and cut into equal windows."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bitwright.data.sources import Samples
from bitwright.data.specs import Array, InputSpec
from bitwright.errors import DataError, MissingPackageError
from bitwright.support.arguments import check_arguments

__all__ = ["TextData"]

_TOKENS = ("input_ids", "tokens", "ids")
_CACHES = ("past_key_values", "past_key", "past_value", "past.", "cache", "past_")


@check_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class TextData:
    """A text and the tokenizer of a language model, as samples of `length` tokens each.

    `tokenizer` is a `tokenizer.json` file, or anything with `encode(text)`. Besides the tokens, a
    model gets the mask, positions and token types that it asks for by their usual names, and an
    empty cache.

    >>> TextData(text="calibration.txt", tokenizer="tokenizer.json").length
    512
    """

    text: str | Path
    tokenizer: Any
    length: int = 512
    batch: int = 1
    """Windows in one sample."""

    def __post_init__(self) -> None:
        if self.length < 2 or self.batch < 1:
            raise DataError(
                f"windows of text need at least 2 tokens and 1 window a sample, not "
                f"length={self.length}, batch={self.batch}."
            )

    def samples(self, specs: Sequence[InputSpec], *, limit: int | None = None) -> Samples:
        """Return the samples for a model with these inputs."""
        tokens = self._tokens()
        size = self.length * self.batch
        count = len(tokens) // size
        if not count:
            raise DataError(
                f"the text {str(self.text)!r} has {len(tokens)} tokens, fewer than one sample of "
                f"{size}; give more text, or a smaller length."
            )
        makers = {spec.name: self._maker(spec) for spec in specs}

        def produce() -> Iterator[tuple[Mapping[str, Any], str | None]]:
            for start in range(0, count * size, size):
                window = tokens[start : start + size].reshape(self.batch, self.length)
                yield {name: make(window) for name, make in makers.items()}, None

        return Samples(
            produce,
            specs,
            description=f"the text {Path(self.text).name}",
            len_hint=count,
            limit=limit,
        )

    def _tokens(self) -> Array:
        found = self._load_tokenizer().encode(self._read())
        return np.asarray(getattr(found, "ids", found), np.int64)

    def _read(self) -> str:
        path = Path(self.text)
        try:
            data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            return data.decode("utf-8")
        except OSError as error:
            reason = error.strerror or str(error)
            raise DataError(f"cannot read the text {str(path)!r}: {reason}.") from error
        except (UnicodeDecodeError, EOFError) as error:
            raise DataError(f"{str(path)!r} is not a text in UTF-8.") from error

    def _load_tokenizer(self) -> Any:
        if not isinstance(self.tokenizer, (str, os.PathLike)):
            return self.tokenizer
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise MissingPackageError(
                "reading text needs the package tokenizers; pip install 'bitwright[text]'."
            ) from error
        path = Path(self.tokenizer)
        if not path.is_file():
            raise DataError(f"there is no tokenizer file {str(path)!r}; give a tokenizer.json.")
        try:
            return Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises nothing more special
            raise DataError(f"{str(path)!r} is not a tokenizer.json: {error}.") from error

    def _maker(self, spec: InputSpec) -> Any:
        """Return what makes this input's array from a window of tokens."""
        name, dtype = spec.name.lower(), spec.dtype
        if "mask" in name:
            return lambda window: np.ones(window.shape, dtype)
        if "position" in name:
            return lambda window: np.broadcast_to(
                np.arange(window.shape[1], dtype=dtype), window.shape
            ).copy()
        if "token_type" in name or "segment" in name:
            return lambda window: np.zeros(window.shape, dtype)
        if any(name.endswith(known) for known in _TOKENS):
            return lambda window: window.astype(dtype)
        if name == "use_cache_branch":
            return lambda window: np.zeros(1, dtype)
        if any(word in name for word in _CACHES) and spec.shape is not None:
            return lambda window: np.zeros(_empty_cache(spec, len(window)), dtype)
        raise DataError(
            f"the model's input {spec} is none that text fills (tokens, mask, positions, token "
            "types, cache); give arrays instead."
        )


def _empty_cache(spec: InputSpec, batch: int) -> tuple[int, ...]:
    """Return the shape of a cache that holds nothing yet: its first free size is the batch."""
    assert spec.shape is not None
    free = iter((batch,))
    return tuple(size if isinstance(size, int) else next(free, 0) for size in spec.shape)
