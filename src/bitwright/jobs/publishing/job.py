"""The job of `publish`: make every variant of every part, try each, and write those that hold."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from bitwright import graph
from bitwright._version import __version__
from bitwright.data import RandomData, Transform, fingerprint_data
from bitwright.errors import BitwrightError, ModelError, OutputError
from bitwright.graph.versions import runtime_version
from bitwright.jobs.calibration import Calibration
from bitwright.jobs.folder import ModelFolder
from bitwright.jobs.folder_data import FolderData
from bitwright.jobs.opening import Compute, input_specs
from bitwright.jobs.publishing.card import CERTIFICATES, Published
from bitwright.jobs.publishing.certificate import Certificate, certify, time_in_web, why_outdone
from bitwright.jobs.publishing.samples import draw_samples
from bitwright.jobs.publishing.variants import LOADERS, VARIANTS, Loader, Variant, is_variant
from bitwright.jobs.quantization import QuantizeRequest, quantize_request
from bitwright.jobs.report import save_report
from bitwright.jobs.result import Result
from bitwright.jobs.tuning.request import check_word
from bitwright.recipe import Recipe, settle_for_host
from bitwright.support import PartStore, Progress, read_bytes, show_bytes, show_progress
from bitwright.support.files import make_folder, replace_file, temporary_beside
from bitwright.verification.golden import keep_golden

WORK = ".bitwright"
"""The folder in the output where variants lie until all are known."""
_PAGE = "report.html"
_SAMPLES, _DRAWN = 64, 4
"""Samples of the user's data that are read, and random ones where there is no data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishRequest:
    """What is published, for which loader, tried on which data, and where it goes."""

    source: str | Path
    output: str | Path
    loader: str
    variants: Sequence[str] | None = None
    max_size: int | str | None = None
    data: Any = None
    limit: int | None = None
    transform: Transform = None
    reports: bool = True
    golden: int = 0
    golden_from_data: bool = False
    progress: Progress = True


def publish_folder(request: PublishRequest) -> Published:
    """Write a folder with every variant of every part that holds, and the card about them."""
    check_word("loader", request.loader, list(LOADERS))
    loader, output = LOADERS[request.loader], Path(request.output)
    variants = loader.choose(request.variants)
    source = _open_source(Path(request.source))
    _check_output(source.root, output)
    if loader.needs is not None and loader.needs not in source.others:
        raise ModelError(
            f"{str(request.source)!r} has no {loader.needs}, without which {loader.name} loads "
            "nothing; give the folder that its builder wrote."
        )
    parts = [name for name in source.models if not is_variant(name)] or [*source.models]
    if any(Path(name).name == "decoder_model_merged.onnx" for name in parts):
        parts = [name for name in parts if Path(name).name not in loader.unread]
    apart = len({Path(name).name for name in parts}) < len(parts)
    data = FolderData.open(source.root, tuple(parts), request.data)
    make_folder(output)
    store = PartStore(output / WORK, job="publish")
    found: list[Certificate] = []
    aside: dict[str, Path] = {}
    with show_progress(request.progress, "Publishing", len(parts) * len(variants)) as report:
        for part in parts:
            job = _Part(request, loader, source.root, part, apart, data, store, aside)
            made: list[Certificate] = []
            for variant in variants:
                made.append(job.certified(variant))
                report(len(found) + len(made), made[-1].file)
            needs_float = len(parts) > 1 and not loader.by_variant
            if needs_float and all(one.reason for one in made):  # the others need it
                made.append(job.certified(VARIANTS["fp32"]))
            found += _settled(made, request)
    published = Published(output, loader, tuple(found))
    if not published.written:
        reasons = "; ".join(f"{one.variant}: {one.reason}" for one in found[:4])
        raise ModelError(f"no variant of {str(request.source)!r} holds ({reasons}).")
    for one in published.written:
        _put_in_place(one, output, aside)
    published.write(source)
    shutil.rmtree(output / WORK, ignore_errors=True)
    return published


def _open_source(source: Path) -> ModelFolder:
    if not source.exists():
        raise ModelError(f"there is no file or folder {str(source)!r}; check the path.")
    if source.is_dir():
        return ModelFolder.open(source)
    return ModelFolder(source.parent, {source.name: ()}, ())


def _check_output(source: Path, output: Path) -> None:
    """Refuse a folder that is the source's, or that has what no earlier run wrote."""
    target, root = Path(os.path.realpath(output)), source.resolve()
    problem = None
    if target.is_file():
        problem = "is a file"
    elif target == root or root.is_relative_to(target):
        problem = "holds the input"
    elif target.is_dir() and any(target.iterdir()):
        ours = any((target / name).exists() for name in (CERTIFICATES, WORK))
        problem = None if ours else "is not empty, and nothing was published there before"
    if problem is not None:
        raise OutputError(f"{str(output)!r} {problem}; choose another folder to write.")


@dataclass
class _Part:
    """One model of the source, of which all variants are made."""

    request: PublishRequest
    loader: Loader
    root: Path
    name: str
    apart: bool
    """Whether another part has the same name, in another folder."""
    data: FolderData
    store: PartStore
    aside: dict[str, Path]
    """File of a variant -> where it lies until all are known."""

    @property
    def path(self) -> Path:
        """The float model."""
        return self.root / self.name

    @cached_property
    def calibration(self) -> Calibration:
        """The data for this part, or random samples, in a form that can be read again."""
        given, reason = self.data.for_model(self.name)
        model, request = graph.load_model(self.path), self.request
        if given is None or reason is not None:
            drawn = draw_samples(model, input_specs(model), count=_DRAWN, folder=self.path.parent)
            return Calibration(drawn, progress=False, kept_random=True)
        limit = request.limit or _SAMPLES
        return Calibration(given, limit, request.transform, progress=False).keep(model)

    def certified(self, variant: Variant) -> Certificate:
        """Return a variant that was made and tried, now or by an earlier run."""
        place = self.loader.place(self.name, variant, apart=self.apart)
        random = self.calibration.is_random
        recipes = variant.recipes(has_data=not random)
        key = self._key(recipes, place, variant)
        folder = self.store.folder / key
        model, page = folder / Path(place).name, folder / _PAGE
        known = Certificate(part=self.name, random=random)
        if variant.needs_data and random:
            known = known.with_(reason="it takes ranges from data, and none was given")
        elif key in self.store and (earlier := self.store.read(key).notes) and folder.is_dir():
            known = msgspec.json.decode(earlier["certificate"], type=Certificate)
        else:
            make_folder(folder)
            known = self._make(recipes, model, known, variant)
            self.store.write(key, {}, {"certificate": msgspec.json.encode(known).decode()})
        # A twin of another variant has its file under that one's name.
        names = [place, *(str(Path(place).parent / name) for name in [*known.hashes][1:])]
        self.aside |= {new: folder / own for new, own in zip(names, known.hashes, strict=False)}
        hashes = dict(zip(names, known.hashes.values(), strict=False))
        known = known.with_(variant=variant.name, file=place, hashes=hashes)
        self.aside[known.page] = page
        return known

    def _key(self, recipes: Sequence[Recipe], place: str, variant: Variant) -> str:
        """Return what tells this piece of work from all others."""
        data, request = self.data.data, self.request
        # Data that cannot be told apart from other data is taken for the same.
        read = data if isinstance(data, RandomData) else fingerprint_data(data) or type(data)
        files = [(file.name, file.stat()) for file in graph.files_of(self.path)]
        facts = [(name, found.st_size, found.st_mtime_ns) for name, found in files]
        is_large = graph.file_size(self.path) > graph.EXTERNAL_DATA_THRESHOLD
        golden = (request.golden, request.golden_from_data)
        asked = (request.limit, request.transform, request.reports, golden, variant.runs_on, read)
        made = (self.name, facts, [recipe.to_json() for recipe in recipes], place * is_large)
        given = repr((made, asked, __version__, runtime_version()))
        return hashlib.sha256(given.encode()).hexdigest()

    def _make(
        self, recipes: Sequence[Recipe], target: Path, known: Certificate, variant: Variant
    ) -> Certificate:
        """Write a variant aside, by the first of the recipes that takes the model, and try it."""
        result: Result | None = None
        reason = None
        for recipe in recipes:
            try:
                result, reason = self._quantize(recipe, target.parent, variant), None
                break
            except BitwrightError as error:
                reason = reason or str(error).partition(";")[0].rstrip(
                    "."
                )  # not what else to ask for
        if reason is not None:
            return known.with_(reason=reason)
        model = graph.load_model(self.path) if result is None else result.model
        large = graph.written_size(model) > graph.EXTERNAL_DATA_THRESHOLD
        beside = graph.ExternalData(location=f"{target.name}{self.loader.data}")
        graph.save_model(model, target, external_data=beside if large else False)
        if self.request.golden:
            keep_golden(target, self._golden())
        hashes = {file.name: _digest(file) for file in graph.files_of(target)}
        known = known.with_(hashes=hashes, size=graph.file_size(target))
        if result is not None:
            plan = result.plan.to_json().encode()
            recipe_used = msgspec.json.decode(result.plan.recipe.to_json())
            known = known.with_(recipe=recipe_used, plan=hashlib.sha256(plan).hexdigest())
        known = certify(known, target, result)
        if self.loader.in_web and known.reason is None:
            samples = list(islice(self.calibration.open(model), 1))
            known = time_in_web(known, variant, self.path, target, samples)
        if result is not None and known.reason is None and self.request.reports:
            save_report(result, target.with_name(_PAGE), latency=False)
        return known

    def _golden(self) -> Sequence[Mapping[str, Any]]:
        """Return the samples whose answers a file keeps: never the user's, unless they say so."""
        model, count = graph.load_model(self.path), self.request.golden
        if self.request.golden_from_data:
            return list(islice(self.calibration.open(model), count))
        return draw_samples(model, input_specs(model), count=count, folder=self.path.parent)

    def _quantize(self, recipe: Recipe, folder: Path, variant: Variant) -> Result:
        learns = recipe.mode == "weight-only" and recipe.weights.needs_data
        request = QuantizeRequest(
            source=self.path,
            asked=recipe,
            recipe=settle_for_host(recipe),
            effort=None,
            calibration=self.calibration,
            compute=Compute(work=folder / "weights" if learns else None),
            timing=variant.runs_on != "gpu",
        )
        made = quantize_request(request)
        assert isinstance(made, Result)
        return made


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _settled(found: Sequence[Certificate], request: PublishRequest) -> Iterator[Certificate]:
    """Give the variants of a part as they stay: none too large, and none that is outdone.

    What is asked for by its name stays also where another one is better.
    """
    most = None if request.max_size is None else read_bytes(request.max_size)
    standing = [one for one in found if one.reason is None]
    for one in found:
        reason = one.reason
        if reason is None and most is not None and one.size > most:
            reason = f"its {show_bytes(one.size)} are above {show_bytes(most)}"
        elif reason is None and one.level != "float" and request.variants is None:
            reason = why_outdone(one, standing)
        yield one.with_(reason=reason)


def _put_in_place(one: Certificate, output: Path, aside: Mapping[str, Path]) -> None:
    """Give the files of a variant their names; the model comes behind its weights."""
    for name in (*reversed([*one.hashes]), one.page):
        if aside[name].is_file():
            make_folder((output / name).parent)
            with temporary_beside(output / name) as temporary:
                shutil.copyfile(aside[name], temporary)
                replace_file(temporary, output / name)
