"""What every step of a weight-only job is given: the model, the data, and where it computes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec

from bitwright._version import TOOL
from bitwright.data import HoldoutSplit, TextData
from bitwright.decide.layout.weight_only import plan_weights
from bitwright.jobs.calibration import Calibration, require_data
from bitwright.jobs.compute import ON_CPU, Compute
from bitwright.jobs.opening import Prepared
from bitwright.jobs.weight_only.own_samples import write_samples
from bitwright.numerics.arrays import NUMPY, Arrays, arrays_on
from bitwright.plan import QuantPlan
from bitwright.support.progress import ProgressLines

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
