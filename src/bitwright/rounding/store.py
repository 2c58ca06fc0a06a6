"""Checkpoints of rounded weights, one file each: finished ones survive an interruption."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from bitwright.errors import DataError, OutputError
from bitwright.numerics.arrays import NUMPY, Arrays
from bitwright.numerics.blocks import BlockFormat, QuantizedBlocks
from bitwright.numerics.nbits import (
    LazyBlocks,
    NBitsTensors,
    ZeroPoints,
    nbits_form,
    pack_nbits,
    widen,
)
from bitwright.support.files import Closing, write_file
from bitwright.support.scratch import ScratchFolder

__all__ = ["BlockStore", "JobFolder"]


class JobFolder(Closing):
    """A folder of finished parts of one job; one without a path of its own vanishes when closed.

    `job` says what the parts belong to. A folder that holds those of another job is refused.

    >>> with JobFolder() as folder:
    ...     "weight" in folder
    False
    """

    def __init__(self, folder: str | Path | None = None, *, job: str = "") -> None:
        # Whoever reads from the store holds it, and with it the folder.
        self._lent: ScratchFolder | None = None
        self.job = job
        if folder is None:
            self._lent = ScratchFolder("weights")
            folder = self._lent.path / "parts"
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"cannot keep what is finished in {str(self.folder)!r}: {error.strerror}; "
                "name a folder that can be written to."
            ) from error
        marker = self.folder / "job.json"
        if marker.exists():
            found = json.loads(marker.read_text(encoding="utf-8")).get("job")
            if found != job:
                raise DataError(
                    f"the folder {str(self.folder)!r} holds weights of another model, recipe or "
                    "data; delete it, or name another one."
                )
        elif any(self.folder.iterdir()):
            raise DataError(
                f"the folder {str(self.folder)!r} is not empty and holds no weights of ours; name "
                "another one."
            )
        else:
            write_file(marker, json.dumps({"job": job}))

    def __contains__(self, name: str) -> bool:
        return self.path(name).exists()

    def path(self, name: str) -> Path:
        """Return the file of a part."""
        # Names of tensors hold slashes, and some are longer than a file's may be.
        return self.folder / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.safetensors"

    def close(self) -> None:
        """Remove a folder that was only lent."""
        if self._lent is not None:
            self._lent.close()


class BlockStore(JobFolder):
    """A folder of rounded weights.

    >>> from bitwright.numerics.blocks import quantize_in_blocks
    >>> with BlockStore() as store:
    ...     store.put("w", quantize_in_blocks(np.eye(16), BlockFormat(block_size=16)))
    ...     "w" in store, store.get("w").shape
    (True, (16, 16))
    """

    def put(self, name: str, blocks: QuantizedBlocks) -> None:
        """Keep a weight: all of it, or nothing."""
        from safetensors.numpy import save

        tensors: dict[str, Any] = {"codes": blocks.codes}
        scales = blocks.scales
        # The file format knows no bfloat16 of numpy's; its bits will do.
        tensors["scales"] = scales.view(np.uint16) if scales.dtype.kind == "V" else scales
        if blocks.zero_points is not None:
            tensors["zero_points"] = blocks.zero_points
        form = blocks.format
        described = {
            "name": name,
            "bits": str(form.bits),
            "block_size": str(form.block_size),
            "symmetric": str(form.symmetric),
            "negative_scales": str(form.negative_scales),
            "scale_type": form.scale_type,
        }
        content = save(tensors, metadata=described)
        if self._lent is None:
            write_file(self.path(name), content)
        else:  # gone with this process anyway: there is nothing to keep through a power cut
            with self._lent.writing():
                self.path(name).write_bytes(content)

    def get(self, name: str) -> QuantizedBlocks:
        """Return a weight, read from its file."""
        from safetensors import safe_open

        with safe_open(self.path(name), framework="numpy") as file:
            form = _format_of(file.metadata())
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        scales = tensors["scales"]
        if form.scale_type == "bfloat16":
            import ml_dtypes

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

        def pack() -> NBitsTensors:
            return pack_nbits(widen(self.get(name)), xp=xp)

        return LazyBlocks(
            form, nbits_form(form, (rows, columns), kind), lambda: self.get(name), pack
        )


def _format_of(described: dict[str, str]) -> BlockFormat:
    return BlockFormat(
        bits=int(described["bits"]),
        block_size=int(described["block_size"]),
        symmetric=described["symmetric"] == "True",
        negative_scales=described["negative_scales"] == "True",
        scale_type=described["scale_type"],  # type: ignore[arg-type]
    )
