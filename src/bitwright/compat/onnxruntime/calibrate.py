"""Calibrators with ONNX Runtime's names and arguments, on Bitwright's observation.

All of them make one streaming pass in constant memory; several `collect_data` calls add up. Nothing
is written to disk unless `augment_graph` is called.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from bitwright import graph
from bitwright.compat.onnxruntime.enums import CalibrationMethod, as_member
from bitwright.compat.onnxruntime.readers import CalibrationDataReader
from bitwright.compat.onnxruntime.tensors_data import (
    CalibrationCacheEncoder,
    TensorData,
    TensorsData,
    load_tensors_data,
    save_tensors_data,
)
from bitwright.data import open_data
from bitwright.decide.statistics import (
    averaged_extremes,
    entropy_cut,
    moments,
    percentile_cut,
    uniform_histogram,
)
from bitwright.errors import DataError, RecipeError, did_you_mean
from bitwright.observe import MEMORY_BUDGET, Observation, TensorSketch, observe
from bitwright.observe.runner import SessionRunner
from bitwright.pipeline import input_specs

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

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
Model = Any


class CalibraterBase:
    """A model, the tensors to calibrate, and what was observed of them so far."""

    _detail: ClassVar[Any] = "extremes"

    def __init__(
        self,
        model_path: Model,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | Path = "augmented_model.onnx",
        symmetric: bool = False,
        use_external_data_format: bool = False,
        per_channel: bool = False,
    ) -> None:
        self._model = graph.load_model(model_path)
        graph.infer_shapes(self._model)
        self.op_types_to_calibrate = op_types_to_calibrate
        self.augmented_model_path = augmented_model_path
        self.symmetric = symmetric
        self.use_external_data_format = use_external_data_format
        self.per_channel = per_channel
        self.execution_providers: Sequence[str] = ["CPUExecutionProvider"]
        self._seen = Observation()
        self._runner: SessionRunner | None = None

    @property
    def model(self) -> onnx.ModelProto:
        """The model, its shapes inferred."""
        return ir.to_proto(self._model)

    def get_augment_model(self) -> onnx.ModelProto:
        """Return the model with the calibrated tensors as outputs."""
        return ir.to_proto(self._augmented())

    def augment_graph(self) -> None:
        """Write the model with the calibrated tensors as outputs; calibrating does not need it."""
        external = True if self.use_external_data_format else None
        graph.save_model(self._augmented(), self.augmented_model_path, external_data=external)

    def _augmented(self) -> ir.Model:
        inner = [name for name in self._tensors() if name not in self._inputs()]
        return graph.expose(self._model, inner).model

    @property
    def infer_session(self) -> Any:
        """A session over the augmented model, opened when asked for."""
        return graph.open_session(
            self._augmented(), level="disabled", providers=self.execution_providers
        )

    def set_execution_providers(self, execution_providers: Sequence[str] | None = None) -> None:
        """Run on these execution providers from now on."""
        self.execution_providers = execution_providers or ["CPUExecutionProvider"]
        self.create_inference_session()

    def create_inference_session(self) -> None:
        """Get ready to run the model."""
        # Without optimizations, which sum in another order: the numbers are then the same, to
        # the bit, as those of ONNX Runtime's calibrators.
        self._runner = SessionRunner(
            self._model,
            self._tensors(),
            group_bytes=MEMORY_BUDGET // 2,
            providers=self.execution_providers,
            level="disabled",
        )

    def select_tensors_to_calibrate(
        self, model: onnx.ModelProto | None = None
    ) -> tuple[set[str], dict[str, onnx.ValueInfoProto]]:
        """Return the names of the tensors to calibrate, and the types of all that are known."""
        chosen = self._model
        if model is not None:
            chosen = graph.load_model(model)
            graph.infer_shapes(chosen)
        infos = {
            value.name: ir.to_proto(value)
            for value in _named_values(chosen)
            if value.name and value.type is not None
        }
        return set(calibrated_tensors(chosen, self.op_types_to_calibrate)), infos

    def collect_data(self, data_reader: Any) -> None:
        """Run the model over the data; what is seen adds to what was seen before."""
        if self._runner is None:
            self.create_inference_session()
        self._seen |= observe(
            self._runner,
            self._tensors(),
            open_data(data_reader, input_specs(self._model)),
            detail=self._detail,
            per_channel=self._channel_axes(),
        )

    def compute_data(self) -> TensorsData:
        """Return the range of each tensor, from everything that was collected."""
        raise NotImplementedError

    def _sketches(self) -> dict[str, TensorSketch]:
        if not self._seen.samples:
            raise DataError("no data is collected; call collect_data with a reader first.")
        return {name: sketch for name, sketch in self._seen.sketches.items() if sketch.finite}

    def _tensors(self) -> list[str]:
        return calibrated_tensors(self._model, self.op_types_to_calibrate)

    def _inputs(self) -> set[str | None]:
        return {value.name for value in self._model.graph.inputs}

    def _channel_axes(self) -> dict[str, int]:
        if not self.per_channel:
            return {}
        values = {value.name: value for value in _named_values(self._model)}
        ranks = {name: values[name].shape for name in self._tensors()}
        return {name: 1 for name, shape in ranks.items() if shape is not None and len(shape) > 1}

    def _dtype(self, tensor: str) -> npt.DTypeLike:
        value = graph.find_value(self._model, tensor)
        return np.float32 if value.dtype is None else value.dtype.numpy()


class MinMaxCalibrater(CalibraterBase):
    """The least and the largest value of each tensor, or an average of those of each batch.

    With `moving_average` every sample's extremes count with `averaging_constant`: a running
    average, where ONNX Runtime takes the mean. `max_intermediate_outputs` bounds memory there;
    here one sample's tensors are alive at a time.
    """

    def __init__(
        self,
        model_path: Model,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | Path = "augmented_model.onnx",
        symmetric: bool = False,
        use_external_data_format: bool = False,
        moving_average: bool = False,
        averaging_constant: float = 0.01,
        max_intermediate_outputs: int | None = None,
        per_channel: bool = False,
    ) -> None:
        super().__init__(
            model_path,
            op_types_to_calibrate,
            augmented_model_path,
            symmetric,
            use_external_data_format,
            per_channel,
        )
        if moving_average and not 0 <= averaging_constant <= 1:
            raise RecipeError(f"averaging_constant lies in [0, 1], not {averaging_constant}.")
        if moving_average and per_channel:
            raise RecipeError("moving_average is kept for whole tensors; drop per_channel.")
        self.moving_average = moving_average
        self.averaging_constant = averaging_constant
        self.max_intermediate_outputs = max_intermediate_outputs

    def compute_data(self) -> TensorsData:
        """Return the range of each tensor, an array of one element, or of one for each channel."""
        data = {}
        for name, sketch in self._sketches().items():
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


class HistogramCalibrater(CalibraterBase):
    """Ranges from the distribution of each tensor; `method` says how."""

    _detail: ClassVar[Any] = "linear"

    def __init__(
        self,
        model_path: Model,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | Path = "augmented_model.onnx",
        use_external_data_format: bool = False,
        method: str = "percentile",
        symmetric: bool = False,
        num_bins: int = 128,
        num_quantized_bins: int = 2048,
        percentile: float = 99.999,
        scenario: str = "same",
    ) -> None:
        super().__init__(
            model_path,
            op_types_to_calibrate,
            augmented_model_path,
            symmetric,
            use_external_data_format,
        )
        if method not in _METHODS:
            raise RecipeError(
                f"unknown calibration method {method!r}.{did_you_mean(method, _METHODS)}"
            )
        if not 0 <= percentile <= 100:
            raise RecipeError(f"percentile lies in [0, 100], not {percentile}.")
        if scenario not in _POWERS:
            raise RecipeError(f"unknown scenario {scenario!r}.{did_you_mean(scenario, _POWERS)}")
        if method == "distribution" and num_bins < 512:
            raise RecipeError(f"the method distribution takes 512 bins or more, not {num_bins}.")
        self.method = method
        self.num_bins = num_bins
        self.num_quantized_bins = num_quantized_bins
        self.percentile = percentile
        self.scenario = scenario

    def compute_data(self) -> TensorsData:
        """Return the range of each tensor, with its histogram."""
        data = {
            name: self._of_tensor(sketch, self._dtype(name))
            for name, sketch in self._sketches().items()
        }
        return TensorsData(_METHODS[self.method], data)

    def _of_tensor(self, sketch: TensorSketch, dtype: npt.DTypeLike) -> TensorData:
        absolute = self.method == "percentile" and self.symmetric
        hist, edges = uniform_histogram(sketch, self.num_bins, absolute=absolute)
        if self.method == "distribution":
            middles = (edges[:-1] + edges[1:]) / 2
            average, deviation = moments(middles, hist.astype(float), _POWERS[self.scenario])
            return TensorData(
                avg=np.array(average, dtype),
                std=np.array(deviation, dtype),
                hist=hist,
                hist_edges=edges.astype(dtype),
                lowest=np.array(edges[0], dtype),
                highest=np.array(edges[-1], dtype),
            )
        if self.method == "percentile":
            low, high = percentile_cut(sketch, self.percentile, symmetric=self.symmetric)
        else:
            low, high = entropy_cut(sketch, self.num_bins, self.num_quantized_bins)
        return TensorData(
            lowest=np.array(low, dtype),
            highest=np.array(high, dtype),
            hist=hist,
            bins=edges.astype(dtype),
        )


_METHODS = {
    "entropy": CalibrationMethod.Entropy,
    "percentile": CalibrationMethod.Percentile,
    "distribution": CalibrationMethod.Distribution,
}
# What the values are raised to before their deviation is taken: float8 is about a cube.
_POWERS = {"same": 1.0, "p3": 1 / 3}


class EntropyCalibrater(HistogramCalibrater):
    """The range that keeps the distribution best.

    ONNX Runtime's default of 128 bins for 128 levels leaves it nothing to choose; 2048 bins are
    the default here.
    """

    def __init__(
        self,
        model_path: Model,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | Path = "augmented_model.onnx",
        use_external_data_format: bool = False,
        method: str = "entropy",
        symmetric: bool = False,
        num_bins: int = 2048,
        num_quantized_bins: int = 128,
    ) -> None:
        super().__init__(
            model_path,
            op_types_to_calibrate,
            augmented_model_path,
            use_external_data_format,
            method,
            symmetric,
            num_bins,
            num_quantized_bins,
        )


class PercentileCalibrater(HistogramCalibrater):
    """The range that holds a percentage of the values."""

    def __init__(
        self,
        model_path: Model,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | Path = "augmented_model.onnx",
        use_external_data_format: bool = False,
        method: str = "percentile",
        symmetric: bool = False,
        num_bins: int = 2048,
        percentile: float = 99.999,
    ) -> None:
        super().__init__(
            model_path,
            op_types_to_calibrate,
            augmented_model_path,
            use_external_data_format,
            method,
            symmetric,
            num_bins,
            percentile=percentile,
        )


class DistributionCalibrater(HistogramCalibrater):
    """Mean and standard deviation, for float8; `scenario` "p3" takes them of the cube roots."""

    def __init__(
        self,
        model_path: Model,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | Path = "augmented_model.onnx",
        use_external_data_format: bool = False,
        method: str = "distribution",
        num_bins: int = 2048,
        scenario: str = "same",
    ) -> None:
        super().__init__(
            model_path,
            op_types_to_calibrate,
            augmented_model_path,
            use_external_data_format,
            method,
            num_bins=num_bins,
            scenario=scenario,
        )


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
    for name in options:
        if name not in known:
            raise RecipeError(f"{kind.__name__} has no option {name!r}.{did_you_mean(name, known)}")
    calibrator = kind(
        model,
        op_types_to_calibrate,
        augmented_model_path,
        use_external_data_format=use_external_data_format,
        **options,
    )
    calibrator.set_execution_providers(providers)
    return calibrator


def calibrated_tensors(model: ir.Model, op_types: Iterable[str] | None) -> list[str]:
    """Return the float tensors that nodes of these types (all, if none are named) read or write."""
    wanted = set(op_types or ())
    found: dict[str, None] = {}
    for node in model.graph:
        if wanted and node.op_type not in wanted:
            continue
        for value in (*node.inputs, *node.outputs):
            if value is None or not value.name or value.is_initializer():
                continue
            if value.dtype in _FLOATS and value.graph is model.graph:
                found[value.name] = None
    return list(found)


def _named_values(model: ir.Model) -> list[ir.Value]:
    return [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]
