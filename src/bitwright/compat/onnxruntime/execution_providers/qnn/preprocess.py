"""`qnn_preprocess_model`: rewrites that the QNN execution provider gains from."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto
from onnxruntime.tools.onnx_model_utils import fix_output_shapes, make_input_shape_fixed
from onnxruntime.tools.remove_initializer_from_input import remove_initializer_from_input

from bitwright import graph
from bitwright.compat.onnxruntime.fusions.mended import (
    FusionGelu,
    FusionLayerNormalization,
    FusionLpNormalization,
    FusionSpaceToDepth,
)
from bitwright.compat.onnxruntime.onnx_model import ONNXModel
from bitwright.compat.onnxruntime.peer import hand_on, peer
from bitwright.compat.onnxruntime.shape_inference import read_external_data
from bitwright.run import Session
from bitwright.support.scratch import ScratchFolder

__getattr__, __dir__ = hand_on(__name__)

logger = logging.getLogger(__name__)

_TRANSPOSE_PREFIX = "Transpose_channel_"
_NODE_PREFIX = "qnn_preproc_node_"


def qnn_preprocess_model(
    model_input: str | Path | ModelProto,
    model_output: str | Path,
    exclude_initializer_from_input: bool = False,
    fuse_layernorm: bool = False,
    save_as_external_data: bool = False,
    all_tensors_to_one_file: bool = False,
    external_data_location: str | None = None,
    external_data_size_threshold: int = 1024,
    external_data_convert_attribute: bool = False,
    inputs_to_make_channel_last: Sequence[str] | None = None,
    outputs_to_make_channel_last: Sequence[str] | None = None,
    dynamic_input_shapes: Sequence[tuple[str, str]] | None = None,
) -> bool:
    """Write a model that is ready to be quantized for QNN, and return whether that was needed.

    The runtime's basic optimizations come first. Then Gelu, L2 norms, space-to-depth and, on
    request, layer norms become single nodes; named inputs and outputs get their channels last;
    `dynamic_input_shapes` fixes shapes, as in [("image", "1,3,256,256")]; nodes without a name get
    one. Where none of that changes anything, no file is written.

    >>> import bitwright, tempfile
    >>> demo = bitwright.load_demo().model_path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     qnn_preprocess_model(demo, f"{folder}/m.onnx", inputs_to_make_channel_last=["image"])
    True
    """
    graph.check_destination(model_output, source=model_input)
    external_data = read_external_data(
        model_output,
        save_as_external_data,
        all_tensors_to_one_file,
        external_data_location,
        external_data_size_threshold,
        external_data_convert_attribute,
    )
    proto = model_input if isinstance(model_input, ModelProto) else onnx.load(str(model_input))
    model = ONNXModel(save_and_reload_optimize_model(proto, shape_infer=True))
    changed = _fix_shapes(model.model, dynamic_input_shapes or ())
    if exclude_initializer_from_input:
        changed |= remove_initializer_from_input(model.model)
    changed |= _fuse(model, layer_norms=fuse_layernorm)
    changed |= _make_channels_last(
        model, inputs_to_make_channel_last or (), outputs_to_make_channel_last or ()
    )
    changed |= _name_nodes(model)
    if changed:
        model.topological_sort()
        graph.save_model(graph.load_model(model.model), model_output, external_data=external_data)
    return changed


def save_and_reload_optimize_model(model: ModelProto, shape_infer: bool) -> ModelProto:
    """Return a model after the runtime's basic optimizations, its shapes inferred if wanted."""
    loaded = graph.load_model(model)
    if shape_infer:
        graph.infer_shapes(loaded)
    with ScratchFolder("qnn") as scratch:
        file = scratch.path / "optimized.onnx"
        Session(loaded, level="basic", optimized_to=file)
        optimized = onnx.load(file)
    mark = {"onnx.infer": "onnxruntime.tools.qnn.preprocess"}
    known = {entry.key: entry.value for entry in optimized.metadata_props}
    onnx.helper.set_model_props(optimized, {**mark, **known})
    return optimized


def _fuse(model: ONNXModel, *, layer_norms: bool) -> bool:
    """Make single nodes of patterns, and return whether there are any."""
    kinds: list[Any] = [FusionGelu, FusionLpNormalization, FusionSpaceToDepth]
    opset = peer("quant_utils").get_opset_version(model.model)
    if layer_norms and opset >= 17:
        kinds.append(FusionLayerNormalization)
    elif layer_norms:
        logger.warning(
            "layer norms are not fused: LayerNormalization is there from opset 17 on, and the "
            "model has %d; raise it with onnx.version_converter.",
            opset,
        )
    changed = [kind(model).apply() for kind in kinds]
    return any(changed)


def _fix_shapes(model: ModelProto, shapes: Sequence[tuple[str, str]]) -> bool:
    """Set the shapes of inputs, and of outputs that follow; return whether any are given."""
    for name, shape in shapes:
        make_input_shape_fixed(model.graph, name, [int(size) for size in shape.split(",")])
    if shapes:
        fix_output_shapes(model)
    return bool(shapes)


def _make_channels_last(model: ONNXModel, inputs: Sequence[str], outputs: Sequence[str]) -> bool:
    """Move the channels of inputs and outputs last, and return whether any are named.

    One by one: the peer keeps the names in a set, whose order is another in each process.
    """
    update = peer("execution_providers.qnn.preprocess").update_io_to_channel_last
    number = model.get_largest_node_name_suffix(_TRANSPOSE_PREFIX) + 1
    for name in dict.fromkeys(inputs):
        update(model.model, [name], None, _TRANSPOSE_PREFIX, number)
        number += 1
    for name in dict.fromkeys(outputs):
        update(model.model, None, [name], _TRANSPOSE_PREFIX, number)
        number += 1
    return bool(inputs or outputs)


def _name_nodes(model: ONNXModel) -> bool:
    """Give a name to each node without one, and return whether there are any."""
    number = model.get_largest_node_name_suffix(_NODE_PREFIX) + 1
    nameless = [n for n in model.nodes() if not n.name and n.op_type != "Constant"]
    for node in nameless:
        node.name = f"{_NODE_PREFIX}{number}"
        number += 1
        logger.warning("a %s without a name is now called %r.", node.op_type, node.name)
    return bool(nameless)
