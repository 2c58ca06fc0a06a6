"""Weights of language models from GGUF files, as Hugging Face's modules have them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bitwright.errors import MissingPackageError, ModelError
from bitwright.support.array_types import Array

ARCHITECTURES = ("gemma2", "gemma3", "llama", "qwen2", "qwen3")
"""What is supported: decoders whose modules have the names of Hugging Face's Llama."""

_PERMUTED = ("llama",)
"""Where the two halves of each rotated pair of a head lie side by side, in rows of q and k."""


class GGUFFile:
    """A GGUF file: names and shapes of its tensors, and the floats of one when they are read."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise ModelError(f"there is no file {str(path)!r} to take weights from.")
        try:
            import gguf
        except ImportError as error:
            raise MissingPackageError(
                "reading a GGUF file needs the package gguf; pip install 'bitwright[gguf]'."
            ) from error
        try:
            reader = gguf.GGUFReader(self.path)
            self._settings = {name: field.contents() for name, field in reader.fields.items()}
            self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        except Exception as error:  # of a damaged file the package raises whatever it meets
            raise ModelError(f"{str(path)!r} is no GGUF file, or a damaged one.") from error
        self.architecture = str(self._settings.get("general.architecture"))
        if self.architecture not in ARCHITECTURES:
            raise ModelError(
                f"{str(path)!r} holds a model of architecture {self.architecture!r}; those that "
                f"weights can be taken from are {', '.join(ARCHITECTURES)}."
            )

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor: [outputs, inputs] of a matrix."""
        return tuple(int(size) for size in reversed(self._tensors[name].shape))

    def setting(self, name: str) -> Any:
        """Return a setting of the architecture, such as `attention.head_count`, or None."""
        return self._settings.get(f"{self.architecture}.{name}")

    @property
    def gains_with_offset(self) -> bool:
        """Whether the gains of norms are one more than Hugging Face's, which adds it later."""
        return self.architecture.startswith("gemma")

    def read(self, name: str) -> Array:
        """Return a tensor in float32, in the order of rows that Hugging Face has."""
        import gguf

        tensor = self._tensors[name]
        try:
            array: Array = gguf.dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            raise ModelError(
                f"tensor {name!r} of {str(self.path)!r} has type {tensor.tensor_type.name}, which "
                "the package gguf does not read; take a file in F32, F16, BF16, Q4_0 to Q8_0 or "
                "Q2_K to Q6_K."
            ) from error
        array = array.astype(np.float32, copy=False).reshape(self.shape(name))
        part = name.split(".")[2] if name.startswith("blk.") else ""
        if self.architecture in _PERMUTED and part in ("attn_q", "attn_k"):
            return self._restore_rows(array, part, int(name.split(".")[1]))
        return array

    def _restore_rows(self, array: Array, part: str, layer: int) -> Array:
        counts = self.setting("attention.head_count")
        if part == "attn_k":
            counts = self.setting("attention.head_count_kv") or counts
        heads = int(counts[layer] if isinstance(counts, list) else counts)
        pairs = array.reshape(heads, array.shape[0] // heads // 2, 2, -1)
        return pairs.swapaxes(1, 2).reshape(array.shape)
