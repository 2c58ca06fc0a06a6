"""Text files as calibration data: tokenized, and cut into equal windows, or line by line."""

from __future__ import annotations

import glob
import gzip
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np

from bitwright.data.files import is_sample_file
from bitwright.data.samples import Samples
from bitwright.data.shapes import Shapes, fix_shapes
from bitwright.data.specs import Array, InputSpec
from bitwright.data.token_inputs import Heads, Window, find_maker, fixed_length, is_cache, maker_of
from bitwright.errors import DataError, MissingPackageError
from bitwright.support import check_arguments, check_regular_file, counted

Rows: TypeAlias = Array | Sequence[Array]
"""Tokens of windows or lines."""

PIECE = 1 << 20
"""Characters that are tokenized at once: a tokenizer takes about 100 bytes for each of them."""
MIN_WINDOWS = 8
"""Fewer windows do not show of how many kinds a text is."""
MAX_LINES = 256
"""Lines that calibrate an encoder, where no number is asked for: about those of 16 windows."""
_SHARED = 0.22
_CHARACTERS = 16
"""Characters that are tokenized for each token of a window that is taken from within a text."""


@check_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class TextData:
    """Texts and the tokenizer of a language model, as samples of `length` tokens each.

    `tokenizer` is a `tokenizer.json` file, or anything with `encode(text)`; None is for a folder of
    models that has its own. Besides the tokens, a model gets the mask, positions and token types
    that it asks for by their usual names, and an empty cache. Where fewer samples are wanted than
    there are, they are spread evenly over each text. An encoder reads sentences and no windows:
    where the tokenizer closes a text with a token of its own, the model has no cache, and no length
    is asked for, each line is a sample.

    >>> TextData(text="calibration.txt", tokenizer="tokenizer.json", length=128).batch
    1
    """

    text: str | Path | Sequence[str | Path]
    """A file, or several of different kinds, whose windows come in turn: a list, a folder of texts,
    or a pattern such as `texts/*.txt`."""
    tokenizer: Any = None
    length: int | None = None
    """Tokens in a window; None: as many as the model's inputs fix, or 512; of a line at most."""
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
        files = self.files()
        rows = self._rows(specs, None if limit is None else max(limit, 1) * self.batch)
        if len(rows) < self.batch:
            length = self.window(fix_shapes(specs, self.shapes)[0])
            raise DataError(
                f"the text {self.name!r} has fewer tokens than one sample of "
                f"{length * self.batch}; give more text, or a smaller length (--tokens)."
            )
        names = files[0].name if len(files) == 1 else f"{counted(len(files), 'file')} {self.name}"
        return self.samples_of(rows, specs, f"the text {names}").limited(limit)

    def samples_of(self, rows: Rows, specs: Sequence[InputSpec], description: str) -> Samples:
        """Return the samples for windows or lines of tokens that are known."""
        specs, symbols = fix_shapes(specs, self.shapes)
        makers, heads = [(spec, maker_of(spec)) for spec in specs], self.heads()
        count = len(rows) // self.batch

        def produce() -> Iterator[tuple[Mapping[str, Any], str | None]]:
            for first in range(0, count * self.batch, self.batch):
                window = Window(np.stack([*rows[first : first + self.batch]]), symbols, heads)
                yield {spec.name: make(window, spec) for spec, make in makers}, None

        return Samples(produce, specs, description=description, len_hint=count)

    @property
    def name(self) -> str:
        """The texts as the user named them."""
        given = self.text
        return str(given) if isinstance(given, str | Path) else ", ".join(map(str, given))

    def files(self) -> list[Path]:
        """Return the files of the texts."""
        given = [self.text] if isinstance(self.text, str | Path) else self.text
        found = [file for one in given for file in text_files(Path(one))]
        if not found:
            raise DataError(f"there is no text at {self.name!r}; give a file, or a folder of them.")
        return found

    def window(self, specs: Sequence[InputSpec]) -> int:
        """Return how many tokens a window has for a model with these inputs."""
        return self.length or fixed_length(specs) or 512

    def is_of_one_kind(self, specs: Sequence[InputSpec], limit: int | None) -> bool:
        """Whether the windows are all of one language and kind of text.

        Three quarters of the pairs then share more of their tokens (Bhattacharyya) than pairs of a
        mixture do: 0.29 to 0.50 of them in one manual, dictionary or program library; 0.10 to 0.16
        where prose, manuals of another language and source are mixed in twos and threes.
        """
        specs, _ = fix_shapes(specs, self.shapes)
        rows = self._rows(specs, limit)
        if len(rows) < MIN_WINDOWS:
            return False
        most = max(int(row.max()) for row in rows) + 1
        counts = np.stack([np.bincount(row, minlength=most) for row in rows])
        shares = np.sqrt(counts / counts.sum(axis=1, keepdims=True))
        pairs = (shares @ shares.T)[np.triu_indices(len(rows), 1)]
        return bool(np.quantile(pairs, 0.25) > _SHARED)

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

    def _rows(self, specs: Sequence[InputSpec], wanted: int | None) -> Rows:
        """Return so many windows or lines: the same number of each text, mixed by chance."""
        tokenizer, files = self._load_tokenizer(), self.files()
        length, take = self.window(fix_shapes(specs, self.shapes)[0]), _windows_of
        if self._reads_lines(specs, tokenizer):
            take, wanted = _lines_of, wanted or MAX_LINES
        for path in files:
            check_regular_file(path, DataError)
        found: list[Rows] = []
        # Small files first: what they cannot give, larger ones do.
        for left, path in enumerate(sorted(files, key=_size)):
            rest = None if wanted is None else wanted - sum(map(len, found))
            share = None if rest is None else -(-rest // (len(files) - left))
            found.append(take(path, tokenizer, length, share))
        # By chance within each turn: every eighth window, which is held out, may be of any file.
        chance = np.random.default_rng(0)
        turns = np.concatenate([np.arange(len(rows)) / max(len(rows), 1) for rows in found])
        ties = chance.permutation(len(turns)) if len(found) > 1 else turns
        order = np.lexsort((ties, turns))
        rows = [row for part in found for row in part]
        return [rows[index] for index in order[:wanted]]

    def _reads_lines(self, specs: Sequence[InputSpec], tokenizer: Any) -> bool:
        """Whether a model is an encoder of sentences, of which a line is one."""
        given = self.length or fixed_length(fix_shapes(specs, self.shapes)[0])
        if given or self.batch > 1 or any(is_cache(spec.name) for spec in specs):
            return False
        marks = _marks(_tokens_of(tokenizer, "a"))
        return len(marks) > 1 and bool(marks[-1])

    def heads(self) -> Heads:
        """Return what the configuration of the model says of the cache."""
        folder = None if self.config is None else Path(self.config)
        if folder is None and isinstance(self.tokenizer, (str, os.PathLike)):
            folder = Path(self.tokenizer).parent
        return Heads() if folder is None else Heads.read_beside(folder)

    def _load_tokenizer(self) -> Any:
        if self.tokenizer is None:
            raise DataError(
                f"the text {self.name!r} needs the tokenizer of the model; give its "
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
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises nothing more special
            raise DataError(f"{str(path)!r} is not a tokenizer.json: {error}.") from error
        # Files of encoders cut and fill to 128 or 512 tokens: of a text one window would be left.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer


def text_files(path: Path) -> list[Path]:
    """Return the file, or those of a folder or pattern, by their names."""
    if not path.exists() and glob.has_magic(str(path)):
        return sorted(map(Path, glob.glob(str(path), recursive=True)))  # noqa: PTH207
    files = path.iterdir() if path.is_dir() else [path]
    return sorted(f for f in files if f == path or (f.is_file() and f.name[0] != "."))


def is_text(source: Any) -> bool:
    """Whether data is a path of texts: any files but of arrays and images."""
    if not isinstance(source, str | os.PathLike):
        return False
    found = text_files(Path(source))
    return bool(found) and not any(is_sample_file(f) or not f.is_file() for f in found)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _lines_of(path: Path, tokenizer: Any, length: int, wanted: int | None) -> Rows:
    """Return lines of a text with the tokens at their ends, spread evenly over it."""
    lines = [line.strip() for piece in _pieces(path) for line in piece.splitlines()]
    lines = [line for line in lines if line]
    if wanted is not None and len(lines) > wanted:
        lines = [lines[index] for index in np.linspace(0, len(lines) - 1, wanted).astype(int)]
    rows = [_encode(tokenizer, line, first=True, last=True) for line in lines]
    return [row if len(row) <= length else np.append(row[: length - 1], row[-1]) for row in rows]


def _windows_of(path: Path, tokenizer: Any, length: int, wanted: int | None) -> Rows:
    """Return windows of a text, spread evenly over it: so many, or all where there are fewer."""
    width = length * _CHARACTERS
    size = 0 if wanted is None else sum(map(len, _pieces(path)))
    if wanted and size >= wanted * width:  # of each part of the text only what a window takes
        parts = enumerate(islice(_pieces(path, size // wanted), wanted))
        found = [_encode(tokenizer, p[:width], first=not i, last=False) for i, p in parts]
        if all(len(row) >= length for row in found):
            return [row[:length] for row in found]
    tokens, pieces = [np.zeros(0, np.int32)], _pieces(path)
    piece = next(pieces, "")
    while piece:
        following = next(pieces, "")
        tokens.append(_encode(tokenizer, piece, first=len(tokens) == 1, last=not following))
        piece = following
    flat = np.concatenate(tokens)
    rows: Array = flat[: len(flat) // length * length].reshape(-1, length)
    if wanted is None or len(rows) <= wanted:
        return rows
    return np.take(rows, np.linspace(0, len(rows) - 1, wanted).astype(int), axis=0)


def _pieces(path: Path, size: int | None = None) -> Iterator[str]:
    """Read a text in pieces of about this size, which end where lines do."""
    rest, size = "", size or PIECE
    try:
        with _open_text(path) as file:
            while block := file.read(size):
                rest += block
                end = _end_of_piece(rest) if len(block) == size else len(rest)
                yield rest[:end]
                rest = rest[end:]
    except (UnicodeDecodeError, EOFError, zlib.error) as error:
        raise DataError(f"{str(path)!r} is not a text in UTF-8.") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise DataError(f"cannot read the text {str(path)!r}: {reason}.") from error
    if rest:
        yield rest


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
    found = _tokens_of(tokenizer, piece)
    tokens, marks = np.asarray(getattr(found, "ids", found), np.int32), _marks(found)
    inner = np.flatnonzero(~marks)
    if not inner.size or len(marks) != len(tokens):
        return tokens
    return tokens[None if first else inner[0] : None if last else inner[-1] + 1]


def _tokens_of(tokenizer: Any, piece: str) -> Any:
    try:
        found = tokenizer.encode(piece)
        np.asarray(getattr(found, "ids", found), np.int32)
    except Exception as error:  # the package raises nothing more special
        reason = str(error).strip().rstrip(".") or type(error).__name__
        raise DataError(f"the tokenizer cannot encode the text: {reason}.") from error
    return found


def _marks(found: Any) -> Array:
    """Return which tokens mark the ends of a text; nothing where the tokenizer does not say."""
    return np.asarray(getattr(found, "special_tokens_mask", ()), bool)
