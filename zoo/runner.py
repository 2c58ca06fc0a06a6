"""The runner: exports architectures, tries the verbs on each export, writes all of it down."""

from __future__ import annotations

import fnmatch
import os
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

import bitwright
from zoo.case import Case, digest_of, load_case, save_samples
from zoo.contract import Broken
from zoo.exporters import Export, build, choose_exports, samples_of, write_export
from zoo.journal import Journal, Record
from zoo.network import Architecture, seed_of
from zoo.verbs import Verb
from zoo.worker import Send, run_in_process

MAX_BYTES = 300_000_000
"""Larger exports are left out: they say no more about an architecture than smaller ones."""


@dataclass(frozen=True, slots=True)
class Model:
    """An exported model and the words that its records begin with."""

    architecture: str
    export: Export
    path: Path

    def record(self, verb: str) -> Record:
        """Return an empty record of a verb on this model."""
        export = self.export
        return Record(
            self.architecture, export.exporter, export.opset, export.variant, verb, "passed"
        )


@dataclass
class Runner:
    """Tries verbs on models, a process each, and keeps what is known already."""

    journal: Journal
    folder: Path
    verbs: Sequence[Verb]
    source: str
    keep: bool = False
    """Whether records of other sources count, too, unless they failed."""
    exporters: Sequence[str] = ("torchscript", "dynamo")
    single: bool = False
    """Whether one export of an architecture is enough: dynamo's for every eighth name, else
    TorchScript's, which takes a tenth of the time; the other where that fails."""
    seconds: float = 240
    export_seconds: float = 150

    def wanted(self, model: Model) -> list[Verb]:
        """Return the verbs that have not been tried on this model yet."""
        return [verb for verb in self.verbs if not self._is_known(model.record(verb.name))]

    def _is_known(self, record: Record) -> bool:
        known = self.journal.records.get(record.key)
        if known is None:
            return False
        return known.source == self.source or (self.keep and known.outcome != "failed")

    def run_architecture(self, architecture: Architecture) -> None:
        """Export an architecture where that has not been done, then try the verbs."""
        exports = [e for e in choose_exports(architecture) if e.exporter in self.exporters]
        models = [self._place(architecture, export) for export in exports]
        if self.single:
            for model in sorted(models, key=_is_second):
                self._make([model], architecture)
                if model.path.exists():
                    self.try_verbs(model)
                if not self._not_exported(model):
                    return
        self._make(models, architecture)
        for model in models:
            if model.path.exists():
                self.try_verbs(model)

    def _make(self, models: Sequence[Model], architecture: Architecture) -> None:
        """Export what is neither there nor needless: all verbs known, or known not to export."""
        missing = [
            model
            for model in models
            if not model.path.exists() and not self._not_exported(model) and self.wanted(model)
        ]
        if missing:
            self._export(architecture, missing)

    def _place(self, architecture: Architecture, export: Export) -> Model:
        path = self.folder / "models" / architecture.name / f"{export.name}.onnx"
        return Model(architecture.name, export, path)

    def _not_exported(self, model: Model) -> bool:
        known = self.journal.records.get(model.record("export").key)
        return known is not None and known.outcome == "not exported"

    def _export(self, architecture: Architecture, missing: list[Model]) -> None:
        def task(send: Send) -> None:
            import torch

            torch.set_num_threads(1)
            try:
                network = build(architecture)
            except Exception as error:  # noqa: BLE001 - whatever a library raises is recorded
                for model in missing:
                    send("failed", (model, f"build: {_last_line(error)}"))
                return
            for model in missing:
                send("started", (model, ""))
                samples = samples_of(network, architecture.name, half=model.export.half)
                try:
                    # A folder of its own until all is there, external data beside the model.
                    with tempfile.TemporaryDirectory(dir=model.path.parent) as folder:
                        path = Path(folder) / model.path.name
                        write_export(network, model.export, samples, path)
                        save_samples(path.with_suffix(".npz"), samples)
                        why = _why_too_large(path) or _why_unusable(load_case(path))
                        if why is not None:
                            send("failed", (model, why))
                            continue
                        _move(path, model.path)
                except Exception as error:  # noqa: BLE001 - the exporter's own failure
                    send("failed", (model, _last_line(_first_cause(error))))
                else:
                    send("exported", (model, ""))

        for model in missing:
            model.path.parent.mkdir(parents=True, exist_ok=True)
        left, started = list(missing), time.monotonic()
        for kind, value in run_in_process(task, self.export_seconds):
            if kind == "died":
                break
            model, reason = value
            if kind == "started":
                started = time.monotonic()
                continue
            left.remove(model)
            self._note_export(model, reason, time.monotonic() - started)
        else:
            return
        # The one that it died in is the first that is left; the others get a process of their own.
        if left:
            self._note_export(left[0], str(value), time.monotonic() - started)
        if left[1:]:
            self._export(architecture, left[1:])

    def _note_export(self, model: Model, reason: str, seconds: float) -> None:
        outcome = "not exported" if reason else "passed"
        self._add(
            replace(
                model.record("export"),
                outcome=outcome,
                reason=reason[:500],
                seconds=round(seconds, 2),
            )
        )

    def try_verbs(self, model: Model) -> None:
        """Try what has not been tried on a model; a verb that ends its process is recorded."""
        left = self.wanted(model)
        while left:
            current, started, died = left[0], time.monotonic(), None
            for kind, value in run_in_process(_trying(model, left), self.seconds):
                if kind == "died":
                    died = value
                elif kind == "trying":
                    current, started = next(v for v in left if v.name == value), time.monotonic()
                else:
                    self._add(value)
                    left = [verb for verb in left if verb.name != value.verb]
            if died is None:
                return
            seconds = round(time.monotonic() - started, 2)
            self._add(
                replace(model.record(current.name), outcome="failed", reason=died, seconds=seconds)
            )
            left = [verb for verb in left if verb is not current]

    def _add(self, record: Record) -> None:
        record = replace(record, source=self.source)
        self.journal.add(record)
        error = "" if record.sqnr is None else f"{record.sqnr:6.1f} dB"
        print(
            f"{record.outcome:>12} {record.seconds:6.1f} s {error:>9}  {record.architecture} "
            f"{record.exporter}-{record.opset}-{record.variant} {record.verb} "
            f"{record.reason[:150]}",
            flush=True,
        )


def _is_second(model: Model) -> bool:
    """Return whether another export of the same architecture is to be tried before this one."""
    first = "dynamo" if seed_of(model.architecture) // 19 % 8 == 0 else "torchscript"
    return model.export.exporter != first


def _trying(model: Model, verbs: Sequence[Verb]) -> Callable[[Send], None]:
    def task(send: Send) -> None:
        os.chdir(model.path.parent)
        case = load_case(model.path)
        why = _why_unusable(case)
        if why is not None:
            for verb in verbs:
                unusable = replace(model.record(verb.name), outcome="not exported", reason=why)
                send("record", unusable)
            return
        for verb in verbs:
            send("trying", verb.name)
            started = time.monotonic()
            record = model.record(verb.name)
            with tempfile.TemporaryDirectory() as folder:
                try:
                    done = verb.run(case, Path(folder))
                except bitwright.BitwrightError as error:
                    # It does run: that was checked before. Such a reason hides a failure.
                    false = "does not run" in str(error) or "cannot be run" in str(error)
                    outcome = "failed" if false else "refused"
                    record = replace(record, outcome=outcome, reason=str(error)[:900])
                    case.digests[verb.name] = digest_of(str(error).encode())
                except Broken as error:
                    record = replace(record, outcome="failed", reason=str(error)[:1500])
                except Exception as error:  # noqa: BLE001 - an untyped error is what we look for
                    record = replace(
                        record,
                        outcome="failed",
                        reason=f"untyped: {_last_line(error)}"[:1500],
                        facts={"traceback": traceback.format_exc()[-3000:]},
                    )
                else:
                    sqnr = None if done.sqnr is None else round(done.sqnr, 2)
                    record = replace(record, outcome=done.outcome, reason=done.reason, sqnr=sqnr)
                    if done.digest:
                        case.digests[verb.name] = done.digest
                        record = replace(record, facts={"digest": done.digest})
            send("record", replace(record, seconds=round(time.monotonic() - started, 2)))

    return task


def _why_unusable(case: Case) -> str | None:
    """Return why nothing can be tried on a file: ONNX Runtime does not run it."""
    try:
        if not case.is_finite:
            return "the float model gives no finite numbers"
        return None if case.is_repeatable else "the float model gives other numbers each time"
    except Exception as error:  # noqa: BLE001 - whatever it is, the runtime does not run it
        return f"ONNX Runtime does not run it: {_last_line(error)}"


def _why_too_large(path: Path) -> str | None:
    size = sum(file.stat().st_size for file in path.parent.iterdir())
    return f"left out: {size / 1e6:.0f} MB" if size > MAX_BYTES else None


def _move(path: Path, target: Path) -> None:
    for file in path.parent.iterdir():
        if file != path:
            shutil.move(file, target.parent / file.name)
    shutil.move(path, target)


def _first_cause(error: BaseException) -> BaseException:
    """Return what an error was raised from: dynamo's own words are the same for all of them."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _last_line(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}".strip()
    return " ".join(text.split())[:700]


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a name fits one of some patterns; all fit where there is none."""
    return not patterns or any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def model_of_file(architecture: str, exporter: str, path: Path) -> Model:
    """Return a ready file as a model; its opset is read from it."""
    imports = onnx.load(path, load_external_data=False).opset_import
    opset = next((i.version for i in imports if i.domain in {"", "ai.onnx"}), 0)
    return Model(architecture, Export(exporter, opset), path)
