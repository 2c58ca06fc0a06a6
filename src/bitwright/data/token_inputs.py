"""What a language model reads beside tokens: masks, positions, caches, told by their names."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from bitwright.data.shapes import Shapes, fix_shapes
from bitwright.data.specs import Array, InputSpec, Sample
from bitwright.errors import DataError

CONFIGURATIONS = ("genai_config.json", "config.json")
"""Files that say of which size heads are; the first that there is."""


class Heads(NamedTuple):
    """Number and size of the heads of a cache; None where unknown."""

    number: int | None = None
    size: int | None = None

    @classmethod
    def read_beside(cls, folder: Path) -> Heads:
        """Read the configuration in a folder, where there is one."""
        paths = (folder / name for name in CONFIGURATIONS)
        return next((cls.read(path) for path in paths if path.is_file()), cls())

    @classmethod
    def read(cls, path: Path) -> Heads:
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


class Window(NamedTuple):
    """One sample's tokens, (batch, length), and the sizes that are known of open dimensions."""

    tokens: Array
    symbols: Mapping[str, int]
    """Sizes of open dimensions that the user gave."""
    heads: Heads
    """Heads of the cache, from the model's configuration."""
    done: int = 0
    """Number of earlier tokens, which are in the cache."""

    @property
    def batch(self) -> int:
        """Number of samples."""
        return int(self.tokens.shape[0])

    @property
    def length(self) -> int:
        """Number of tokens in each."""
        return int(self.tokens.shape[1])

    @property
    def total(self) -> int:
        """Number of tokens with those before."""
        return self.done + self.length

    @property
    def past(self) -> int:
        """Length of the empty cache that the user asked for."""
        sizes = (n for name, n in self.symbols.items() if re.fullmatch("past(_[a-z]*)*", name))
        return next(sizes, 0)


def _make_tokens(window: Window, spec: InputSpec) -> Array:
    return window.tokens.astype(spec.dtype)


def _make_mask(window: Window, spec: InputSpec) -> Array:
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


def _make_positions(window: Window, spec: InputSpec) -> Array:
    """Return 0, 1, 2, ... along the last axis, the same for every batch and kind of position."""
    shape = (*(d for d in (spec.shape or ())[:-2] if isinstance(d, int)), *window.tokens.shape)
    rank = 2 if spec.shape is None else len(spec.shape)
    positions = np.arange(window.done, window.total, dtype=spec.dtype)
    return np.broadcast_to(positions, shape[-rank:]).copy()


def _make_number(value: Callable[[Window], int]) -> Maker:
    """Return an array of one number, for an input of one element or of one per batch."""

    def make(window: Window, spec: InputSpec) -> Array:
        sizes = (d if isinstance(d, int) else window.batch for d in spec.shape or ())
        return np.full(tuple(sizes), value(window), spec.dtype)

    return make


def _make_cache(window: Window, spec: InputSpec) -> Array:
    """Return an empty cache: of length 0 where that is open, else masked."""
    if spec.shape is None:
        raise DataError(f"the shape of the cache {spec} is not known; give it as {_SHAPES}.")
    return np.zeros(
        tuple(_cache_size(window, spec, axis, dim) for axis, dim in enumerate(spec.shape)),
        spec.dtype,
    )


def _cache_size(window: Window, spec: InputSpec, axis: int, dim: int | str | None) -> int:
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

Maker: TypeAlias = Callable[[Window, InputSpec], Array]

# What the name of an input holds -> what fills it; the first that fits. Names as transformers,
# optimum, onnxruntime-genai, transformers.js and torch.onnx write them.
_MAKERS: tuple[tuple[str, Maker], ...] = (
    (r"mask", _make_mask),
    (r"position", _make_positions),
    (r"token_type|segment", lambda window, spec: np.zeros(window.tokens.shape, spec.dtype)),
    (r"(input_ids|tokens|ids)$", _make_tokens),
    (r"use_cache_branch$", _make_number(lambda window: window.done > 0)),
    (r"logits_to_keep$", _make_number(lambda window: 0)),  # 0: all of them
    (r"seqlens_k$", _make_number(lambda window: window.total - 1)),
    (r"total_seq(uence)?_len(gth)?$", _make_number(lambda window: window.total)),
    (r"past_key|past_value|past\.|past_\d|past_(conv|ssm|recurrent)|cache", _make_cache),
)


def folder_of_configuration(source: Any) -> Path | None:
    """Return the folder with the model's configuration, where the model is a file beside it."""
    return folder_with(source, CONFIGURATIONS)


def folder_with(source: Any, names: Collection[str]) -> Path | None:
    """Return the folder of a model, or the one above, that has a file of these names."""
    if not isinstance(source, str | os.PathLike):
        return None
    path = Path(source).absolute()
    # Optimum's models lie in a folder "onnx"; a folder may be the source itself.
    folders = [*([path] if path.is_dir() else ()), *path.parents][:2]
    found = (f for f in folders if any((f / name).is_file() for name in names))
    return next(found, None)


def find_maker(name: str) -> Maker | None:
    """Return what fills an input of this name; None: no text does."""
    return next((make for pattern, make in _MAKERS if re.search(pattern, name.lower())), None)


def maker_of(spec: InputSpec) -> Maker:
    """Return what fills an input, or refuse it."""
    found = find_maker(spec.name)
    if found is None:
        raise DataError(
            f"the model's input {spec} is none that text fills (tokens, mask, positions, token "
            "types, cache); give arrays instead."
        )
    return found


def fixed_length(specs: Sequence[InputSpec]) -> int | None:
    """Return how many tokens the model takes, where its inputs fix it."""
    tokens = (spec.shape for spec in specs if is_tokens(spec))
    return next((s[1] for s in tokens if s and len(s) == 2 and isinstance(s[1], int)), None)


# Token by token -------------------------------------------------------------------------------


def is_cache(name: str) -> bool:
    """Whether an input of this name is a cache of earlier tokens."""
    return find_maker(name) is _make_cache


def is_token_name(name: str) -> bool:
    """Whether an input of this name takes tokens."""
    return find_maker(name) is _make_tokens


def is_tokens(spec: InputSpec) -> bool:
    """Whether an input takes tokens."""
    return is_token_name(spec.name)


# Parts of the names of a cache input, and of the output that is fed to it for the next token.
_CONTINUED = (
    ("past_key_values", "present"),
    ("past_key_values", "present_key_values"),
    ("past", "present"),
)


def continued_by(name: str, outputs: Collection[str]) -> str | None:
    """Return the output that goes on as a cache, by its name."""
    named = (name.replace(old, new) for old, new in _CONTINUED if old in name)
    return next((each for each in named if each in outputs), None)


def fill_token_inputs(
    tokens: Array,
    specs: Sequence[InputSpec],
    *,
    done: int = 0,
    shapes: Shapes | None = None,
    heads: Heads | None = None,
) -> Sample:
    """Return the inputs of a model for tokens [batch, length] that follow `done` others.

    The cache is empty before the first, and not part of it afterwards: then it is what the model
    made. `heads` says of which size its heads are.
    """
    specs, symbols = fix_shapes(specs, shapes)
    window = Window(tokens, symbols, heads or Heads(), done)
    return {
        spec.name: maker_of(spec)(window, spec)
        for spec in specs
        if not (done and is_cache(spec.name))
    }
