"""How a model reaches ONNX Runtime: as a message with weights beside it, or as a file."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from bitwright.errors import ModelError, TargetError
from bitwright.graph import load_model, runtime_limits, try_source
from bitwright.graph.cloning import clone_model, to_message, value_with_tensor
from bitwright.graph.tensors import external_path, shape_of, tensor_slots
from bitwright.support import ScratchFolder, link_or_copy

IN_MEMORY_LIMIT = 1_800_000_000
"""Bytes of tensors up to which a model is external over as one message (protobuf ends at 2 GB)."""

_SHARED_TYPES = {ir.DataType[name] for name in "FLOAT FLOAT16 INT8 UINT8 INT32 INT64".split()}
_SMALLEST_SHARED = 64 << 10

_FOLDER_ENTRY = "session.model_external_initializers_file_folder_path"
WITHOUT_PASSES_ENTRY = "optimization.disable_specified_optimizers"
_SLOW_PASSES = ("ConstantSharing", "NhwcTransformer")
"""They change where values lie, not which."""
_PASS_OF_CONVOLUTIONS = "NchwcTransformer"
"""It makes them faster, and is quadratic in their number. Without it, float convolutions add up in
another order: their last bits differ."""
_NORMS = "LayerNormalization SimplifiedLayerNormalization SkipLayerNormalization"
_PASSES_OF_OPS = {
    "Cast": "FuseFp16InitializerToFp32NodeTransformer",
    "Dropout": "BiasDropoutFusion",
    "DynamicQuantizeLinear": "DynamicQuantizeMatMulFusion",
    "Erf": "GeluFusionL1 GeluFusionL2",
    "Erf Gelu FastGelu": "BiasGeluFusion",
    "Gather": "EmbedLayerNormFusion GatherToSliceFusion",
    "Gather Slice": "GatherSliceToSplitFusion",
    "Gemm": "GemmActivationFusion",
    "GroupQueryAttention": "GroupQueryAttentionFusion GroupQueryAttentionPreNormFusion",
    "MatMul": "MatMulAddFusion",
    "MatMul FusedMatMul": "MatMulScaleFusion",
    "MatMul FusedMatMul Gemm": "MatMulActivationFusion",
    "MatMulInteger": "MatMulIntegerToFloatFusion",
    "MatMulNBits": "MatMulNBitsFusion",
    "ReduceMean": "LayerNormFusionL1 LayerNormFusionL2 SimplifiedLayerNormFusion",
    f"ReduceMean {_NORMS}": "SkipLayerNormFusion BiasSkipLayerNormFusion",
    "Reshape": "ReshapeFusion",
    "Sigmoid": "QuickGeluFusion",
    "Slice": "SliceConcatToSpaceToDepthFusion",
    "Softmax": "AttentionFusion BiasSoftmaxFusion",
    "Tanh Gelu": "FastGeluFusion",
    "Transpose": "TransposeOptimizer TransposeOptimizer_CPUExecutionProvider MatmulTransposeFusion",
    "Where": "WhereDummyDq",
}
"""Types of nodes -> passes that find nothing without one of them, and sort the whole graph to look
for one. The runtime keeps all nodes that are ready in a list, such as the dequantizers of
constants, and walks through it for each: a pass over a quantized graph is quadratic."""

MANY_INITIALIZERS = 2_000
"""Number of initializers from which a session is opened without those steps of the runtime that
grow with its square. A quantized graph has a scale and a zero point for each tensor."""

_MANY_NODES = 200
"""Number of nodes from which the runtime takes seconds to share buffers of open sizes."""

_MOST_REWRITTEN = 200_000_000
"""Bytes of tensors up to which a model is written once more, to nowhere, while it is opened."""


def open_in_runtime(
    model: ir.Model | onnx.ModelProto | str | os.PathLike[str],
    options: ort.SessionOptions,
    providers: list[str],
    without: Sequence[str],
) -> ort.InferenceSession:
    """Open a model with these options and without these passes, or raise a ModelError.

    External data is read where it lies; nothing is copied. An IR version that the runtime would not
    read is lowered for the session only.
    """
    if isinstance(model, (str, os.PathLike)):
        path = Path(model)
        try:
            return _open(str(path), options, providers)
        except ModelError:
            # Reading it ourselves says better what is wrong, and lowers an IR version too new.
            model = load_model(path)
            if model.ir_version <= runtime_limits().ir_version:
                raise
    if isinstance(model, onnx.ModelProto):
        return _open(_bytes_of(model), options, providers)
    try_source(model)
    # With the arena it is as users have it: such a session is for its latency.
    options.enable_mem_reuse = options.enable_cpu_mem_arena or not _has_open_sizes(model)
    plain_caches = not options.optimized_model_filepath
    return _open_model(model, options, providers, without, plain_caches=plain_caches)


def runtime_reason(error: BaseException) -> str:
    """Return ONNX Runtime's reason as one sentence, without its codes and C++ places."""
    text = " ".join(str(error).split())
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ", "", text)
    for pattern, replacement in _REASON_EDITS:
        text = pattern.sub(replacement, text)
    sentence = re.split(r"(?<=[.!]) (?=[A-Z])", text.strip())[0] or type(error).__name__
    if len(sentence) > 400:
        sentence = sentence[:399] + "…"
    return sentence if sentence.endswith((".", "!", "…")) else sentence + "."


_CPP_PLACE = r"[\w/.+-]*\.(?:cc|h|cpp|hpp|cu):\d+ "

_REASON_EDITS = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        # the innermost of nested "running If node ... running Pad node ..."
        (r".*while running (\w+) node\. Name:'([^']*)' Status Message: ", r"\1 node '\2': "),
        # In Node, ("mm", Reluu, "", -1) : ("x": tensor(float),) -> ("y": tensor(float),) , Error
        (r'In Node, \("([^"]*)", (\w+),.*?, Error:? ?', r"\2 node '\1': "),
        (r'In Node, \("([^"]*)", ,.*?, Error:? ?', r"node '\1': "),
        (r"Node \(([^)]*)\) Op \((\w+)\) (?:\[\w+\] ?)?", r"\2 node '\1': "),
        # /src/model.cc:256 <a whole C++ signature>, or just matmul_helper.h:59 Compute
        (_CPP_PLACE + r"[^()]*::[^()]*\((?:[^()]|\([^()]*\))*\)(?: const)? ", ""),
        (_CPP_PLACE + r"\S+ ", ""),
        (r"(?:This is an invalid model|Invalid model|Fatal error)[.:] ", ""),
        (r"Error: ", ""),
        (r"\(-1\)", ""),
    )
)


def _open(
    model: str | bytes, options: ort.SessionOptions, providers: list[str]
) -> ort.InferenceSession:
    try:
        session = ort.InferenceSession(model, options, providers=providers)
    except Exception as error:
        reason = runtime_reason(error)
        if "registered" in reason:
            reason = f"{reason.rstrip('.')}; models with operators of your own cannot be run here."
        raise ModelError(f"ONNX Runtime refuses the model: {reason}") from error
    check_started(providers, session.get_providers())
    return session


def check_started(providers: Iterable[str], started: Sequence[str]) -> None:
    """Refuse a provider that fails to start: the runtime only logs it and goes on without."""
    for name in providers:
        if name not in started:
            raise TargetError(
                f"{name} is installed but does not start on this machine; check its driver, or "
                "use CPUExecutionProvider."
            )


def _bytes_of(proto: onnx.ModelProto) -> bytes:
    """Return what the runtime reads, with an IR version that it knows."""
    newest = runtime_limits().ir_version
    if proto.ir_version > newest:
        stamped = onnx.ModelProto()
        stamped.CopyFrom(proto)
        stamped.ir_version = newest
        proto = stamped
    content: bytes = proto.SerializeToString()
    return content


def _open_model(
    model: ir.Model,
    options: ort.SessionOptions,
    providers: list[str],
    without: Sequence[str],
    *,
    plain_caches: bool,
) -> ort.InferenceSession:
    external = _external_initializers(model)
    tensors = [slot.tensor for slot in tensor_slots(model)]
    size = sum(tensor.nbytes for tensor in tensors if not isinstance(tensor, ir.ExternalTensor))
    inline = size - sum(tensor.nbytes for tensor in external.values())
    folders = {
        os.path.realpath(tensor.base_dir or ".")
        for tensor in tensors
        if isinstance(tensor, ir.ExternalTensor)
    }
    alone = not (external or folders)
    many = len(model.graph.initializers) >= MANY_INITIALIZERS
    if many:
        if not folders and size <= _MOST_REWRITTEN and providers == ["CPUExecutionProvider"]:
            _avoid_removals(options)
        passes = ";".join([*without, *_passes_to_leave_out(model)])
        options.add_session_config_entry(WITHOUT_PASSES_ENTRY, passes)
    if len(folders) <= 1 and inline <= IN_MEMORY_LIMIT:
        if folders:  # the runtime maps the data file itself
            options.add_session_config_entry(_FOLDER_ENTRY, folders.pop())
        arrays = [np.asarray(tensor.numpy(), order="C") for tensor in external.values()]
        values = [ort.OrtValue.ortvalue_from_numpy(array) for array in arrays]
        if external:
            options.add_external_initializers(list(external), values)
        content = _bytes_without(model, external, plain_caches=plain_caches)
        if alone and many:  # a large graph opens from a file in half the time
            with ScratchFolder("session") as scratch:
                path = scratch.path / "model.onnx"
                with scratch.writing():
                    path.write_bytes(content)
                session = _open(str(path), options, providers)
        else:
            session = _open(content, options, providers)
        session._bitwright_weights = values  # the runtime reads them where they are
        return session
    with ScratchFolder("session") as scratch:
        with scratch.writing():
            path = spill(model, scratch.path, plain_caches=plain_caches)
        return _open(str(path), options, providers)


def _has_open_sizes(model: ir.Model) -> bool:
    """Whether a graph is large, and its sizes are those of its inputs.

    Where tensors share no buffers, each is freed behind its last reader all the same.
    """
    shapes = [value.shape for value in model.graph.inputs]
    return len(model.graph) >= _MANY_NODES and any(
        shape is not None and not shape.is_static() for shape in shapes
    )


def _avoid_removals(options: ort.SessionOptions) -> None:
    """Keep the initializers of a session's graph: each is searched for by name, among all.

    The runtime removes them when the session is ready, unless it wrote the graph to a file, for
    which the null device does. Nodes of other providers than the CPU fit no file.
    """
    if sys.platform != "win32" and not options.optimized_model_filepath:
        options.optimized_model_filepath = os.devnull


def _passes_to_leave_out(model: ir.Model) -> list[str]:
    """Return the passes that make a large graph slow to open, and leave its values as they are.

    That of convolutions moves the last bits of float ones. Each constant that is merged with others
    has all of their nodes as readers, and each fusion later goes through that list.
    """
    ops = Counter(node.op_type for node in model.graph.all_nodes())
    passes = [*_SLOW_PASSES]
    for needed, useless in _PASSES_OF_OPS.items():
        if ops.keys().isdisjoint(needed.split()):
            passes += useless.split()
    return [*passes, _PASS_OF_CONVOLUTIONS] if ops["Conv"] >= MANY_INITIALIZERS else passes


def _external_initializers(model: ir.Model) -> dict[str, ir.TensorProtocol]:
    """Return the tensors that the runtime reads where they are: in a message each is copied."""
    # It forgets what no node reads, and then refuses what it is given for it.
    read = {value for graph in model.graphs() for node in graph for value in node.inputs}
    return {
        name: tensor
        for name, value in model.graph.initializers.items()
        if (tensor := value.const_value) is not None
        and tensor.dtype in _SHARED_TYPES
        and tensor.nbytes >= _SMALLEST_SHARED
        and not isinstance(tensor, ir.ExternalTensor)
        and not value.is_graph_input()
        and value in read
    }


def _bytes_without(
    model: ir.Model, external: Mapping[str, ir.TensorProtocol], *, plain_caches: bool
) -> bytes:
    """Return the model's message with these tensors left to be given by name.

    Its bytes alone: beside them and what the runtime makes of them, the message of a large graph
    would take as much again.
    """
    # No such file is looked for.
    elsewhere = {
        name: ir.ExternalTensor(
            "memory", 0, tensor.nbytes, tensor.dtype, shape=shape_of(tensor), name=name
        )
        for name, tensor in external.items()
    }
    message = to_message(
        model,
        initializers=[
            value_with_tensor(value, elsewhere[name]) if name in elsewhere else value
            for name, value in model.graph.initializers.items()
        ],
    )
    if plain_caches:
        _use_plain_caches(message)
    return _bytes_of(message)


def _use_plain_caches(message: onnx.ModelProto) -> None:
    """Let attention with a sliding window take a cache of any length, an empty one, too.

    With the attribute, the cache is a ring of slots as onnxruntime-genai holds it: at least as long
    as the window, and what it returns in slots without a token is not defined.
    """
    for node in message.graph.node:
        if node.op_type == "GroupQueryAttention":
            kept = [one for one in node.attribute if one.name != "sliding_window_cache"]
            del node.attribute[:]
            node.attribute.extend(kept)


def spill(model: ir.Model, folder: Path, *, plain_caches: bool) -> Path:
    """Write the model with all big tensors outside; files that already hold some are linked."""
    clone = clone_model(model)
    clone.ir_version = min(clone.ir_version, runtime_limits().ir_version)
    links: dict[str, str] = {}
    offset = 0
    with (folder / "tensors.data").open("wb") as data:
        for slot in tensor_slots(clone):
            tensor = slot.tensor
            if isinstance(tensor, ir.ExternalTensor):
                source = external_path(tensor)
                if source not in links:
                    links[source] = f"{len(links)}.data"
                    link_or_copy(source, folder / links[source])
                location, start = links[source], tensor.offset
            elif tensor.nbytes > 1024 and tensor.dtype != ir.DataType.STRING:
                location, start = "tensors.data", offset
                written = tensor.tobytes()
                data.write(written)
                offset += len(written)
            else:
                continue
            shape = shape_of(tensor)
            slot.put(
                ir.ExternalTensor(
                    location, start, tensor.nbytes, tensor.dtype, shape=shape, name=slot.name
                )
            )
    path = folder / "model.onnx"
    message = to_message(clone)
    if plain_caches:
        _use_plain_caches(message)
    path.write_bytes(message.SerializeToString())
    return path
