"""A weight-only job: plan, round in turn, write; data only where a method asks for it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec

from bitwright import graph
from bitwright._version import __version__
from bitwright.data import Sample, split_holdout
from bitwright.decide.layout.weight_only import plan_weights
from bitwright.emit import emit_blocks
from bitwright.errors import DataError
from bitwright.jobs.result import Result
from bitwright.jobs.static import Calibration, Job, sign
from bitwright.jobs.weight_only.fine_tuning import tune_weights
from bitwright.jobs.weight_only.sequence import find_scaling, round_weights
from bitwright.learning.reports import notes_of
from bitwright.numerics.arrays import NUMPY, Arrays, arrays_on
from bitwright.numerics.blocks import QuantizedBlocks
from bitwright.plan import QuantPlan
from bitwright.rounding import BlockStore
from bitwright.support.wording import counted

__all__ = ["WeightJob"]

LARGEST_MEASURED = 1 << 30
"""Bytes of float model up to which the result is run beside it."""


@dataclass(slots=True)
class WeightJob:
    """A job whose recipe quantizes weights only.

    `work` is a folder that keeps each weight as soon as it is rounded: a run that was interrupted
    goes on from there. `device` is where the heavy arithmetic runs: "cpu", or "cuda" with torch.
    """

    job: Job
    calibration: Calibration
    work: str | Path | None = None
    device: str = "cpu"

    def make_plan(self) -> QuantPlan:
        """Decide about every weight; with AWQ, also what inputs are divided by."""
        job = self.job
        plan = self._decide()
        awq = job.recipe.weights.awq
        if awq is not None and awq.scale:
            if self.calibration.data is not None:
                self.calibration = job.keep_data(self.calibration)
            scaling = find_scaling(
                job.model,
                plan,
                self._samples(),
                xp=self._arrays(),
                providers=job.providers,
                progress=self._progress(),
            )
            if scaling:
                job.smooth(scaling)
                plan = msgspec.structs.replace(self._decide(), smoothing=scaling)
        plan.notes[:0] = job.notes
        return plan

    def write(self, plan: QuantPlan) -> Result:
        """Round every weight, emit the model, prove that it runs, and measure it."""
        job = self.job
        learns = plan.recipe.fine_tune is not None
        needs_data = plan.recipe.weights.needs_data or learns
        if learns and self.calibration.data is not None:
            self.calibration = job.keep_data(self.calibration)
        store = BlockStore(self.work, job=self._job_name(plan))
        round_weights(
            job.model,
            plan,
            self._samples() if needs_data else None,
            store,
            xp=self._arrays(),
            providers=job.providers,
            progress=self._progress(),
        )
        if learns:
            store, plan = self._tune(plan, store)
        if not needs_data and self.calibration.data is not None:
            job.measure_on(islice(job.open_data(self.calibration), 8))
            job.samples_are_unseen = True
        quantized = graph.clone_model(job.model)
        options = plan.recipe.weights
        told = emit_blocks(
            quantized,
            _Stored(store, plan),
            readers={name: planned.nodes for name, planned in plan.weights.items()},
            output=options.output,
            accuracy_level=options.accuracy_level,
        )
        sign(quantized, plan)
        plan = plan.with_notes(told)
        if options.output == "matmul-fpq4":
            note = "not run: ONNX Runtime has had no kernel of MatMulFpQ4 since 1.17"
            return job.result(plan.with_notes([note]), quantized, [])
        if job.float_size > LARGEST_MEASURED:
            note = "not run beside the float model, which is too large to be open twice"
            return job.result(plan.with_notes([note]), quantized, [])
        session = graph.open_session(quantized, providers=job.providers)
        return job.result(plan, quantized, job.run_beside(session))

    def _tune(self, plan: QuantPlan, rounded: BlockStore) -> tuple[BlockStore, QuantPlan]:
        """Learn the roundings; return where they are, and the plan that tells of it."""
        folder = None if self.work is None else Path(self.work) / "tuned"
        tuned = BlockStore(folder, job=self._job_name(plan))
        reports = tune_weights(
            self.job.model,
            plan,
            self._samples,
            rounded,
            tuned,
            device=self.device,
            providers=self.job.providers,
            progress=self._progress(),
        )
        rounded.close()
        return tuned, plan.with_notes(notes_of(reports))

    def _decide(self) -> QuantPlan:
        return plan_weights(
            self.job.model,
            self.job.recipe,
            fingerprint=self.job.fingerprint,
            tool=f"bitwright {__version__}",
        )

    def _samples(self) -> Iterator[Sample]:
        """Yield the calibration data, holding some back to measure on."""
        if self.calibration.data is None:
            raise DataError(
                f"recipe {self.job.recipe.name!r} weighs errors by what each layer reads and needs "
                "calibration data; give data, or take a recipe that needs none (int4-rtn)."
            )
        samples = self.job.open_data(self.calibration)
        most = 8 if self.calibration.holdout else 0
        stream = split_holdout(samples, most=most)
        count = 0
        for sample in stream:
            count += 1
            yield sample
        self.job.samples = stream.evaluation
        self.job.samples_are_unseen = bool(stream.holdout)
        self.job.data_description = f"{counted(count, 'sample')} of {samples.description}"

    def _arrays(self) -> Arrays:
        return NUMPY if self.device == "cpu" else arrays_on(self.device)

    def _progress(self) -> Callable[[int, int], None] | None:
        return self.calibration.progress if callable(self.calibration.progress) else None

    def _job_name(self, plan: QuantPlan) -> str:
        """Return what a folder of weights must belong to: this model, plan and data."""
        if self.work is None:
            return ""
        digest = hashlib.sha256(self.job.content_fingerprint.encode())
        chosen = (plan.weights, plan.smoothing, plan.recipe.weights, plan.recipe.fine_tune)
        digest.update(msgspec.json.encode(chosen))
        return digest.hexdigest()


class _Stored(Mapping[str, QuantizedBlocks]):
    """The weights of a plan, each read from the store when it is asked for."""

    def __init__(self, store: BlockStore, plan: QuantPlan) -> None:
        self._store = store
        self._names = tuple(plan.weights)

    def __getitem__(self, name: str) -> QuantizedBlocks:
        return self._store.get(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
