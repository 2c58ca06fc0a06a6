"""IR and opset versions that the installed ONNX Runtime reads, and stamping models to fit.

onnx and onnxruntime are released apart: onnx 1.23 writes IR version 14, onnxruntime 1.31 reads up
to 13, and no table in either package says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import helper

from bitwright.errors import ModelError

# Initializers need not be graph inputs from IR 4 on; we always write them that way.
_LOWEST_IR = 4


@dataclass(frozen=True, slots=True)
class RuntimeLimits:
    """The newest IR version and opset that the installed ONNX Runtime reads."""

    ir_version: int
    opset: int


@cache
def runtime_limits() -> RuntimeLimits:
    """Return what the installed ONNX Runtime reads, by opening tiny models in it (once)."""
    newest_opset = onnx.defs.onnx_opset_version()
    opset = next((v for v in range(newest_opset, 6, -1) if _opens(_LOWEST_IR, v)), 0)
    ir_version = next(
        (v for v in range(onnx.IR_VERSION, _LOWEST_IR - 1, -1) if _opens(v, opset)), 0
    )
    if not ir_version:
        raise ModelError(
            "the installed onnxruntime opens no ONNX model at all; reinstall it with "
            "`pip install --force-reinstall onnxruntime`."
        )
    return RuntimeLimits(ir_version, opset)


def runtime_version() -> tuple[int, int]:
    """Return the installed ONNX Runtime's version, without what comes behind the second number."""
    major, minor = ort.__version__.split(".")[:2]
    return int(major), int(minor)


def _opens(ir_version: int, opset: int) -> bool:
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "probe", [x], [y])
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version
    )
    options = ort.SessionOptions()
    options.log_severity_level = 4  # a refusal is an answer here, not news
    options.intra_op_num_threads = 1
    try:
        ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception:  # noqa: BLE001 (its exceptions share no public base class)
        return False
    return True


def opset_of(model: ir.Model) -> int:
    """Return the version of ONNX's standard opset that the model uses; 0 if it uses none."""
    imports = model.graph.opset_imports
    return imports.get("", imports.get("ai.onnx", 0))


def minimum_ir_version(opset: int) -> int:
    """Return the lowest IR version that a model of this opset may carry."""
    known = [version for domain, version in helper.OP_SET_ID_VERSION_MAP if domain == "ai.onnx"]
    usable = min(max(opset, 1), max(known))
    # Opsets 2 to 4 are not in the table: they came before the lowest version that is written.
    return max(_LOWEST_IR, helper.OP_SET_ID_VERSION_MAP.get(("ai.onnx", usable), _LOWEST_IR))


def stamp_versions(model: ir.Model) -> None:
    """Set the IR version to one that the opset may carry and the installed runtime reads.

    The version that the model has is kept where it fits. A model without standard operators has no
    opset to check.
    """
    limits = runtime_limits()
    opset = model.graph.opset_imports.get("")
    if opset is not None and opset > limits.opset:
        raise ModelError(
            f"the model uses opset {opset}, and the installed onnxruntime {ort.__version__} reads "
            f"up to {limits.opset}; upgrade onnxruntime or export the model with a lower opset."
        )
    needed = minimum_ir_version(opset) if opset is not None else _LOWEST_IR
    if needed > limits.ir_version:
        raise ModelError(
            f"opset {opset} needs IR version {needed}, and the installed onnxruntime "
            f"{ort.__version__} reads up to {limits.ir_version}; upgrade onnxruntime."
        )
    model.ir_version = min(max(model.ir_version or 0, needed), limits.ir_version)
