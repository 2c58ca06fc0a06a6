"""Decoders of an older transformers, whose masks the TorchScript exporter still knows."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

from zoo.catalog.transformers_models import CACHED, DECODERS, SEQ2SEQ, build_model
from zoo.network import Architecture

# Installed beside the environment's own, and found first; see requirements-older.txt.
_FOLDER = os.environ.get("ZOO_OLDER", str(Path(sys.prefix) / "older"))
sys.path.insert(0, _FOLDER)

PRELOAD = ("transformers", "transformers.modeling_utils", "transformers.models.auto.modeling_auto")


def architectures() -> list[Architecture]:
    """Return the decoders, with and without caches, and the encoder-decoders."""
    kinds = {"decoder": DECODERS, "cached": CACHED, "seq2seq": SEQ2SEQ}
    return [
        Architecture(
            f"transformers-4/{name}{'-cached' if kind == 'cached' else ''}",
            partial(build_model, name, kind),
        )
        for kind, names in kinds.items()
        for name in names
    ]
