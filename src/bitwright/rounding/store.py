"""Checkpoints of rounded weights, one file each: finished ones survive an interruption."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import ml_dtypes
import numpy as np

from bitwright.numerics import NUMPY, Arrays, BlockFormat, QuantizedBlocks
from bitwright.numerics.nbits import LazyBlocks, ZeroPoints, nbits_form, pack_nbits, widen
from bitwright.support.store import PartStore


class BlockStore(PartStore):
    """A folder of rounded weights."""

    def put(self, name: str, blocks: QuantizedBlocks) -> None:
        """Keep a weight: all of it, or nothing."""
        tensors: dict[str, Any] = {"codes": blocks.codes}
        scales = blocks.scales
        # The file format knows no bfloat16 of numpy's; its bits will do.
        tensors["scales"] = scales.view(np.uint16) if scales.dtype.kind == "V" else scales
        if blocks.zero_points is not None:
            tensors["zero_points"] = blocks.zero_points
        described = {field: str(value) for field, value in asdict(blocks.format).items()}
        self.write(name, tensors, {"name": name, **described})

    def get(self, name: str) -> QuantizedBlocks:
        """Return a weight, read from its file."""
        tensors, described = self.read(name)
        form = _format_of(described)
        scales = tensors["scales"]
        if form.scale_type == "bfloat16":
            scales = scales.view(ml_dtypes.bfloat16)
        return QuantizedBlocks(form, tensors["codes"], scales, tensors.get("zero_points"))

    def lazy(self, name: str, *, xp: Arrays = NUMPY) -> LazyBlocks:
        """Return a weight that is read when it is asked for, and packed on `xp`."""
        from safetensors import safe_open

        with safe_open(self.path(name), framework="numpy") as file:
            form = _format_of(file.metadata())
            rows, columns = file.get_slice("codes").get_shape()
            kind: ZeroPoints = "none"
            if "zero_points" in file.keys():  # noqa: SIM118
                dtype = file.get_slice("zero_points").get_dtype()
                kind = "packed" if dtype == "U8" else "float"
        return LazyBlocks(
            form,
            nbits_form(form, (rows, columns), kind),
            load=lambda: self.get(name),
            pack=lambda: pack_nbits(widen(self.get(name)), xp=xp),
        )


def _format_of(described: dict[str, str]) -> BlockFormat:
    return BlockFormat(
        bits=int(described["bits"]),
        block_size=int(described["block_size"]),
        symmetric=described["symmetric"] == "True",
        negative_scales=described["negative_scales"] == "True",
        scale_type=described["scale_type"],  # type: ignore[arg-type]
    )
