"""Text files as calibration data for language models: tokenized, and cut into equal windows."""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeAlias

import numpy as np

from bitwright.data.shapes import Shapes, fix_shapes
from bitwright.data.sources import Samples
from bitwright.data.specs import Array, InputSpec, Sample
from bitwright.errors import DataError, MissingPackageError
from bitwright.support.arguments import check_arguments
from bitwright.support.files import check_regular_file

__all__ = ["TextData", "fill_token_inputs", "is_cache"]

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
        makers, heads = [(spec, _maker(spec)) for spec in specs], self._read_heads()

        def produce() -> Iterator[tuple[Mapping[str, Any], str | None]]:
            for start in range(0, count * size, size):
                part = tokens[start : start + size].reshape(self.batch, length)
                window = _Window(part, symbols, heads)
                yield {spec.name: make(window, spec) for spec, make in makers}, None

        return Samples(
            produce,
            specs,
            description=f"the text {Path(self.text).name}",
            len_hint=count,
            limit=limit,
        )

    def window(self, specs: Sequence[InputSpec]) -> int:
        """Return how many tokens a window has for a model with these inputs.

        >>> TextData(text="calibration.txt").window([])
        512
        """
        return self.length or _fixed_length(specs) or 512

    def unfilled(self, specs: Sequence[InputSpec]) -> list[InputSpec]:
        """Return the inputs that no text fills.

        An empty cache of what an encoder gave is as good as none where the model reads that, too.

        >>> image = InputSpec("pixel_values", np.dtype("float32"), (1, 3, 8, 8))
        >>> print(*TextData(text="calibration.txt").unfilled([image]))
        'pixel_values' float32[1,3,8,8]
        """
        reads_encoder = any(spec.name == "encoder_hidden_states" for spec in specs)
        return [
            spec
            for spec in specs
            if _find_maker(spec.name) is None
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

    def _read_heads(self) -> _Heads:
        """Return what the configuration of the model says of the cache."""
        folder = None if self.config is None else Path(self.config)
        if folder is None and isinstance(self.tokenizer, (str, os.PathLike)):
            folder = Path(self.tokenizer).parent
        names = () if folder is None else ("genai_config.json", "config.json")
        paths = [path for path in (Path(folder or "", name) for name in names) if path.is_file()]
        return _Heads.read(paths[0]) if paths else _Heads()

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


def _fixed_length(specs: Sequence[InputSpec]) -> int | None:
    """Return how many tokens the model takes, where its inputs fix it."""
    tokens = (spec.shape for spec in specs if _find_maker(spec.name) is _make_tokens)
    return next((s[1] for s in tokens if s and len(s) == 2 and isinstance(s[1], int)), None)


# What a model asks for beside tokens ----------------------------------------------------------


class _Heads(NamedTuple):
    """Number and size of the heads of a cache; None where unknown."""

    number: int | None = None
    size: int | None = None

    @classmethod
    def read(cls, path: Path) -> _Heads:
        """Read a configuration as transformers or onnxruntime-genai write it."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            found = found.get("model", {}).get("decoder") or found.get("text_config") or found
            sizes = {key: found[key] for key in _SIZES if isinstance(found.get(key), int)}
        except (OSError, ValueError, AttributeError) as error:
            raise DataError(f"{str(path)!r} is no configuration of a model: {error}.") from error
        heads = sizes.get("num_attention_heads", sizes.get("n_head"))
        width = sizes.get("hidden_size", sizes.get("n_embd"))
        size = width // heads if heads and width else None
        return cls(
            sizes.get("num_key_value_heads", heads),
            sizes.get("head_size", sizes.get("head_dim", size)),
        )


_SIZES = (
    *("head_size", "head_dim", "hidden_size", "n_embd"),
    *("num_key_value_heads", "num_attention_heads", "n_head"),
)


class _Window(NamedTuple):
    """One sample's tokens, (batch, length), and the sizes that are known of open dimensions."""

    tokens: Array
    symbols: Mapping[str, int]
    """Sizes of open dimensions that the user gave."""
    heads: _Heads
    """Heads of the cache, from the model's configuration."""
    done: int = 0
    """Number of earlier tokens, which are in the cache."""

    @property
    def batch(self) -> int:
        return int(self.tokens.shape[0])

    @property
    def length(self) -> int:
        return int(self.tokens.shape[1])

    @property
    def total(self) -> int:
        return self.done + self.length

    @property
    def past(self) -> int:
        """Length of the empty cache that the user asked for."""
        sizes = (n for name, n in self.symbols.items() if re.fullmatch("past(_[a-z]*)*", name))
        return next(sizes, 0)


def _make_tokens(window: _Window, spec: InputSpec) -> Array:
    return window.tokens.astype(spec.dtype)


def _make_mask(window: _Window, spec: InputSpec) -> Array:
    """Return a mask that lets a token see those before it, and no slot of a cache, all empty."""
    total = None if spec.shape is None else spec.shape[-1]
    past = total - window.total if isinstance(total, int) else window.past
    if past < 0:
        raise DataError(f"the mask {spec} is shorter than a sample of {window.total} tokens.")
    seen = np.concatenate([np.zeros(past, bool), np.ones(window.total, bool)])
    if spec.shape is None or len(spec.shape) < 3:
        return np.broadcast_to(seen, (window.batch, seen.size)).astype(spec.dtype)
    # Of four axes, (batch, 1, query, key): added to the scores where it is float.
    causal = np.tri(window.length, seen.size, past + window.done, dtype=bool) & seen
    shape = (window.batch, 1, *causal.shape)[-len(spec.shape) :]
    if spec.dtype.kind == "f":
        causal = np.where(causal, 0, np.finfo(spec.dtype).min)
    return np.broadcast_to(causal, shape).astype(spec.dtype)


def _make_positions(window: _Window, spec: InputSpec) -> Array:
    """Return 0, 1, 2, ... along the last axis, the same for every batch and kind of position."""
    shape = (*(d for d in (spec.shape or ())[:-2] if isinstance(d, int)), *window.tokens.shape)
    rank = 2 if spec.shape is None else len(spec.shape)
    positions = np.arange(window.done, window.total, dtype=spec.dtype)
    return np.broadcast_to(positions, shape[-rank:]).copy()


def _make_zeros(window: _Window, spec: InputSpec) -> Array:
    return np.zeros(window.tokens.shape, spec.dtype)


def _make_number(value: Callable[[_Window], int]) -> Maker:
    """Return an array of one number, for an input of one element or of one per batch."""

    def make(window: _Window, spec: InputSpec) -> Array:
        sizes = (d if isinstance(d, int) else window.batch for d in spec.shape or ())
        return np.full(tuple(sizes), value(window), spec.dtype)

    return make


def _make_cache(window: _Window, spec: InputSpec) -> Array:
    """Return an empty cache: of length 0 where that is open, else masked."""
    if spec.shape is None:
        raise DataError(f"the shape of the cache {spec} is not known; give it as {_SHAPES}.")
    return np.zeros(
        tuple(_cache_size(window, spec, axis, dim) for axis, dim in enumerate(spec.shape)),
        spec.dtype,
    )


def _cache_size(window: _Window, spec: InputSpec, axis: int, dim: int | str | None) -> int:
    if isinstance(dim, int):
        return dim
    if dim is not None and dim in window.symbols:
        return window.symbols[dim]
    name = (dim or "").lower()
    if "batch" in name and not re.search(r"[*x]", name.replace("batch", "")):
        return window.batch
    if "encoder" in name and "decoder" not in name:
        return window.length  # what an encoder gives, of the same text
    of_heads = re.search(r"head|dim|hidden", name)
    known = window.heads.size if re.search(r"dim|size", name) else window.heads.number
    if of_heads and known:
        return known
    if not of_heads and any(word in name for word in ("past", "seq", "len", "cache", "time")):
        return 0
    if not of_heads and "batch" not in name:
        # Exporters that name nothing: the first axis is the batch, and only one other is open.
        if axis == 0:
            return window.batch
        shape = spec.shape or ()
        if sum(not isinstance(size, int) for size in shape[1:]) == 1:
            return 0
    label = f"{axis} ({dim!r})" if dim else str(axis)
    raise DataError(
        f"dimension {label} of the cache {spec} is open and no text says it; give {_SHAPES}."
    )


_SHAPES = "its size in shapes (--input-shape NAME=SIZE)"

Maker: TypeAlias = Callable[[_Window, InputSpec], Array]

# What the name of an input holds -> what fills it; the first that fits. Names as transformers,
# optimum, onnxruntime-genai, transformers.js and torch.onnx write them.
_MAKERS: tuple[tuple[str, Maker], ...] = (
    (r"mask", _make_mask),
    (r"position", _make_positions),
    (r"token_type|segment", _make_zeros),
    (r"(input_ids|tokens|ids)$", _make_tokens),
    (r"use_cache_branch$", _make_number(lambda window: window.done > 0)),
    (r"logits_to_keep$", _make_number(lambda window: 0)),  # 0: all of them
    (r"seqlens_k$", _make_number(lambda window: window.total - 1)),
    (r"total_seq(uence)?_len(gth)?$", _make_number(lambda window: window.total)),
    (r"past_key|past_value|past\.|past_\d|past_(conv|ssm|recurrent)|cache", _make_cache),
)


def _find_maker(name: str) -> Maker | None:
    return next((make for pattern, make in _MAKERS if re.search(pattern, name.lower())), None)


def _maker(spec: InputSpec) -> Maker:
    found = _find_maker(spec.name)
    if found is None:
        raise DataError(
            f"the model's input {spec} is none that text fills (tokens, mask, positions, token "
            "types, cache); give arrays instead."
        )
    return found


# Token by token -------------------------------------------------------------------------------


def is_cache(name: str) -> bool:
    """Whether an input of this name is a cache of earlier tokens.

    >>> is_cache("past_key_values.0.key"), is_cache("input_ids")
    (True, False)
    """
    return _find_maker(name) is _make_cache


def fill_token_inputs(
    tokens: Array,
    specs: Sequence[InputSpec],
    *,
    done: int = 0,
    shapes: Shapes | None = None,
    config: Path | None = None,
) -> Sample:
    """Return the inputs of a model for tokens [batch, length] that follow `done` others.

    The cache is empty before the first, and not part of it afterwards: then it is what the model
    made. `config` is a configuration that says of which size its heads are.

    >>> specs = [InputSpec("input_ids", np.dtype("int64"), (1, "n")),
    ...          InputSpec("position_ids", np.dtype("int64"), (1, "n"))]
    >>> fill_token_inputs(np.array([[7, 8]]), specs, done=3)["position_ids"].tolist()
    [[3, 4]]
    """
    specs, symbols = fix_shapes(specs, shapes)
    heads = _Heads() if config is None else _Heads.read(config)
    window = _Window(tokens, symbols, heads, done)
    return {
        spec.name: _maker(spec)(window, spec)
        for spec in specs
        if not (done and is_cache(spec.name))
    }
