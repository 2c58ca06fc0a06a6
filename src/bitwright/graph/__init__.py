"""Models: read, checked, brought into one form, run, looked into and written (on onnx-ir)."""

from bitwright.graph.checking import check_model, check_order
from bitwright.graph.cloning import clone_model
from bitwright.graph.defaults import HiddenDefaults, hide_defaults
from bitwright.graph.fingerprints import fingerprint
from bitwright.graph.inner_outputs import Exposed, expose
from bitwright.graph.inner_values import SessionRunner
from bitwright.graph.loading import ModelSource, file_size, load_model, source_path
from bitwright.graph.names import NameScope
from bitwright.graph.normalize import find_quantized_nodes, normalize, refuse_unsupported
from bitwright.graph.opsets import opset_of, upgrade_opset
from bitwright.graph.pieces import Piece, cut_model, extract_piece
from bitwright.graph.products import ProductWeight, is_turned_constant, weight_of
from bitwright.graph.saving import (
    EXTERNAL_DATA_THRESHOLD,
    ExternalData,
    check_destination,
    save_model,
    serialized_size,
)
from bitwright.graph.sessions import Level, open_session, run_session, runtime_reason
from bitwright.graph.shapes import assume_types, element_type, infer_shapes, static_shape
from bitwright.graph.subgraphs import (
    find_value,
    iter_graphs,
    iter_values,
    owner_nodes,
    qualified_name,
    subgraphs_of,
)
from bitwright.graph.symbolic import infer_symbolic_shapes
from bitwright.graph.tensors import TensorSlot, tensor_slots
from bitwright.graph.versions import (
    RuntimeLimits,
    minimum_ir_version,
    runtime_limits,
    stamp_versions,
)

__all__ = [
    "EXTERNAL_DATA_THRESHOLD",
    "Exposed",
    "ExternalData",
    "HiddenDefaults",
    "Level",
    "ModelSource",
    "NameScope",
    "Piece",
    "ProductWeight",
    "RuntimeLimits",
    "SessionRunner",
    "TensorSlot",
    "assume_types",
    "check_destination",
    "check_model",
    "check_order",
    "clone_model",
    "cut_model",
    "element_type",
    "expose",
    "extract_piece",
    "file_size",
    "find_quantized_nodes",
    "find_value",
    "fingerprint",
    "hide_defaults",
    "infer_shapes",
    "infer_symbolic_shapes",
    "is_turned_constant",
    "iter_graphs",
    "iter_values",
    "load_model",
    "minimum_ir_version",
    "normalize",
    "open_session",
    "opset_of",
    "owner_nodes",
    "qualified_name",
    "refuse_unsupported",
    "run_session",
    "runtime_limits",
    "runtime_reason",
    "save_model",
    "serialized_size",
    "source_path",
    "stamp_versions",
    "static_shape",
    "subgraphs_of",
    "tensor_slots",
    "upgrade_opset",
    "weight_of",
]
