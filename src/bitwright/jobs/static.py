"""One job: a float model on its way through the stages, with what is known of it so far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from bitwright import graph
from bitwright._version import __version__
from bitwright.assess import OutputComparison, compare_outputs
from bitwright.assess.optimized import note_rounded
from bitwright.data import (
    HoldoutSplit,
    InputSpec,
    RandomData,
    Sample,
    Samples,
    random_samples,
    split_holdout,
)
from bitwright.decide.layout.dynamic import lay_out_dynamic
from bitwright.decide.layout.entries import Layout
from bitwright.decide.layout.static import lay_out
from bitwright.decide.planner import decide
from bitwright.decide.scales.parameters import vote_grids
from bitwright.decide.scales.unsigned import shift_to_unsigned
from bitwright.emit import EMITTERS, VENDOR_DOMAIN
from bitwright.errors import DataError, ModelError, RecipeError
from bitwright.jobs.calibration import Calibration, channel_axes, detail_for, mean_axes
from bitwright.jobs.opening import input_specs, open_model
from bitwright.jobs.result import Result
from bitwright.observe import (
    Detail,
    Observation,
    TensorSketch,
    load_sketches,
    observe,
    save_sketches,
)
from bitwright.plan import QuantPlan, Smoothing
from bitwright.recipe import Recipe
from bitwright.rounding import add_to_bias, find_bias_sites, round_as_planned
from bitwright.support.wording import counted

__all__ = ["Calibration", "Job", "sign"]


@dataclass(slots=True)
class Job:
    """A prepared float model, and the samples that will measure its quantized twin."""

    model: ir.Model
    recipe: Recipe
    notes: list[str]
    float_size: int
    source: Any
    providers: Sequence[str] | None = None
    samples: list[Sample] = field(default_factory=list)
    samples_are_unseen: bool = False
    data_description: str = "no data"
    _session: Any = None
    _reference: ir.Model | None = None
    """The float model before it was made to imitate hardware; None: `model` itself."""
    _keep_float: dict[str, str] = field(default_factory=dict)
    _defaults: graph.HiddenDefaults = field(default_factory=graph.HiddenDefaults)
    constants: dict[str, Any] = field(default_factory=dict)
    """Weights and biases that learned: arrays that are rounded in place of the model's own."""
    _sketches: Mapping[str, TensorSketch] = field(default_factory=dict)
    """What was observed for the plan."""

    @classmethod
    def open(cls, source: Any, recipe: Recipe, providers: Sequence[str] | None = None) -> Job:
        """Load a model and bring it into the form that the stages work on."""
        opened = open_model(source, recipe)
        return cls(
            opened.model,
            recipe,
            opened.notes,
            graph.file_size(source),
            source,
            providers,
            _reference=opened.reference,
            _keep_float=opened.keep_float,
            _defaults=opened.defaults,
        )

    @property
    def reference(self) -> ir.Model:
        """What results are measured against: the prepared model, before it imitates hardware."""
        return self._reference or self.model

    @property
    def fingerprint(self) -> str:
        """What a plan for this model must carry."""
        return graph.fingerprint(self.model)

    @property
    def content_fingerprint(self) -> str:
        """What sketches of this model must carry: other weights make other activations."""
        return graph.fingerprint(self.model, weights=True)

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """What the model expects."""
        return input_specs(self.model)

    def make_plan(self, calibration: Calibration) -> QuantPlan:
        """Place the quantizers, observe what they need, and decide."""
        calibration, smoothing = self._smooth_first(calibration)
        layout = self._lay_out()
        sketches = self._observe(layout, calibration) if layout.observed else {}
        self._sketches = sketches
        plan = decide(
            self.model,
            layout,
            sketches,
            self.recipe,
            fingerprint=self.fingerprint,
            tool=f"bitwright {__version__}",
        )
        if not layout.observed and self.recipe.mode == "static":
            self.data_description = "no data: these number types need none"
        if not layout.observed and calibration.data is not None:
            self.measure_on(islice(self.open_data(calibration), 8))
            self.samples_are_unseen = True
        plan.notes[:0] = self.notes
        return msgspec.structs.replace(plan, smoothing=smoothing) if smoothing else plan

    def _smooth_first(self, calibration: Calibration) -> tuple[Calibration, dict[str, Smoothing]]:
        """Smooth as the recipe asks for; return the data in a form that can be read again."""
        if self.recipe.smooth is None:
            return calibration, {}
        calibration = self.keep_data(calibration)
        smoothing = self._find_smoothing(calibration)
        self.smooth(smoothing)
        return calibration, smoothing

    def smooth(self, smoothing: Mapping[str, Smoothing]) -> None:
        """Even out the channels of these tensors; what the model computes stays the same."""
        if not smoothing:
            return
        from bitwright.equalize import apply_smoothing  # few recipes ask for it

        folding = self.recipe.smooth is None or self.recipe.smooth.folding
        added = apply_smoothing(self.model, smoothing, folding=folding)
        # It has to see the outliers in float: behind a quantizer they would be all there is.
        self._keep_float |= dict.fromkeys(added, "it divides by the smoothing factors")
        tensors = "tensor" if len(smoothing) == 1 else "tensors"
        self.notes.append(
            f"smoothed {len(smoothing)} {tensors}, {len(smoothing) - len(added)} without a new node"
        )

    def _lay_out(self) -> Layout:
        if self.recipe.mode == "dynamic":
            self.data_description = "no data: each run measures its own activations"
            return lay_out_dynamic(self.model, self.recipe)
        return lay_out(self.model, self.recipe, keep_float=self._keep_float)

    def write(self, plan: QuantPlan) -> Result:
        """Emit the quantized model, prove that it runs as users will run it, and measure it."""
        plan, quantized = self._emit(plan)
        if bare := _ops_without_body(quantized):
            note = (
                f"not run or measured here: {' and '.join(bare)} have no body "
                "(place.portable is off), so only a runtime that knows them can run the model"
            )
            return self.result(plan.with_notes([note]), quantized, [])
        try:
            session = graph.open_session(quantized, providers=self.providers)
        except ModelError:
            shifted = shift_to_unsigned(plan)
            if shifted is None:
                raise
            plan, quantized = self._emit(shifted)
            session = graph.open_session(quantized, providers=self.providers)
        plan = note_rounded(plan, quantized, self.providers)
        return self.result(plan, quantized, self.run_beside(session))

    def run_beside(self, session: Any) -> list[OutputComparison]:
        """Run the result, and measure it against float where there are samples."""
        if not self.samples:
            self._try_out(session)
        return compare_outputs(
            lambda feeds: graph.run_session(self._float_session(), feeds),
            lambda feeds: graph.run_session(session, feeds),
            self.samples,
        )

    def result(
        self, plan: QuantPlan, quantized: ir.Model, comparisons: list[OutputComparison]
    ) -> Result:
        """Return what the job gives back."""
        return Result(
            model=quantized,
            plan=plan,
            outputs=comparisons,
            samples=len(self.samples),
            samples_are_unseen=self.samples_are_unseen,
            data=self.data_description,
            float_size=self.float_size,
            size=graph.serialized_size(quantized),
            source=self.source,
            evaluation=tuple(self.samples),
        )

    def _emit(self, plan: QuantPlan) -> tuple[QuantPlan, ir.Model]:
        """Return the quantized model, and the plan with what its writing had to note."""
        quantized = self.model_to_round(plan)
        emitter = EMITTERS.get((plan.recipe.mode, plan.recipe.format))
        if emitter is None:
            raise RecipeError(
                f"{plan.recipe.mode} models cannot be written as {plan.recipe.format} yet."
            )
        told = emitter(quantized, plan, round_as_planned) or ()
        self._defaults.show(quantized)
        sign(quantized, plan)
        return plan.with_notes(told), quantized

    def model_to_round(self, plan: QuantPlan) -> ir.Model:
        """Return a copy of the float model with the constants that are rounded for the result."""
        model = graph.clone_model(self.model)
        initializers = model.graph.initializers
        for name, array in self.constants.items():
            initializers[name].const_value = ir.tensor(array, name=name)
        # A layer that was put back to float since has no rounding to make up for.
        quantized = {name for name, node in plan.nodes.items() if node.action == "quantize"}
        sites, _ = find_bias_sites(model, quantized) if plan.bias_shifts else ([], {})
        for name in (site.bias.name or "" for site in sites):
            tensor, shift = initializers[name].const_value, plan.bias_shifts.get(name)
            if tensor is None or shift is None:
                continue
            array = add_to_bias(tensor.numpy(), np.asarray(shift))
            initializers[name].const_value = ir.tensor(array, name=name)
        return model

    def measure_on(self, samples: Iterable[Sample]) -> None:
        """Use these samples to compare the result with float."""
        self.samples = list(samples)
        self.samples_are_unseen = False

    # Observing ----------------------------------------------------------------------------

    def keep_data(self, calibration: Calibration) -> Calibration:
        """Return the same data in a form that two passes can read."""
        self._check_given(calibration)
        return calibration.keep(self.model)

    def _find_smoothing(self, calibration: Calibration) -> dict[str, Smoothing]:
        from bitwright.equalize import find_smoothing_points, smoothing_for

        assert self.recipe.smooth is not None
        planned = lay_out(self.model, self.recipe).nodes
        quantized = {name for name, node in planned.items() if node.action == "quantize"}
        points = find_smoothing_points(self.model, quantized)
        if not points:
            self.notes.append("found nothing to smooth: no quantized product of a constant weight")
            return {}
        seen, _ = self._run_over(
            list(points), calibration, detail="extremes", per_channel=dict.fromkeys(points, -1)
        )
        return smoothing_for(self.model, points, seen.sketches, self.recipe.smooth)

    def input_means(
        self, axes: Mapping[str, int], calibration: Calibration
    ) -> dict[str, npt.NDArray[np.float64]]:
        """Return the mean of each channel of these tensors: as observed, else from a pass more."""
        found = {
            name: sketch
            for name, sketch in self._sketches.items()
            if name in axes and sketch.mean_axis == axes[name]
        }
        if len(found) < len(axes):  # a file of sketches that were kept for ranges alone
            seen, _ = self._run_over(list(axes), calibration, detail="extremes", means=axes)
            found = seen.sketches
        means = {name: sketch.channel_mean for name, sketch in found.items()}
        return {name: mean for name, mean in means.items() if mean is not None}

    def observe_for_all(self, calibration: Calibration) -> Mapping[str, TensorSketch]:
        """Observe what any range method and the correction of biases need, in one pass."""
        calibration, _ = self._smooth_first(calibration)
        layout = self._lay_out()
        return self._run_for(
            layout, calibration, detail="histogram", means=mean_axes(self.model, layout)
        )

    def _observe(self, layout: Layout, calibration: Calibration) -> Mapping[str, TensorSketch]:
        stored = calibration.sketches
        if isinstance(stored, Mapping):
            return self._take(layout, stored)
        if stored is not None and Path(stored).exists():
            return self._reuse(layout, stored, calibration)
        sketches = self._run_for(
            layout,
            calibration,
            detail=detail_for(self.recipe, keep=stored is not None),
            means=mean_axes(self.model, layout) if self.recipe.bias_correction == "fast" else {},
        )
        if stored is not None:
            save_sketches(stored, sketches, fingerprint=self.content_fingerprint)
        return sketches

    def _run_for(
        self, layout: Layout, calibration: Calibration, *, detail: Detail, means: Mapping[str, int]
    ) -> Mapping[str, TensorSketch]:
        """Observe what a layout needs, and keep the samples that were held back."""
        seen, stream = self._run_over(
            list(dict.fromkeys([*layout.observed, *means])),
            calibration,
            detail=detail,
            per_channel=channel_axes(self.recipe, layout),
            per_batch=vote_grids(layout, self.recipe),
            means=means,
        )
        self.samples = stream.evaluation
        self.samples_are_unseen = bool(stream.holdout)
        return seen.sketches

    def _take(
        self, layout: Layout, sketches: Mapping[str, TensorSketch]
    ) -> Mapping[str, TensorSketch]:
        missing = [name for name in layout.observed if name not in sketches]
        if missing:
            raise DataError(
                f"nothing was observed of {missing[0]!r} ({len(missing)} tensors are missing); "
                "observe all that is to be quantized, or exclude its nodes."
            )
        self.data_description = "ranges that were observed elsewhere"
        return sketches

    def _reuse(
        self, layout: Layout, stored: str | Path, calibration: Calibration
    ) -> Mapping[str, TensorSketch]:
        sketches = load_sketches(stored, fingerprint=self.content_fingerprint)
        missing = [name for name in layout.observed if name not in sketches]
        if missing:
            raise DataError(
                f"{str(stored)!r} has no sketch of {missing[0]!r} "
                f"({len(missing)} missing); delete the file to observe again."
            )
        self.data_description = f"sketches from {Path(stored).name}"
        if calibration.data is not None:
            self.measure_on(islice(self.open_data(calibration), 8))
        return sketches

    def _run_over(
        self, tensors: Sequence[str], calibration: Calibration, **options: Any
    ) -> tuple[Observation, HoldoutSplit]:
        """Observe tensors over the calibration data; the held-back part is the same every time."""
        samples = self._open_given(calibration)
        stream = split_holdout(samples) if calibration.holdout else split_holdout(samples, most=0)
        seen: Observation = observe(
            self.model,
            tensors,
            stream,
            memory_budget=calibration.memory_budget,
            providers=self.providers,
            engine=calibration.engine,
            progress=calibration.progress,
            **options,
        )
        self.data_description = f"{counted(seen.samples, 'sample')} of {samples.description}"
        return seen, stream

    def _check_given(self, calibration: Calibration) -> None:
        if calibration.data is None:
            raise DataError(
                f"recipe {self.recipe.name!r} quantizes activations and needs calibration data; "
                "give data (arrays, files, a folder of images, a data reader), or ask for random "
                "data to try things out."
            )
        if isinstance(calibration.data, RandomData):
            self.notes.append(
                "calibrated on random data: the model shows that it runs, not how accurate it can "
                "be"
            )

    def _open_given(self, calibration: Calibration) -> Samples:
        self._check_given(calibration)
        return self.open_data(calibration)

    def open_data(self, calibration: Calibration) -> Samples:
        """Return the samples, which are in the layout of the given model, as checked feeds."""
        return calibration.open(self.model)

    # Running ------------------------------------------------------------------------------

    def _float_session(self) -> Any:
        if self._session is None:
            self._session = graph.open_session(self.reference, providers=self.providers)
        return self._session

    def _try_out(self, session: Any) -> None:
        """Run the result on a made-up sample, where the user gave none and shapes allow it."""
        try:
            sample = next(iter(random_samples(self.inputs, count=1)))
        except DataError:
            return
        try:
            graph.run_session(session, sample)
        except ModelError:
            # A sample may be no fit, such as a token beyond the vocabulary: then float fails too.
            try:
                graph.run_session(self._float_session(), sample)
            except ModelError:
                return
            raise


def sign(quantized: ir.Model, plan: QuantPlan) -> None:
    """Say in a model who made it and how, and check that it is well formed."""
    quantized.producer_name, quantized.producer_version = "bitwright", __version__
    quantized.metadata_props["bitwright.version"] = __version__
    quantized.metadata_props["bitwright.recipe"] = plan.recipe.to_json(indent=0)
    graph.stamp_versions(quantized)
    graph.check_model(quantized)


def _ops_without_body(model: ir.Model) -> list[str]:
    """Return the vendor's operators that the model leaves to whoever runs it."""
    return sorted(
        {
            node.op_type
            for node in model.graph.all_nodes()
            if node.domain == VENDOR_DOMAIN and node.op_identifier() not in model.functions
        }
    )
