"""What every step of a weight-only job is given: the model, the data, and where it computes."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import onnx_ir as ir

from bitwright import graph
from bitwright._version import TOOL
from bitwright.data import HoldoutSplit, Samples, TextData, fill_token_inputs, is_cache
from bitwright.data.token_inputs import Heads, continued_by, folder_of_configuration, is_tokens
from bitwright.decide.layout.weight_only import plan_weights
from bitwright.errors import ModelError
from bitwright.jobs.calibration import Calibration, require_data
from bitwright.jobs.opening import ON_CPU, Compute, Prepared, input_specs
from bitwright.numerics.arrays import NUMPY, Arrays, arrays_on
from bitwright.plan import QuantPlan
from bitwright.support import Array, Progress, ProgressLines, show_progress

# Windows that a decoder writes itself, to calibrate on where no text is given ------------------
#
# Each begins with a token of another part of the vocabulary and goes on at temperature 1, as in
# LLM-QAT (arXiv:2305.17888): what the model says itself has all kinds of text that it knows.

BATCH = 16
"""Windows that are written side by side: each weight is read once for all of them."""
MAX_UNASKED = 4 << 30
"""Bytes of a model up to which it is run as a whole, for minutes, where no recipe asks for it."""


def writes_samples(source: graph.ModelSource, most: float = math.inf) -> bool:
    """Whether a model, or one of a folder, is a decoder with a cache, of so many bytes at most."""
    if isinstance(source, str | os.PathLike) and Path(source).is_dir():
        return any(writes_samples(path, most) for path in sorted(Path(source).rglob("*.onnx")))
    model = graph.load_model(source)
    return _find_outputs(model) is not None and graph.file_size(source) <= most


def write_samples(prepared: Prepared, count: int, progress: Progress) -> Samples | None:
    """Return windows that a decoder has written; None: it is none."""
    outputs = _find_outputs(prepared.model)
    if outputs is None:
        return None
    specs = prepared.inputs
    text = TextData(text="", config=folder_of_configuration(prepared.source))
    length = text.window(specs)
    writer = _Writer(prepared, outputs, text.heads(), np.random.default_rng(0))
    rows = np.zeros((0, length), np.int64)
    # How many windows the model reads at once, where its inputs fix it.
    sizes = (spec.shape[0] for spec in specs if is_tokens(spec) and spec.shape)
    fixed = next((size for size in sizes if isinstance(size, int)), None)
    with show_progress(progress, "Writing samples", count * length) as report:
        while len(rows) < count:
            size = fixed or min(BATCH, count - len(rows))
            first = len(rows) + np.arange(size) + writer.chance.random(size)
            tokens = writer.begin(first / max(count, len(rows) + size))
            for more in writer.go_on(tokens, rows.shape[1]):
                tokens = more
                report(rows.size + tokens.size)
            rows = np.concatenate([rows[:, : tokens.shape[1]], tokens])
    return text.samples_of(rows[:count], specs, "what the model wrote itself")


class _Outputs(NamedTuple):
    """What of a decoder's outputs goes on."""

    logits: str
    caches: dict[str, str]
    """Each input that is a cache, and the output that is it after the next token."""


def _find_outputs(model: ir.Model) -> _Outputs | None:
    specs, outputs = input_specs(model), [value.name or "" for value in model.graph.outputs]
    logits = next((name for name in outputs if "logits" in name), None)
    caches = {spec.name: continued_by(spec.name, outputs) for spec in specs if is_cache(spec.name)}
    grow = {name: present for name, present in caches.items() if present is not None}
    fixed = any(is_cache(s.name) and all(isinstance(d, int) for d in s.shape or ()) for s in specs)
    read = any(map(is_tokens, specs)) and not TextData(text="").unfilled(specs)
    if logits is None or not grow or len(grow) < len(caches) or fixed or not read:
        return None
    return _Outputs(logits, grow)


class _Writer(NamedTuple):
    """A decoder that goes on with what it has written."""

    prepared: Prepared
    outputs: _Outputs
    heads: Heads
    chance: np.random.Generator

    def begin(self, places: Array) -> Array:
        """Return one token for each window, at these places of the vocabulary, from 0 to 1."""
        scores, _ = self._run(np.zeros((len(places), 1), np.int64), 0, {})
        found: Array = (places * scores.shape[-1]).astype(np.int64)[:, None]
        return found

    def go_on(self, tokens: Array, length: int) -> Iterator[Array]:
        """Yield the windows with one more token at a time."""
        caches: dict[str, Array] = {}
        for done in range(length - 1):
            try:
                scores, caches = self._run(tokens[:, done:], done, caches)
            except ModelError:  # it knows no more positions
                if not done:
                    raise
                yield tokens[:, :done]
                return
            tokens = np.concatenate([tokens, self._draw(scores)], axis=1)
            yield tokens

    def _draw(self, scores: Array) -> Array:
        """Return a token for each row, each as likely as the model says."""
        scores = scores.astype(np.float32)
        summed = np.exp(scores - scores.max(axis=1, keepdims=True)).cumsum(axis=1)
        drawn = self.chance.random((len(scores), 1), np.float32) * summed[:, -1:]
        found: Array = np.minimum((summed <= drawn).sum(axis=1, keepdims=True), scores.shape[1] - 1)
        return found

    def _run(
        self, tokens: Array, done: int, caches: dict[str, Array]
    ) -> tuple[Array, dict[str, Array]]:
        feeds = fill_token_inputs(tokens, self.prepared.inputs, done=done, heads=self.heads)
        wanted = [self.outputs.logits, *self.outputs.caches.values()]
        found = self.prepared.reference_session.run({**feeds, **caches}, wanted)
        grown = {name: found[present] for name, present in self.outputs.caches.items()}
        return found[self.outputs.logits][:, -1], grown


WINDOWS = 32
"""Windows of a text that are used where no limit is given; twice as many lower the KL divergence of
4 bits by less than a tenth."""
ONE_KIND = (
    "warning: the text is all of one kind, and answers to others (another language, source code) "
    "will lose more; give several files of different kinds, in a folder"
)
OWN = (
    "no text was given: calibrated on what the model wrote itself; text of the kinds that it is to "
    "read lowers the loss on them"
)


@dataclass(frozen=True)
class WeightWork:
    """A model whose weights are to be rounded, the data for it, and the means to do it."""

    prepared: Prepared
    calibration: Calibration
    compute: Compute = ON_CPU
    notes: tuple[str, ...] = ()
    """What there is to note of the data."""

    @cached_property
    def xp(self) -> Arrays:
        """What computes with weights: numpy, or torch on a device."""
        return NUMPY if self.compute.device == "cpu" else arrays_on(self.compute.device)

    @property
    def progress(self) -> Callable[[int, int], None] | None:
        """What hears how many weights are done."""
        given = self.calibration.progress
        return given if callable(given) else ProgressLines("Weights") if given else None

    def decide(self) -> QuantPlan:
        """Return the plan before anything is measured."""
        prepared = self.prepared
        fingerprint = prepared.fingerprint
        return plan_weights(prepared.model, prepared.recipe, fingerprint=fingerprint, tool=TOOL)

    def samples(self) -> HoldoutSplit:
        """Return one pass over the calibration data, which must be given."""
        other = "take a recipe that needs none"
        instead = f"{other} (int4-rtn)", f"{other} (--recipe int4-rtn)"
        does = "weighs errors by what each layer reads"
        require_data(self.prepared.recipe, self.calibration, does, instead)
        return self.calibration.split(self.prepared.model)

    def for_passes(self) -> WeightWork:
        """Return it with data in a form that as many passes can read as the recipe takes."""
        recipe = self.prepared.recipe
        work = self.with_windows(recipe.weights.needs_data or recipe.fine_tune is not None)
        weights = recipe.weights
        scales = weights.awq is not None and weights.awq.scale
        measures = weights.mixed is not None and weights.mixed.needs_data
        several = scales or measures or recipe.fine_tune is not None or weights.rotate == "auto"
        if work.calibration.data is None or not several:
            return work
        return replace(work, calibration=work.calibration.keep(self.prepared.model))

    def with_windows(self, needs_data: bool) -> WeightWork:
        """Return it with windows of a text, or of the model's own, and a note on what they are."""
        calibration = self.calibration
        text, limit = calibration.data, calibration.limit or WINDOWS
        if text is None and needs_data:
            own = write_samples(self.prepared, limit, calibration.progress)
            given = replace(calibration, data=own)
            return self if own is None else replace(self, calibration=given, notes=(OWN,))
        if not isinstance(text, TextData):
            return self
        limited = replace(calibration, limit=limit)
        alike = needs_data and text.is_of_one_kind(self.prepared.inputs, limited.limit)
        return replace(self, calibration=limited, notes=(ONE_KIND,) if alike else ())

    def store_name(self, plan: QuantPlan) -> str:
        """Return what a folder of weights must belong to: this model, plan and data."""
        if self.compute.work is None:
            return ""
        digest = hashlib.sha256(self.prepared.content_fingerprint.encode())
        chosen = (plan.weights, plan.smoothing, plan.recipe.weights, plan.recipe.fine_tune)
        digest.update(msgspec.json.encode(chosen))
        return digest.hexdigest()
