"""Calibrators with ONNX Runtime's names and arguments, on Bitwright's observation.

MinMax takes one streaming pass in constant memory. The histogram methods take two, since bins of
equal width need the extremes first; of data that can be read only once they keep the inputs, never
the activations. Several `collect_data` calls add up. Nothing is written to disk unless
`augment_graph` is called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bitwright.compat.onnxruntime.calibrator import CalibraterBase, Model
from bitwright.compat.onnxruntime.enums import CalibrationMethod, as_member
from bitwright.compat.onnxruntime.histograms import (
    EqualBins,
    MagnitudeBins,
    Magnitudes,
    percentile_edges,
)
from bitwright.compat.onnxruntime.kl_search import least_divergence
from bitwright.compat.onnxruntime.readers import CalibrationDataReader
from bitwright.compat.onnxruntime.tensors_data import (
    CalibrationCacheEncoder,
    TensorData,
    TensorsData,
    load_tensors_data,
    save_tensors_data,
)
from bitwright.compat.options import refuse_unknown
from bitwright.data import cache_samples
from bitwright.decide.ranges.statistics import averaged_extremes, moments
from bitwright.errors import RecipeError, did_you_mean
from bitwright.observe import TensorSketch

__all__ = [
    "CalibraterBase",
    "CalibrationCacheEncoder",
    "CalibrationDataReader",
    "CalibrationMethod",
    "DistributionCalibrater",
    "EntropyCalibrater",
    "HistogramCalibrater",
    "MinMaxCalibrater",
    "PercentileCalibrater",
    "TensorData",
    "TensorsData",
    "create_calibrator",
    "load_tensors_data",
    "save_tensors_data",
]


@dataclass(eq=False, repr=False)
class MinMaxCalibrater(CalibraterBase):
    """The least and the largest value of each tensor, or an average of those of each batch.

    With `moving_average` every sample's extremes count with `averaging_constant`: a running
    average, where ONNX Runtime takes the mean. `max_intermediate_outputs` bounds memory there;
    here one sample's tensors are alive at a time.
    """

    model_path: InitVar[Model]
    op_types_to_calibrate: Sequence[str] | None = None
    augmented_model_path: str | Path = "augmented_model.onnx"
    symmetric: bool = False
    use_external_data_format: bool = False
    moving_average: bool = False
    averaging_constant: float = 0.01
    max_intermediate_outputs: int | None = None
    per_channel: bool = False

    def __post_init__(self, model_path: Model) -> None:
        self._open_model(model_path)
        constant = self.averaging_constant
        if self.moving_average and not 0 <= constant <= 1:
            raise RecipeError(f"averaging_constant lies in [0, 1], not {constant}.")
        if self.moving_average and self.per_channel:
            raise RecipeError("moving_average is kept for whole tensors; drop per_channel.")

    def compute_data(self) -> TensorsData:
        """Return the range of each tensor, an array of one element, or of one for each channel."""
        self._need_data()
        data = {}
        for name, sketch in self._seen.sketches.items():
            if not sketch.finite:
                continue
            low, high = self._ends(sketch)
            if self.symmetric:
                high = np.maximum(np.abs(low), np.abs(high))
                low = -high
            dtype = self._dtype(name)
            data[name] = TensorData(lowest=low.astype(dtype), highest=high.astype(dtype))
        return TensorsData(CalibrationMethod.MinMax, data)

    def _ends(self, sketch: TensorSketch) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        if sketch.channel_low is not None and sketch.channel_high is not None:
            return sketch.channel_low, sketch.channel_high
        ends = (sketch.low, sketch.high)
        if self.moving_average:
            ends = averaged_extremes(sketch, self.averaging_constant)
        return np.array(ends[:1]), np.array(ends[1:])


@dataclass(eq=False, repr=False)
class HistogramCalibrater(CalibraterBase):
    """Ranges from the distribution of each tensor, in bins of equal width; `method` says how."""

    model_path: InitVar[Model]
    op_types_to_calibrate: Sequence[str] | None = None
    augmented_model_path: str | Path = "augmented_model.onnx"
    use_external_data_format: bool = False
    method: str = "percentile"
    symmetric: bool = False
    num_bins: int = 128
    num_quantized_bins: int = 2048
    percentile: float = 99.999
    scenario: str = "same"

    def __post_init__(self, model_path: Model) -> None:
        self._open_model(model_path)
        for what, given, known in (
            ("calibration method", self.method, _METHODS),
            ("scenario", self.scenario, _POWERS),
        ):
            if given not in known:
                raise RecipeError(f"unknown {what} {given!r}.{did_you_mean(given, known)}")
        if not 0 <= self.percentile <= 100:
            raise RecipeError(f"percentile lies in [0, 100], not {self.percentile}.")
        if self.method == "distribution" and self.num_bins < 512:
            raise RecipeError(
                f"the method distribution takes 512 bins or more, not {self.num_bins}."
            )
        self._bins: dict[str, EqualBins | MagnitudeBins] = {}

    def collect_data(self, data_reader: Any) -> None:
        """Count the values of each tensor; the bins of earlier calls are kept, and extended."""
        samples = cache_samples(self._open(data_reader))
        reach = {name: Magnitudes(histogram=False) for name in self._tensors()}
        self._seen.samples += self._observe(samples, sketches=reach).samples
        for name, sizes in reach.items():
            if sizes.finite and name in self._bins:
                self._bins[name].widen(sizes.high)
            elif sizes.finite:
                self._bins[name] = self._bins_for(sizes, self._dtype(name))
        self._observe(samples, sketches=self._bins)

    def _bins_for(self, sizes: TensorSketch, dtype: npt.DTypeLike) -> EqualBins | MagnitudeBins:
        if self.method == "percentile" and self.symmetric:
            return MagnitudeBins(self.num_bins, sizes.low, sizes.high, dtype)
        return EqualBins(self.num_bins, sizes.high, dtype)

    def compute_data(self) -> TensorsData:
        """Return the range of each tensor, with its histogram."""
        self._need_data()
        data = {name: self._of_tensor(bins, self._dtype(name)) for name, bins in self._bins.items()}
        return TensorsData(_METHODS[self.method], data)

    def _of_tensor(self, bins: EqualBins | MagnitudeBins, dtype: npt.DTypeLike) -> TensorData:
        hist, edges = bins.hist, bins.edges
        if self.method == "distribution":
            middles = (edges[:-1] + edges[1:]).astype(float) / 2
            average, deviation = moments(middles, hist.astype(float), _POWERS[self.scenario])
            return TensorData(
                avg=np.array(average, dtype),
                std=np.array(deviation, dtype),
                hist=hist,
                hist_edges=edges,
                lowest=edges[0],
                highest=edges[-1],
            )
        if self.method == "percentile":
            first, last = percentile_edges(hist, self.percentile, symmetric=self.symmetric)
        else:
            first, last = least_divergence(hist, self.num_quantized_bins, dtype)
        low = -edges[first] if self.method == "percentile" and self.symmetric else edges[first]
        return TensorData(
            lowest=np.array(max(low, bins.low), dtype),
            highest=np.array(min(edges[last], bins.high), dtype),
            hist=hist,
            bins=edges,
        )


_METHODS = {
    "entropy": CalibrationMethod.Entropy,
    "percentile": CalibrationMethod.Percentile,
    "distribution": CalibrationMethod.Distribution,
}
# What the values are raised to before their deviation is taken: float8 is about a cube.
_POWERS = {"same": 1.0, "p3": 1 / 3}


@dataclass(eq=False, repr=False)
class EntropyCalibrater(HistogramCalibrater):
    """The range that keeps the distribution best, the same as ONNX Runtime finds.

    Its default of 128 bins for 128 levels leaves it nothing to choose; 2048 bins are the default
    here. `quantize_static` searches with more care: see `bitwright.decide.ranges.entropy`.
    """

    method: str = "entropy"
    num_bins: int = 2048
    num_quantized_bins: int = 128
    percentile: float = field(default=99.999, init=False)
    scenario: str = field(default="same", init=False)


@dataclass(eq=False, repr=False)
class PercentileCalibrater(HistogramCalibrater):
    """The range that holds a percentage of the values."""

    num_bins: int = 2048
    num_quantized_bins: int = field(default=2048, init=False)
    scenario: str = field(default="same", init=False)


@dataclass(eq=False, repr=False)
class DistributionCalibrater(HistogramCalibrater):
    """Mean and standard deviation, for float8; `scenario` "p3" takes them of the cube roots."""

    method: str = "distribution"
    symmetric: bool = field(default=False, init=False)
    num_bins: int = 2048
    num_quantized_bins: int = field(default=2048, init=False)
    percentile: float = field(default=99.999, init=False)


# The calibrator of each method, the options it takes, and those whose default is another here
# than for the class itself.
_CALIBRATORS: dict[CalibrationMethod, tuple[type[CalibraterBase], set[str], dict[str, Any]]] = {
    CalibrationMethod.MinMax: (
        MinMaxCalibrater,
        {
            "symmetric",
            "moving_average",
            "averaging_constant",
            "max_intermediate_outputs",
            "per_channel",
        },
        {},
    ),
    CalibrationMethod.Entropy: (
        EntropyCalibrater,
        {"num_bins", "num_quantized_bins", "symmetric"},
        {},
    ),
    CalibrationMethod.Percentile: (
        PercentileCalibrater,
        {"num_bins", "percentile", "symmetric"},
        {"symmetric": True},
    ),
    CalibrationMethod.Distribution: (DistributionCalibrater, {"num_bins", "scenario"}, {}),
}


def create_calibrator(
    model: Model,
    op_types_to_calibrate: Sequence[str] | None = None,
    augmented_model_path: str | Path = "augmented_model.onnx",
    calibrate_method: Any = CalibrationMethod.MinMax,
    use_external_data_format: bool = False,
    providers: Sequence[str] | None = None,
    extra_options: Mapping[str, Any] | None = None,
) -> CalibraterBase:
    """Return a calibrator that is ready to collect data.

    Options that the chosen method does not know are errors.

    >>> import bitwright
    >>> demo = bitwright.load_demo()
    >>> calibrator = create_calibrator(demo.model_path)
    >>> calibrator.collect_data(demo.calibration[:4])
    >>> [float(end[0]) for end in calibrator.compute_data()["image"].range_value]
    [0.0, 1.0]
    """
    method = as_member(CalibrationMethod, calibrate_method, "calibration method")
    kind, known, defaults = _CALIBRATORS[method]
    options = {**defaults, **(extra_options or {})}
    refuse_unknown(options, known, f" of {kind.__name__}")
    calibrator = kind(
        model,
        op_types_to_calibrate,
        augmented_model_path,
        use_external_data_format=use_external_data_format,
        **options,
    )
    calibrator.set_execution_providers(providers)
    return calibrator
