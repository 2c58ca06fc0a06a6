"""ONNX models: load, check, normalize, edit, infer shapes, run and save (on onnx-ir)."""

from bitwright.graph.checking import check_model, check_order
from bitwright.graph.cloning import clone_model
from bitwright.graph.constants import (
    constant_of,
    constant_tensor,
    float_constant_of,
    input_at,
    is_constant,
    is_private,
)
from bitwright.graph.defaults import HiddenDefaults, hide_defaults
from bitwright.graph.editing import (
    add_initializer,
    drop_if_unused,
    graph_of,
    insert_after,
    insert_before,
    insert_behind_value,
    like,
    remove_nodes,
    remove_unused_initializers,
    replace_constant,
    replace_inputs,
    replace_value,
)
from bitwright.graph.fingerprints import fingerprint
from bitwright.graph.inner_outputs import Exposed, expose
from bitwright.graph.inner_values import SessionRunner
from bitwright.graph.loading import ModelSource, file_size, load_model, source_path
from bitwright.graph.names import NameScope
from bitwright.graph.normalize import find_quantized_nodes, normalize, refuse_unsupported
from bitwright.graph.opsets import opset_of, upgrade_opset
from bitwright.graph.pieces import Piece, cut_model, extract_piece
from bitwright.graph.products import ProductWeight, is_transposed_constant, weight_of
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
    "add_initializer",
    "assume_types",
    "check_destination",
    "check_model",
    "check_order",
    "clone_model",
    "constant_of",
    "constant_tensor",
    "cut_model",
    "drop_if_unused",
    "element_type",
    "expose",
    "extract_piece",
    "file_size",
    "find_quantized_nodes",
    "find_value",
    "fingerprint",
    "float_constant_of",
    "graph_of",
    "hide_defaults",
    "infer_shapes",
    "infer_symbolic_shapes",
    "input_at",
    "insert_after",
    "insert_before",
    "insert_behind_value",
    "is_constant",
    "is_private",
    "is_transposed_constant",
    "iter_graphs",
    "iter_values",
    "like",
    "load_model",
    "minimum_ir_version",
    "normalize",
    "open_session",
    "opset_of",
    "owner_nodes",
    "qualified_name",
    "refuse_unsupported",
    "remove_nodes",
    "remove_unused_initializers",
    "replace_constant",
    "replace_inputs",
    "replace_value",
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
