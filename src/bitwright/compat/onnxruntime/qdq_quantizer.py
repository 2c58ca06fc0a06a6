"""`QDQQuantizer`, on the peer's class; other names of the module are the peer's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx

from bitwright.compat.onnxruntime.enums import QuantFormat
from bitwright.compat.onnxruntime.peer import hand_on, peer
from bitwright.compat.onnxruntime.peer_pass import Names, QuantizerRequest
from bitwright.compat.onnxruntime.planned_quantizer import PlannedQuantizer

__getattr__, __dir__ = hand_on(__name__)


class QDQQuantizer(PlannedQuantizer, peer("qdq_quantizer").QDQQuantizer):  # type: ignore[misc]
    """Q/DQ pairs around the ops of a model, from ranges such as a calibrator gives.

    >>> import bitwright
    >>> from bitwright.compat.onnxruntime import QuantType, create_calibrator
    >>> demo = bitwright.load_demo()
    >>> calibrator = create_calibrator(demo.model_path)
    >>> calibrator.collect_data(demo.calibration[:8])
    >>> types = QuantType.QInt8, QuantType.QUInt8
    >>> quantizer = QDQQuantizer(demo.model_path, True, False, *types, calibrator.compute_data())
    >>> bitwright.inspect(quantizer.quantize_model()).is_quantized
    True
    """

    MARKS = ("tensors_to_quantize", "bias_to_quantize", "nodes_to_remove")
    written = QuantFormat.QDQ

    def __init__(
        self,
        model: str | Path | onnx.ModelProto,
        per_channel: bool,
        reduce_range: bool,
        weight_qType: Any,  # noqa: N803
        activation_qType: Any,  # noqa: N803
        tensors_range: Any,
        nodes_to_quantize: Names = None,
        nodes_to_exclude: Names = None,
        op_types_to_quantize: Names = None,
        extra_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.request = QuantizerRequest.of(locals())
        self.check()
        self.recipe = self.static_recipe()
        super().__init__(**self.request.as_arguments(self.written))

    def is_tensor_quantized(self, tensor_name: str) -> bool:
        """Return whether a tensor has a pair: it is planned, or marked."""
        planned = self.planned(tensor_name) is not None
        return planned or bool(super().is_tensor_quantized(tensor_name))
