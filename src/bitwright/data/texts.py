"""Text files as calibration data for language models: tokenized, and cut into equal windows."""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from bitwright.data.samples import Samples
from bitwright.data.shapes import Shapes, fix_shapes
from bitwright.data.specs import Array, InputSpec
from bitwright.data.token_inputs import Heads, Window, find_maker, fixed_length, maker_of
from bitwright.errors import DataError, MissingPackageError
from bitwright.support.arguments import check_arguments
from bitwright.support.files import check_regular_file

PIECE = 1 << 20
"""Characters that are tokenized at once: a tokenizer takes about 100 bytes for each of them."""


@check_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class TextData:
    """A text and the tokenizer of a language model, as samples of `length` tokens each.

    `tokenizer` is a `tokenizer.json` file, or anything with `encode(text)`; None is for a folder of
    models that has its own. Besides the tokens, a model gets the mask, positions and token types
    that it asks for by their usual names, and an empty cache. Of a long text only as much is read
    as the samples need.

    >>> TextData(text="calibration.txt", tokenizer="tokenizer.json", length=128).batch
    1
    """

    text: str | Path
    tokenizer: Any = None
    length: int | None = None
    """Tokens in a window; None: as many as the model's inputs fix, or 512."""
    batch: int = 1
    """Windows in one sample."""
    shapes: Shapes | None = None
    """Input name -> shape, or name of an open dimension -> size, where text does not say it."""
    config: str | Path | None = None
    """The folder with the model's configuration, which has the sizes of a cache; None: that of the
    tokenizer."""

    def __post_init__(self) -> None:
        if (self.length is not None and self.length < 2) or self.batch < 1:
            raise DataError(
                f"windows of text need at least 2 tokens and 1 window a sample, not "
                f"length={self.length}, batch={self.batch}."
            )

    def samples(self, specs: Sequence[InputSpec], *, limit: int | None = None) -> Samples:
        """Return the samples for a model with these inputs."""
        specs, symbols = fix_shapes(specs, self.shapes)
        length = self.window(specs)
        size = length * self.batch
        tokens = self._tokens(None if limit is None else max(limit, 1) * size)
        count = len(tokens) // size
        if not count:
            raise DataError(
                f"the text {str(self.text)!r} has {len(tokens)} tokens, fewer than one sample of "
                f"{size}; give more text, or a smaller length."
            )
        makers, heads = [(spec, maker_of(spec)) for spec in specs], self._read_heads()

        def produce() -> Iterator[tuple[Mapping[str, Any], str | None]]:
            for start in range(0, count * size, size):
                part = tokens[start : start + size].reshape(self.batch, length)
                window = Window(part, symbols, heads)
                yield {spec.name: make(window, spec) for spec, make in makers}, None

        return Samples(
            produce, specs, description=f"the text {Path(self.text).name}", len_hint=count
        ).limited(limit)

    def window(self, specs: Sequence[InputSpec]) -> int:
        """Return how many tokens a window has for a model with these inputs."""
        return self.length or fixed_length(specs) or 512

    def unfilled(self, specs: Sequence[InputSpec]) -> list[InputSpec]:
        """Return the inputs that no text fills.

        An empty cache of what an encoder gave is as good as none where the model reads that, too.
        """
        reads_encoder = any(spec.name == "encoder_hidden_states" for spec in specs)
        return [
            spec
            for spec in specs
            if find_maker(spec.name) is None
            or (re.search(r"past.*encoder", spec.name.lower()) and not reads_encoder)
        ]

    def _tokens(self, wanted: int | None) -> Array:
        """Return the tokens of the text, or of as much of it as has the wanted number."""
        tokenizer, found, count = self._load_tokenizer(), [np.zeros(0, np.int32)], 0
        pieces = self._pieces()
        piece = next(pieces, "")
        while piece and (wanted is None or count < wanted):
            following = next(pieces, "")
            part = _encode(tokenizer, piece, first=not count, last=not following)
            found.append(part)
            count += len(part)
            piece = following
        return np.concatenate(found)[:wanted]

    def _pieces(self) -> Iterator[str]:
        """Read the text in pieces of a bounded size, which end where lines do."""
        path, rest = Path(self.text), ""
        check_regular_file(path, DataError)
        try:
            with _open_text(path) as file:
                while block := file.read(PIECE):
                    rest += block
                    end = _end_of_piece(rest) if len(block) == PIECE else len(rest)
                    yield rest[:end]
                    rest = rest[end:]
        except (UnicodeDecodeError, EOFError, zlib.error) as error:
            raise DataError(f"{str(path)!r} is not a text in UTF-8.") from error
        except OSError as error:
            reason = error.strerror or str(error)
            raise DataError(f"cannot read the text {str(path)!r}: {reason}.") from error
        if rest:
            yield rest

    def _read_heads(self) -> Heads:
        """Return what the configuration of the model says of the cache."""
        folder = None if self.config is None else Path(self.config)
        if folder is None and isinstance(self.tokenizer, (str, os.PathLike)):
            folder = Path(self.tokenizer).parent
        names = () if folder is None else ("genai_config.json", "config.json")
        paths = [path for path in (Path(folder or "", name) for name in names) if path.is_file()]
        return Heads.read(paths[0]) if paths else Heads()

    def _load_tokenizer(self) -> Any:
        if self.tokenizer is None:
            raise DataError(
                f"the text {str(self.text)!r} needs the tokenizer of the model; give its "
                "tokenizer.json (tokenizer, --tokenizer)."
            )
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


def _open_text(path: Path) -> IO[str]:
    # newline="": the tokenizer sees the ends of lines as they are.
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


# Tokenizers join spaces with what follows them, and several ends of lines with one another: where
# a text line begins without spaces, and before the space between two words, no token is cut.
_BORDERS = (re.compile(r".*\n(?=\S)", re.DOTALL), re.compile(r".*\S(?=\s)", re.DOTALL))


def _end_of_piece(text: str) -> int:
    matches = (border.match(text) for border in _BORDERS)
    return next((match.end() for match in matches if match), len(text))


def _encode(tokenizer: Any, piece: str, *, first: bool, last: bool) -> Array:
    """Return a piece's tokens; those that mark the ends of a text only at its ends."""
    try:
        found = tokenizer.encode(piece)
        tokens = np.asarray(getattr(found, "ids", found), np.int32)
    except Exception as error:  # the package raises nothing more special
        reason = str(error).strip().rstrip(".") or type(error).__name__
        raise DataError(f"the tokenizer cannot encode the text: {reason}.") from error
    marks = np.asarray(getattr(found, "special_tokens_mask", ()), bool)
    inner = np.flatnonzero(~marks)
    if not inner.size or len(marks) != len(tokens):
        return tokens
    return tokens[None if first else inner[0] : None if last else inner[-1] + 1]
