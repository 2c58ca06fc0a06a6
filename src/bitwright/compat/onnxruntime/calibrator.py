"""The base of all calibrators: a model, the tensors to calibrate, and how they are observed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from bitwright import graph
from bitwright.compat.onnxruntime.errors import InvalidDataError, raises_builtins
from bitwright.data import Samples, open_data
from bitwright.jobs.opening import input_specs
from bitwright.observe import MEMORY_BUDGET, Observation, SketchOptions, observe
from bitwright.run import Session, SessionRunner

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
Model = Any


class CalibraterBase:
    """A model, the tensors to calibrate, and what was observed of them so far."""

    per_channel: bool = False
    tensors: Sequence[str] | None = None
    """The tensors to calibrate; None: all that nodes of the named types read or write."""

    def __init__(
        self,
        model_path: Model,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | Path = "augmented_model.onnx",
        symmetric: bool = False,
        use_external_data_format: bool = False,
        per_channel: bool = False,
    ) -> None:
        self.op_types_to_calibrate = op_types_to_calibrate
        self.augmented_model_path = augmented_model_path
        self.symmetric = symmetric
        self.use_external_data_format = use_external_data_format
        self.per_channel = per_channel
        self._open_model(model_path)

    def _open_model(self, model_path: Model) -> None:
        self._model = graph.load_model(model_path)
        graph.infer_shapes(self._model)
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
        inputs = {value.name for value in self._model.graph.inputs}
        inner = [name for name in self._tensors() if name not in inputs]
        return graph.expose(self._model, inner).model

    @property
    def infer_session(self) -> Any:
        """A session over the augmented model, opened when asked for."""
        opened = Session(self._augmented(), level="disabled", providers=self.execution_providers)
        return opened.runtime

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

    @raises_builtins()
    def collect_data(self, data_reader: Any) -> None:
        """Run the model over the data; what is seen adds to what was seen before."""
        self._seen |= self._observe(self._open(data_reader), per_channel=self._channel_axes())

    def clear_collected_data(self) -> None:
        """Forget what was collected so far."""
        self._seen = Observation()

    def compute_data(self) -> Any:
        """Return the range of each tensor, from everything that was collected."""
        raise NotImplementedError

    def _open(self, data_reader: Any) -> Samples:
        return open_data(data_reader, input_specs(self._model))

    def _observe(self, samples: Samples, per_channel: dict[str, int] | None = None) -> Observation:
        options: SketchOptions = {"detail": "extremes", "per_channel": per_channel}
        return observe(self._open_runner(), self._tensors(), samples, **options)

    def _open_runner(self) -> Any:
        if self._runner is None:
            self.create_inference_session()
        return self._runner

    def _need_data(self) -> None:
        # Without a tensor to calibrate nothing is run, and there are no ranges to miss.
        if not self._seen.samples and self._tensors():
            raise InvalidDataError("No data is collected. Call collect_data with a reader first.")

    def _tensors(self) -> list[str]:
        if self.tensors is not None:
            return list(self.tensors)
        return calibrated_tensors(self._model, self.op_types_to_calibrate)

    def _channel_axes(self) -> dict[str, int]:
        if not self.per_channel:
            return {}
        values = {value.name: value for value in _named_values(self._model)}
        ranks = {name: values[name].shape for name in self._tensors()}
        return {name: 1 for name, shape in ranks.items() if shape is not None and len(shape) > 1}

    def _dtype(self, tensor: str) -> npt.DTypeLike:
        value = graph.find_value(self._model, tensor)
        return np.float32 if value.dtype is None else value.dtype.numpy()


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
