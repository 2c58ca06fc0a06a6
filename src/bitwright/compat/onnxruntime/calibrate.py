"""Calibrators with ONNX Runtime's names and arguments, on Bitwright's observation.

MinMax takes one streaming pass in constant memory. The histogram methods take two, since bins of
equal width need the extremes first; of data that can be read only once they keep the inputs, never
the activations. Several `collect_data` calls add up. Nothing is written to disk unless
`augment_graph` is called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bitwright.compat.onnxruntime.cache import CalibrationCacheEncoder as CalibrationCacheEncoder
from bitwright.compat.onnxruntime.cache import load_tensors_data as load_tensors_data
from bitwright.compat.onnxruntime.cache import make_tensors_data
from bitwright.compat.onnxruntime.cache import save_tensors_data as save_tensors_data
from bitwright.compat.onnxruntime.calibrator import CalibraterBase as CalibraterBase
from bitwright.compat.onnxruntime.calibrator import Model
from bitwright.compat.onnxruntime.enums import CalibrationMethod, as_member
from bitwright.compat.onnxruntime.errors import raises_builtins
from bitwright.compat.onnxruntime.histograms import (
    EqualBins,
    MagnitudeBins,
    Magnitudes,
    least_divergence,
    percentile_edges,
)
from bitwright.compat.onnxruntime.peer import hand_on, peer
from bitwright.compat.onnxruntime.readers import CalibrationDataReader as CalibrationDataReader
from bitwright.compat.options import find_name, ignore_unknown
from bitwright.data import cache_samples
from bitwright.decide.ranges.statistics import moments
from bitwright.errors import RecipeError
from bitwright.observe import TensorSketch, fill_sketches
from bitwright.support.array_types import Array

__getattr__, __dir__ = hand_on(__name__)


@dataclass(eq=False, repr=False)
class MinMaxCalibrater(CalibraterBase):
    """The least and the largest value of each tensor, or an average of those of each batch.

    With `moving_average` it is the mean of a call of `collect_data`, and `averaging_constant` is
    how much a later call counts. `max_intermediate_outputs` bounds memory there; here one sample's
    tensors are alive at a time.
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
        self._averages: dict[str, Array] = {}

    @raises_builtins()
    def collect_data(self, data_reader: Any) -> None:
        """Run the model over the data; what is seen adds to what was seen before."""
        seen = self._observe(self._open(data_reader), per_channel=self._channel_axes())
        self._seen |= seen
        for name, sketch in seen.sketches.items() if self.moving_average else ():
            mean = np.nanmean(sketch.batches.astype(self._dtype(name)), axis=0)
            before = self._averages.get(name, mean)
            self._averages[name] = before + self.averaging_constant * (mean - before)

    def clear_collected_data(self) -> None:
        """Forget what was collected."""
        super().clear_collected_data()
        self._averages.clear()

    def compute_range(self) -> dict[str, Any]:
        """Return (lowest, highest) of each tensor, as releases up to 1.15 called it."""
        return {name: data.range_value for name, data in self.compute_data().items()}

    def compute_data(self) -> Any:
        """Return the range of each tensor, an array of one element, or of one for each channel."""
        self._need_data()
        data = {}
        for name, sketch in self._seen.sketches.items():
            if not sketch.finite:
                continue
            low, high = self._ends(name, sketch)
            if self.symmetric:
                high = np.maximum(np.abs(low), np.abs(high))
                low = -high
            dtype = self._dtype(name)
            data[name] = {"lowest": low.astype(dtype), "highest": high.astype(dtype)}
        return make_tensors_data(CalibrationMethod.MinMax, data)

    def merge_range(self, old_range: Any, new_range: Any) -> Any:
        """Widen new ranges by old ones, or average them if that was asked for."""
        return peer("calibrate").MinMaxCalibrater.merge_range(self, old_range, new_range)

    def _ends(self, name: str, sketch: TensorSketch) -> tuple[Array, Array]:
        if sketch.channel_low is not None and sketch.channel_high is not None:
            return sketch.channel_low, sketch.channel_high
        ends = (sketch.low, sketch.high)
        if self.moving_average:
            ends = tuple(self._averages[name])
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
        self._check()
        self._bins: dict[str, EqualBins | MagnitudeBins] = {}

    def clear_collected_data(self) -> None:
        """Forget what was collected so far."""
        super().clear_collected_data()
        self._bins = {}

    @raises_builtins()
    def collect_data(self, data_reader: Any) -> None:
        """Count the values of each tensor; the bins of earlier calls are kept, and extended."""
        samples = cache_samples(self._open(data_reader))
        reach = {name: Magnitudes(histogram=False) for name in self._tensors()}
        self._seen.samples += fill_sketches(self._open_runner(), reach, samples).samples
        for name, sizes in reach.items():
            if sizes.finite and name in self._bins:
                self._bins[name].widen(sizes.high)
            elif sizes.finite:
                self._bins[name] = self._bins_for(sizes, self._dtype(name))
        fill_sketches(self._open_runner(), self._bins, samples)

    def compute_data(self) -> Any:
        """Return the range of each tensor, with its histogram."""
        self._need_data()
        data = {name: self._fields(bins, self._dtype(name)) for name, bins in self._bins.items()}
        return make_tensors_data(_METHODS[self.method], data)

    def _check(self) -> None:
        find_name(self.method, _METHODS, "calibration method")
        find_name(self.scenario, _POWERS, "scenario")
        if not 0 <= self.percentile <= 100:
            raise RecipeError(f"percentile lies in [0, 100], not {self.percentile}.")
        if self.method == "distribution" and self.num_bins < 512:
            raise RecipeError(
                f"the method distribution takes 512 bins or more, not {self.num_bins}."
            )

    def _bins_for(self, sizes: TensorSketch, dtype: npt.DTypeLike) -> EqualBins | MagnitudeBins:
        if self.method == "percentile" and self.symmetric:
            return MagnitudeBins(self.num_bins, sizes.low, sizes.high, dtype)
        return EqualBins(self.num_bins, sizes.high, dtype)

    def _fields(self, bins: EqualBins | MagnitudeBins, dtype: npt.DTypeLike) -> dict[str, Any]:
        """Return what a `TensorData` has of a tensor, by name."""
        hist, edges = bins.hist, bins.edges
        if self.method == "distribution":
            middles = (edges[:-1] + edges[1:]).astype(float) / 2
            average, deviation = moments(middles, hist.astype(float), _POWERS[self.scenario])
            return {
                "avg": np.array(average, dtype),
                "std": np.array(deviation, dtype),
                "hist": hist,
                "hist_edges": edges,
                "lowest": edges[0],
                "highest": edges[-1],
            }
        if self.method == "percentile":
            first, last = percentile_edges(hist, self.percentile, symmetric=self.symmetric)
        else:
            first, last = least_divergence(hist, self.num_quantized_bins, dtype)
        low = -edges[first] if self.method == "percentile" and self.symmetric else edges[first]
        return {
            "lowest": np.array(max(low, bins.low), dtype),
            "highest": np.array(min(edges[last], bins.high), dtype),
            "hist": hist,
            "bins": edges,
        }


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

    Its default of 128 bins for 128 levels leaves it nothing to choose: it is then the whole range.
    """

    method: str = "entropy"
    num_bins: int = 128
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


class HistogramCollector(peer("calibrate").HistogramCollector):  # type: ignore[misc]
    """Ranges from histograms of arrays that the caller has.

    The peer gives two counts of a percentile's histogram for its counts and edges.

    >>> collector = HistogramCollector("percentile", False, 128, 128, 99.0, "same")
    >>> collector.collect({"x": np.linspace(-1, 1, 1001, dtype=np.float32)})
    Collecting tensor data and making histogram ...
    >>> ends = collector.compute_percentile()["x"]  # doctest: +ELLIPSIS
    Number of tensors : 1...
    >>> round(float(ends[1]), 1), ends[2].sum()
    (1.0, np.int64(1001))
    """

    def compute_percentile(self) -> dict[str, tuple[Any, ...]]:
        """Return (lowest, highest, counts, edges) of each tensor."""
        found = super().compute_percentile().items()
        return {name: (*given[:2], *self.histogram_dict[name][:2]) for name, given in found}


_CALIBRATORS: dict[CalibrationMethod, type[CalibraterBase]] = {
    CalibrationMethod.MinMax: MinMaxCalibrater,
    CalibrationMethod.Entropy: EntropyCalibrater,
    CalibrationMethod.Percentile: PercentileCalibrater,
    CalibrationMethod.Distribution: DistributionCalibrater,
}
# Options whose default is another here than for the class itself.
_DEFAULTS = {CalibrationMethod.Percentile: {"symmetric": True}}
_ARGUMENTS = {
    *("op_types_to_calibrate", "augmented_model_path", "use_external_data_format", "method")
}
"""Fields of a calibrator that are no options."""


def accepted_options(method: CalibrationMethod, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those options that the calibrator of a method takes."""
    known = _known_options(method)
    return {name: value for name, value in options.items() if name in known}


def _known_options(method: CalibrationMethod) -> set[str]:
    taken = {field.name for field in fields(_CALIBRATORS[method]) if field.init}  # type: ignore[arg-type]
    return taken - _ARGUMENTS


@raises_builtins()
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

    Options that the chosen method does not know are ignored with a warning.

    >>> import bitwright
    >>> demo = bitwright.load_demo()
    >>> calibrator = create_calibrator(demo.model_path)
    >>> calibrator.collect_data(demo.calibration[:4])
    >>> [float(end[0]) for end in calibrator.compute_data()["image"].range_value]
    [0.0, 1.0]
    """
    method = as_member(CalibrationMethod, calibrate_method, "calibration method")
    kind = _CALIBRATORS[method]
    given = {**_DEFAULTS.get(method, {}), **(extra_options or {})}
    options = ignore_unknown(given, sorted(_known_options(method)), f" of {kind.__name__}")
    calibrator = kind(
        model,
        op_types_to_calibrate,
        augmented_model_path,
        use_external_data_format=use_external_data_format,
        **options,
    )
    calibrator.set_execution_providers(providers)
    return calibrator
