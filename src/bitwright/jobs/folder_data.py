"""Calibration data for each model of a folder: a text for those that read it, or data by name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bitwright import graph
from bitwright.data import ShapedData, TextData
from bitwright.data.files import is_sample_file
from bitwright.errors import DataError, did_you_mean
from bitwright.jobs.opening import input_specs

__all__ = ["FolderData"]


@dataclass(frozen=True, slots=True)
class FolderData:
    """Data that was given for a folder of models, and what each of them can use of it."""

    root: Path
    models: tuple[str, ...]
    data: Any

    @classmethod
    def open(cls, root: Path, models: tuple[str, ...], data: Any) -> FolderData:
        """Return the data for the models; a text gets the tokenizer of the folder."""
        if _is_by_model(data):
            for name in data:
                if name not in models:
                    raise DataError(
                        f"data was given for {name!r}, which is no model of the folder."
                        f"{did_you_mean(name, models)}"
                    )
            found = {name: _with_tokenizer(_as_text(one), root) for name, one in data.items()}
            return cls(root, models, found)
        return cls(root, models, _with_tokenizer(_as_text(data), root))

    def for_model(self, name: str) -> tuple[Any, str | None]:
        """Return the data for a model, or why it can use none although some was given."""
        data = self.data
        if _is_by_model(data):
            if name not in data:
                return None, "the data has none for this model"
            return data[name], None
        if isinstance(data, TextData):
            unfilled = data.unfilled(input_specs(graph.load_model(self.root / name)))
            if unfilled:
                return None, f"text does not fill its input {unfilled[0]}"
        return data, None


def _is_by_model(data: Any) -> bool:
    named = isinstance(data, Mapping) and bool(data)
    return named and all(str(name).endswith(".onnx") for name in data)


def _as_text(data: Any) -> Any:
    """Return what is a text as such: any file but of arrays and images."""
    if isinstance(data, ShapedData):
        text = _as_text(data.data)
        return replace(text, shapes=data.shapes) if isinstance(text, TextData) else data
    if isinstance(data, (str, os.PathLike)) and Path(data).is_file() and not is_sample_file(data):
        return TextData(text=Path(data))
    return data


def _with_tokenizer(data: Any, root: Path) -> Any:
    if not isinstance(data, TextData) or data.tokenizer is not None:
        return data
    found = sorted(root.rglob("tokenizer.json"), key=lambda path: (len(path.parts), path))
    if not found:
        raise DataError(
            f"the folder {str(root)!r} has no tokenizer.json, which the text {str(data.text)!r} "
            "needs; give one (tokenizer, --tokenizer)."
        )
    return replace(data, tokenizer=found[0])
