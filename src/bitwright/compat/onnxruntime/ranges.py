"""Ranges of activations in the numbers of ONNX Runtime's calibrators, and the cache they go to."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from bitwright.compat.onnxruntime.cache import load_tensors_data, save_tensors_data
from bitwright.compat.onnxruntime.calibrate import accepted_options, create_calibrator
from bitwright.compat.onnxruntime.calibrator import calibrated_tensors
from bitwright.compat.onnxruntime.enums import CalibrationMethod
from bitwright.decide.layout.entries import Layout
from bitwright.decide.ops import DEFAULT_OP_TYPES
from bitwright.errors import DataError
from bitwright.jobs.calibration import NO_SAMPLES, Calibrated, Calibration, Evaluation
from bitwright.jobs.opening import Prepared
from bitwright.observe import TensorSketch


@dataclass(frozen=True, slots=True)
class PeerRanges:
    """Gives the ranges that a calibrator finds, or that a cache of one has."""

    method: CalibrationMethod
    options: Mapping[str, Any] = field(default_factory=dict)
    cache: Path | None = None
    smooth: bool = False
    """Whether the model is smoothed before, which a cache notes: its ranges are others then."""
    one_by_one: bool = False
    """Each sample is collected by itself: bins are those of the first, and extended."""

    def __call__(self, prepared: Prepared, layout: Layout, calibration: Calibration) -> Calibrated:
        """Return what was seen of the tensors of a layout: the ends of their ranges."""
        data, evaluation = self.stored(), NO_SAMPLES
        if data is None:
            samples = calibration.split(prepared.model)
            tensors = dict.fromkeys(layout.observed)
            if self.cache is not None:
                wanted = prepared.recipe.select.op_types or sorted(DEFAULT_OP_TYPES)
                tensors |= dict.fromkeys(calibrated_tensors(prepared.model, wanted))
            # Once through the samples: what is needed is kept.
            data = self.calibrate(prepared.model, [*tensors], iter(samples), prepared.providers)
            evaluation = Evaluation.of(samples)
        # Inside, a float16 model computes in float32, under names of its own.
        found = {}
        for name in layout.observed:
            known = next((key for key in (name, name.removesuffix("_float")) if key in data), None)
            if known is None:
                raise DataError(
                    f"Quantization parameters are not specified for param {name}: the calibration "
                    "cache has no range of it; delete the file, or exclude the nodes that use it."
                )
            found[name] = data[known]
        return Calibrated(
            sketches=as_sketches(found), evaluation=evaluation, data=f"ranges by {self.method}"
        )

    def stored(self) -> Any:
        """Return the ranges of the cache, or None where they are to be found anew."""
        if self.cache is None or not self.cache.exists():
            return None
        if not self.cache.is_file():
            raise DataError(f"calibration_cache_path is not a file: {self.cache}")
        content = json.loads(self.cache.read_text(encoding="utf-8"))
        smoothed = bool(content.get("smooth_quant", False))
        if smoothed != self.smooth:
            logging.getLogger().warning(
                f"{self.cache} was made with smooth_quant={smoothed}, and this run has "
                f"smooth_quant={self.smooth}: its ranges are found anew."
            )
            return None
        data = load_tensors_data(self.cache)
        if data.calibration_method != self.method:
            raise DataError(
                f"the calibration cache {str(self.cache)!r} was made with "
                f"{data.calibration_method}, and calibrate_method is {self.method}; delete it, or "
                "ask for the same method."
            )
        return data

    def calibrate(
        self, model: ir.Model, tensors: Sequence[str], samples: Any, providers: Any
    ) -> Any:
        """Return the ranges that the calibrator finds of tensors, and write them to the cache."""
        options = accepted_options(self.method, self.options)
        calibrator = create_calibrator(
            model, calibrate_method=self.method, providers=providers, extra_options=options
        )
        calibrator.tensors = tensors
        for part in [samples] if not self.one_by_one else ([sample] for sample in samples):
            calibrator.collect_data(part)
        data = calibrator.compute_data()
        if self.cache is not None:
            save_tensors_data(data, self.cache, smooth_quant=self.smooth)
        return data


def as_sketches(tensors_range: Any) -> dict[str, TensorSketch]:
    """Return ranges as what calibration would have seen: their two ends."""
    sketches = {}
    for name, data in (tensors_range or {}).items():
        if not hasattr(data, "range_value"):
            raise DataError(f"tensors_range[{name!r}] is a TensorData, not {data!r}.")
        ends = [np.asarray(end, np.float32).reshape(-1) for end in data.range_value]
        sketches[name] = TensorSketch.of(np.concatenate(ends), histogram=False)
    return sketches


def is_sketch_file(path: Path | None) -> bool:
    """Whether a file holds sketches, as caches did before they were JSON."""
    if path is None or not path.is_file():
        return False
    with path.open("rb") as file:
        return not file.read(64).lstrip().startswith(b"{")
