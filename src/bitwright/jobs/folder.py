"""Quantize all models of a folder, such as an exported language model, into another folder."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from bitwright import graph
from bitwright.emit.caches import has_caches
from bitwright.errors import (
    AlreadyQuantizedError,
    BitwrightError,
    DataError,
    ModelError,
    NothingQuantizedError,
    OutputError,
)
from bitwright.jobs.encodings import write_encodings_file
from bitwright.jobs.folder_data import FolderData
from bitwright.jobs.result import Result
from bitwright.jobs.weight_only.work import WINDOWS, writes_samples
from bitwright.recipe import Recipe
from bitwright.support import check_arguments, counted, show_bytes, show_ratio
from bitwright.support.files import replace_folder, temporary_folder_beside
from bitwright.support.showing import Section, Summarized, data_frame, plain_fields


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """The models in a folder, the files that each consists of, and all other files.

    Every name is a path relative to the folder. Hidden files, and what is in hidden folders, do not
    belong to it.
    """

    root: Path
    models: dict[str, tuple[str, ...]]
    """Each model, and its files: its own first, then its external data."""
    others: tuple[str, ...]

    @classmethod
    def open(cls, root: str | os.PathLike[str]) -> ModelFolder:
        """Find the models of a folder, which must be there."""
        root = Path(root)
        files = [path.relative_to(root).as_posix() for path in _visible_files(root)]
        models = {name: _files_of(root, name) for name in files if name.lower().endswith(".onnx")}
        if not models:
            raise ModelError(
                f"the folder {str(root)!r} has no ONNX model; give the folder that an exporter "
                "wrote .onnx files to."
            )
        parts = {file for own in models.values() for file in own}
        return cls(root, models, tuple(name for name in files if name not in parts))

    def size(self, models: Sequence[str]) -> int:
        """Return the bytes of models on disk; data that they share counts once."""
        files = {file for name in models for file in self.models[name]}
        return sum((self.root / file).stat().st_size for file in files)

    def check_output(self, output: str | os.PathLike[str]) -> None:
        """Raise an OutputError if the result cannot or must not be written here.

        A folder that is there is replaced, if it holds nothing but an earlier result.
        """
        target, root = Path(os.path.realpath(output)), self.root.resolve()
        shown = str(output)
        if target.is_file():
            raise OutputError(f"{shown!r} is a file, and models of a folder go to a folder.")
        if target == root or root.is_relative_to(target):
            raise OutputError(f"writing {shown!r} would overwrite the input; choose another.")
        if target.is_relative_to(root):
            raise OutputError(f"{shown!r} lies in the folder of the input; choose one outside.")
        graph.check_parent(target)
        written = {*self.models, *self.others, *(f"{name}.data" for name in self.models)}
        written |= {_scale_file(name) for name in self.models}
        written |= {file for own in self.models.values() for file in own}
        for path in _visible_files(target) if target.is_dir() else ():
            name = path.relative_to(target).as_posix()
            if name not in written:
                raise OutputError(
                    f"the folder {shown!r} is not empty, and {name!r} in it is none of the files "
                    "that go there; choose another, or empty it."
                )


def _visible_files(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(folder, name) for name in sorted(files) if not name.startswith("."))


def _files_of(root: Path, model: str) -> tuple[str, ...]:
    files = [Path(os.path.normpath(file)) for file in graph.files_of(root / model)]
    # What lies outside is refused when the model is loaded.
    inside = [file for file in files if file.is_relative_to(root) and file.is_file()]
    return tuple(file.relative_to(root).as_posix() for file in inside)


@dataclass(slots=True, repr=False)
class FolderResult(Summarized):
    """The quantized models of a folder, and what was left as it is.

    >>> import bitwright
    >>> folder = bitwright.load_demo().model_path.parent
    >>> result = bitwright.quantize(folder, recipe="int8-dynamic", force_dynamic=True)
    >>> list(result.results), result.size < result.float_size
    (['digits.onnx'], True)
    """

    _heading = "Quantized folder"

    folder: ModelFolder = field(repr=False)
    results: dict[str, Result]
    """Path of a model in the folder -> its result."""
    copied: dict[str, str]
    """Path of a model that is copied as it is -> why."""
    path: Path | None = None

    @property
    def float_size(self) -> int:
        """Bytes of all models of the given folder."""
        return self.folder.size([*self.folder.models])

    @property
    def size(self) -> int:
        """Bytes of all models of the result."""
        quantized = sum(result.size for result in self.results.values())
        return quantized + self.folder.size([*self.copied])

    @property
    def shrinkage(self) -> str:
        """The ratio of sizes, in words."""
        return show_ratio(self.float_size / max(self.size, 1), "smaller", "larger")

    @property
    def notes(self) -> list[str]:
        """What a user may want to know of each model, with its name."""
        return [
            f"{name}: {note}" for name, result in self.results.items() for note in result.plan.notes
        ] + [f"{name}: copied as it is, because {why}" for name, why in self.copied.items()]

    @check_arguments
    def save(self, path: str | Path, *, external_data: bool | None = None) -> None:
        """Write the folder: the models, and copies of all other files; all of it, or nothing."""
        self.folder.check_output(path)
        target = Path(os.path.realpath(path))
        with _as_output_error(path), temporary_folder_beside(target) as new:
            copied = (file for name in self.copied for file in self.folder.models[name])
            for file in (*self.folder.others, *copied):
                (new / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(self.folder.root / file, new / file)
            for name in self.folder.others:
                if Path(name).name == "genai_config.json":
                    self._adapt_config(new / name, Path(name).parent)
            for name, result in self.results.items():
                (new / name).parent.mkdir(parents=True, exist_ok=True)
                graph.save_model(result.model, new / name, external_data=external_data)
                if result.plan.caches:
                    write_encodings_file(result.plan, new / _scale_file(name))
            sizes = {name: graph.file_size(new / name) for name in self.results}
            replace_folder(new, target)
        self.path = Path(path)
        for name, result in self.results.items():
            result.path, result.size = self.path / name, sizes[name]

    def _adapt_config(self, config: Path, folder: Path) -> None:
        """Leave models that were widened from bfloat16 to CPUs, where they can run.

        Their configuration names the GPU that the builder wrote them for.
        """
        widened = {
            os.path.relpath(name, folder)
            for name, result in self.results.items()
            if _has_bfloat16(graph.load_model(self.folder.root / name))
            and not _has_bfloat16(result.model)
        }
        if not widened:
            return
        document = json.loads(config.read_text(encoding="utf-8"))
        for section in _sections(document):
            options = section.get("session_options")
            if section.get("filename") in widened and isinstance(options, dict):
                options["provider_options"] = []
        config.write_text(json.dumps(document, indent=4), encoding="utf-8")

    def summary(self) -> str:
        """Return what was done, in a few lines."""
        head = (
            f"{counted(len(self.results), 'model')} of {len(self.folder.models)} quantized, "
            f"{counted(len(self.folder.others), 'other file')}"
        )
        facts = (f"{name}: {text}" for name, text in self.facts())
        ((_, _, rows),) = self.sections()
        models = (
            f"{name}: {before} -> {after}"
            + ("" if against == "-" else f", against float {against}")
            for name, before, after, _, against in rows
        )
        return "\n".join([head, *models, *facts])

    def facts(self) -> list[tuple[str, str]]:
        """Return what was found of them: names, and what is to be said of each."""
        sizes = f"{show_bytes(self.float_size)} -> {show_bytes(self.size)}"
        facts = [("Size", f"{sizes} ({self.shrinkage})")]
        for name, one in self.results.items():
            if one.clock is not None:
                facts.append(("Time", f"{name}: {one.clock.describe()}"))
            if one.perplexity is not None:
                facts.append(("Perplexity", f"{name}: {one.perplexity.describe()}"))
        return facts + [("Note", note) for note in self.notes]

    def sections(self, *, verbose: bool = False) -> list[Section]:
        """Return one row for each model."""
        rows = [
            (
                name,
                show_bytes(one.float_size),
                show_bytes(one.size),
                f"{one.quantized.total()} of {len(one.plan.nodes)}",
                one.measured or "-",
            )
            for name, one in self.results.items()
        ]
        columns = ("model", "float", "quantized", "nodes quantized", "against float")
        return [("Models", columns, rows)]

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as plain data."""
        sizes = {"float_bytes": "float_size", "bytes": "size"}
        return plain_fields(self, "copied", models="results", **sizes, output="path")

    def to_pandas(self) -> Any:
        """Return one row for each quantized model as a pandas DataFrame."""
        rows = [
            {"model": n, "float_bytes": r.float_size, "bytes": r.size, "measured": r.measured}
            for n, r in self.results.items()
        ]
        return data_frame(rows, ["model", "float_bytes", "bytes", "measured"])


def _scale_file(model: str) -> str:
    """Return where the scales of a model's caches go, as onnxruntime-genai's builder reads them."""
    return Path(model).with_suffix(".kv_scales.json").as_posix()


def _has_bfloat16(model: ir.Model) -> bool:
    values = (*model.graph.inputs, *model.graph.outputs)
    return any(value.dtype == ir.DataType.BFLOAT16 for value in values)


def _sections(document: Any) -> Iterator[dict[str, Any]]:
    """Give all objects of a JSON document."""
    if isinstance(document, dict):
        yield document
    if isinstance(document, dict | list):
        for inner in document.values() if isinstance(document, dict) else document:
            yield from _sections(inner)


@contextmanager
def _as_output_error(path: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"{str(path)!r} was not written: {error.strerror or error}; check the folder and try "
            "again."
        ) from error


QuantizeModel = Callable[[str, Path, Recipe, Any], Result]
"""A model's name and path, the recipe and the data -> its result."""


def quantize_folder(
    folder: ModelFolder,
    recipe: Recipe,
    data: Any,
    quantize_model: QuantizeModel,
    limit: int | None = None,
) -> FolderResult:
    """Quantize each model of a folder, with data if it can use it.

    A model that has nothing to quantize, or nothing that can be without data, is copied.
    """
    if len(folder.models) > 1 and recipe.weights.rotate:
        # One may go on from what another has cached, as decoders with and without a past do.
        recipe = recipe.replace(weights={"rotate_caches": False})
    if recipe.mode == "weight-only":
        limit = limit or WINDOWS
    source = FolderData.open(folder.root, tuple(folder.models), data, limit)
    writers: list[str] = []
    if data is None and _data_free(recipe) != recipe:
        writers = [name for name in folder.models if writes_samples(folder.root / name)]
    results: dict[str, Result] = {}
    copied: dict[str, str] = {}
    recipes = _recipes_of(folder, recipe)
    for name, recipe in recipes.items():
        with _naming_model(name):
            given, reason = source.for_model(name)
            if writers and name not in writers:
                reason = "there is no text, and only decoders with a cache write their own"
            try:
                if reason is None:
                    results[name] = quantize_model(name, folder.root / name, recipe, given)
                else:
                    results[name] = _without_data(folder, name, recipe, reason, quantize_model)
            except (NothingQuantizedError, AlreadyQuantizedError, _NeedsDataError) as error:
                copied[name] = str(error).rstrip(".")
    if not results:
        name, reason = next(iter(copied.items()))
        raise NothingQuantizedError(
            f"no model of the folder {str(folder.root)!r} was quantized; {name}: {reason}."
        )
    return FolderResult(folder, results, copied)


def _recipes_of(folder: ModelFolder, recipe: Recipe) -> dict[str, Recipe]:
    """Return the recipe for each model: one without attention that caches keeps no caches."""
    found = dict.fromkeys(folder.models, recipe)
    if recipe.cache is None:
        return found
    keep = {name: has_caches(graph.load_model(folder.root / name)) for name in folder.models}
    if any(keep.values()):
        plain = recipe.replace(cache=None, overrides={})
        found |= {name: plain for name, keeps in keep.items() if not keeps}
    return found


class _NeedsDataError(Exception):
    """A recipe can do nothing with a model that the data does not fit."""


def _without_data(
    folder: ModelFolder, name: str, recipe: Recipe, reason: str, quantize_model: QuantizeModel
) -> Result:
    """Quantize a model that cannot use the data, for the reason that is given."""
    plain = _data_free(recipe)
    try:
        result = quantize_model(name, folder.root / name, plain, None)
    except DataError:
        raise _NeedsDataError(f"recipe {recipe.name!r} needs data, and {reason}") from None
    what = "not measured" if plain == recipe else "its weights were rounded to the nearest"
    return replace(result, plan=result.plan.with_notes([f"{what}, without data: {reason}"]))


def _data_free(recipe: Recipe) -> Recipe:
    """Return the recipe that stores the same bits without a look at data."""
    weights = recipe.weights
    if recipe.mode != "weight-only" or not (weights.needs_data or recipe.fine_tune):
        return recipe
    return recipe.replace(weights=weights.without_data(), fine_tune=None)


@contextmanager
def _naming_model(name: str) -> Iterator[None]:
    """Say in an error which model of the folder it is about."""
    try:
        yield
    except BitwrightError as error:
        raise type(error)(f"{name}: {error}") from error
