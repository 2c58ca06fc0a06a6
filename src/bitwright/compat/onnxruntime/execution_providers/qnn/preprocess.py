"""`qnn_preprocess_model`: rewrites that the QNN execution provider gains from."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
from onnx import ModelProto, ValueInfoProto

from bitwright import graph
from bitwright.compat.onnxruntime.errors import InvalidSettingError
from bitwright.compat.onnxruntime.execution_providers.qnn.fixed_shapes import (
    fix_input_shape,
    fix_output_shapes,
)
from bitwright.compat.onnxruntime.execution_providers.qnn.fusion_lpnorm import (
    FusionLpNormalization,
)
from bitwright.compat.onnxruntime.execution_providers.qnn.fusion_spacetodepth import (
    FusionSpaceToDepth,
)
from bitwright.compat.onnxruntime.fusions import FusionGelu, FusionLayerNormalization
from bitwright.compat.onnxruntime.onnx_model import ONNXModel
from bitwright.compat.onnxruntime.quant_utils import get_opset_version
from bitwright.compat.onnxruntime.shape_inference import read_external_data
from bitwright.errors import did_you_mean
from bitwright.run import open_session
from bitwright.support.scratch import ScratchFolder

__all__ = [
    "FusionGelu",
    "FusionLayerNormalization",
    "FusionLpNormalization",
    "FusionSpaceToDepth",
    "InputOutputNameMap",
    "ONNXModel",
    "qnn_preprocess_model",
    "save_and_reload_optimize_model",
    "update_io_to_channel_last",
]

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
    ...     bitwright.inspect(f"{folder}/m.onnx").is_quantized
    True
    False
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
    changed = bool(dynamic_input_shapes)
    for name, shape in dynamic_input_shapes or ():
        fix_input_shape(model.model.graph, name, [int(size) for size in shape.split(",")])
    if changed:
        fix_output_shapes(model.model)
    if exclude_initializer_from_input:
        changed |= _exclude_initializers(model)
    fusions = [FusionGelu(model), FusionLpNormalization(model), FusionSpaceToDepth(model)]
    if fuse_layernorm:
        opset = get_opset_version(model.model)
        if opset >= 17:
            fusions.append(FusionLayerNormalization(model))
        else:
            logger.warning(
                "layer norms are not fused: LayerNormalization is there from opset 17 on, and the "
                "model has %d; raise it with onnx.version_converter.",
                opset,
            )
    for fusion in fusions:
        changed |= fusion.apply()
    if inputs_to_make_channel_last or outputs_to_make_channel_last:
        update_io_to_channel_last(
            model.model,
            inputs_to_make_channel_last,
            outputs_to_make_channel_last,
            _TRANSPOSE_PREFIX,
            model.get_largest_node_name_suffix(_TRANSPOSE_PREFIX) + 1,
        )
        changed = True
    changed |= _name_nodes(model)
    if changed:
        model.topological_sort()
        ready = graph.load_model(model.model)
        graph.save_model(ready, model_output, external_data=external_data)
    return changed


def save_and_reload_optimize_model(model: ModelProto, shape_infer: bool) -> ModelProto:
    """Return a model after the runtime's basic optimizations, if wanted with its shapes inferred.

    >>> import bitwright
    >>> demo = onnx.load(bitwright.load_demo().model_path)
    >>> len(save_and_reload_optimize_model(demo, shape_infer=True).graph.value_info) > 0
    True
    """
    loaded = graph.load_model(model)
    if shape_infer:
        graph.infer_shapes(loaded)
    with ScratchFolder("qnn") as scratch:
        file = scratch.path / "optimized.onnx"
        open_session(loaded, level="basic", optimized_to=file)
        optimized = onnx.load(file)
    mark = {"onnx.infer": "onnxruntime.tools.qnn.preprocess"}
    known = {entry.key: entry.value for entry in optimized.metadata_props}
    onnx.helper.set_model_props(optimized, {**mark, **known})
    return optimized


def _exclude_initializers(model: ONNXModel) -> bool:
    """Make constants of the inputs that have a default, and return whether there are any."""
    if model.ir_version() < 4:
        logger.warning("before IR version 4 every initializer is an input; they stay as they are.")
        return False
    names = model.get_initializer_name_set()
    inputs = [value for value in model.graph().input if value.name in names]
    for value in inputs:
        model.graph().input.remove(value)
    return bool(inputs)


def _name_nodes(model: ONNXModel) -> bool:
    """Give a name to each node without one, and return whether there are any."""
    number = model.get_largest_node_name_suffix(_NODE_PREFIX) + 1
    nameless = [n for n in model.nodes() if not n.name and n.op_type != "Constant"]
    for node in nameless:
        node.name = f"{_NODE_PREFIX}{number}"
        number += 1
        logger.warning("a %s without a name is now called %r.", node.op_type, node.name)
    return bool(nameless)


class InputOutputNameMap:
    """New names, for the inside of a graph, of inputs and outputs whose layout changes.

    >>> names = InputOutputNameMap({"x", "x_channel_first_0"}, {"x": ValueInfoProto()}, {})
    >>> names.get_new_name("x"), names.new_value_infos[0].name
    ('x_channel_first_1', 'x_channel_first_1')
    """

    def __init__(
        self,
        orig_tensor_names: set[str],
        orig_graph_inputs: Mapping[str, ValueInfoProto],
        orig_graph_outputs: Mapping[str, ValueInfoProto],
    ) -> None:
        self.orig_tensor_names = orig_tensor_names
        self.orig_graph_inputs = orig_graph_inputs
        self.orig_graph_outputs = orig_graph_outputs
        self.updated_io_names: dict[str, str] = {}
        self.new_value_infos: list[ValueInfoProto] = []

    def get_new_name(self, orig_name: str) -> str:
        """Return the inner name of an input or output, with a description of it once."""
        if orig_name not in self.updated_io_names:
            prefix = f"{orig_name}_channel_first_"
            rests = (name.removeprefix(prefix) for name in self.orig_tensor_names)
            number = max((int(rest) for rest in rests if rest.isdigit()), default=-1) + 1
            known = {**self.orig_graph_outputs, **self.orig_graph_inputs}
            info = ValueInfoProto()
            info.CopyFrom(known[orig_name])
            info.name = self.updated_io_names[orig_name] = f"{prefix}{number}"
            self.new_value_infos.append(info)
        return self.updated_io_names[orig_name]


def update_io_to_channel_last(
    model: ModelProto,
    inputs_to_update: Sequence[str] | None,
    outputs_to_update: Sequence[str] | None,
    transpose_node_name_prefix: str = _TRANSPOSE_PREFIX,
    transpose_node_name_start_suffix: int = 0,
) -> None:
    """Move the channels of named inputs and outputs last, with a Transpose inside for each.

    >>> import bitwright
    >>> model = onnx.load(bitwright.load_demo().model_path)
    >>> update_io_to_channel_last(model, ["image"], None)
    >>> model.graph.node[-1].op_type, list(model.graph.node[-1].attribute[0].ints)
    ('Transpose', [0, 3, 1, 2])
    """
    main = model.graph
    inputs = {value.name: value for value in main.input}
    outputs = {value.name: value for value in main.output}
    # In the order given, each once.
    chosen_inputs = [*dict.fromkeys(inputs_to_update or ())]
    chosen_outputs = [*dict.fromkeys(outputs_to_update or ())]
    for chosen, known, kind in (
        (chosen_inputs, inputs, "input"),
        (chosen_outputs, outputs, "output"),
    ):
        for name in chosen:
            _check_layout(name, known, kind)
    tensors = {name for node in main.node for name in node.input if name}
    names = InputOutputNameMap({*tensors, *inputs, *outputs}, inputs, outputs)
    for node in main.node:
        for index, name in enumerate(node.input):
            if name in chosen_inputs or name in chosen_outputs:
                node.input[index] = names.get_new_name(name)
        for index, name in enumerate(node.output):
            if name in chosen_outputs:
                node.output[index] = names.get_new_name(name)
    number = transpose_node_name_start_suffix
    for name in chosen_inputs:
        rank = _move_channels_last(inputs[name])
        main.node.append(
            onnx.helper.make_node(
                "Transpose",
                [name],
                [names.get_new_name(name)],
                f"{transpose_node_name_prefix}{number}",
                perm=[0, rank - 1, *range(1, rank - 1)],
            )
        )
        number += 1
    for name in chosen_outputs:
        rank = _move_channels_last(outputs[name])
        main.node.append(
            onnx.helper.make_node(
                "Transpose",
                [names.get_new_name(name)],
                [name],
                f"{transpose_node_name_prefix}{number}",
                perm=[0, *range(2, rank), 1],
            )
        )
        number += 1
    main.value_info.extend(names.new_value_infos)


def _check_layout(name: str, known: Mapping[str, ValueInfoProto], kind: str) -> None:
    if name not in known:
        raise InvalidSettingError(f"{name} is not a graph {kind}.{did_you_mean(name, known)}")
    if not known[name].type.tensor_type.HasField("shape"):
        raise InvalidSettingError(f"Expected {kind} {name} to have a tensor_type with a shape.")
    if len(known[name].type.tensor_type.shape.dim) < 3:
        raise InvalidSettingError(
            f"Expected {kind} {name} to be of rank >= 3: a batch, channels, and something more."
        )


def _move_channels_last(value: ValueInfoProto) -> int:
    """Reorder the shape of an input or output and return its rank."""
    shape = value.type.tensor_type.shape
    dims = list(shape.dim)
    moved = [onnx.TensorShapeProto.Dimension.FromString(d.SerializeToString()) for d in dims]
    del shape.dim[:]
    shape.dim.extend([moved[0], *moved[2:], moved[1]])
    return len(moved)
