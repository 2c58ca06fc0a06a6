"""Read a model from a file or from memory, check that it is whole, leave big tensors on disk."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError, EncodeError  # type: ignore[import-untyped]

from bitwright.errors import ModelError
from bitwright.graph.checking import check_order, is_in_order
from bitwright.graph.cloning import clone_model
from bitwright.graph.extents import Extent, StoredFile, split_file
from bitwright.graph.maps import take_off_maps
from bitwright.graph.messages import check_message
from bitwright.graph.shapes import forget_sizes
from bitwright.graph.source import SOURCE_KEY, source_path
from bitwright.graph.subgraphs import iter_messages
from bitwright.graph.tensors import (
    external_like,
    same_bytes,
    serialized_size,
    shape_of,
    tensor_slots,
)
from bitwright.support import check_regular_file, reason_of, without_collection

ModelSource = str | os.PathLike[str] | onnx.ModelProto | ir.Model


def load_model(source: ModelSource, *, sort: bool = True) -> ir.Model:
    """Return a model of our own to work on; what the caller passed is never modified.

    A path is opened lazily: external data stays on disk until a tensor is read. Nodes come back in
    topological order, unless `sort` is False.
    """
    if isinstance(source, ir.Model):
        return _adopt(source, sort)
    if isinstance(source, onnx.ModelProto):
        proto = onnx.ModelProto()
        proto.CopyFrom(source)
        return _from_proto(proto, "the model", folder=None, sort=sort)
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        proto, extents = read_proto(path)
        folder = path.absolute().parent
        model = _from_proto(proto, repr(str(path)), folder=folder, sort=sort, elsewhere=extents)
        if extents:
            file = StoredFile(path)
            for name, extent in extents.items():
                model.graph.initializers[name].const_value = file.tensor(name, extent)
        model.meta[SOURCE_KEY] = str(path.absolute())
        return model
    raise ModelError(
        f"a model is a path, an onnx.ModelProto or an onnx_ir.Model, not {type(source).__name__}."
    )


def file_size(source: ModelSource) -> int:
    """Return the bytes a model takes on disk: its file and the external data that belongs to it.

    A model that came from no file counts as what it would take.
    """
    if isinstance(source, onnx.ModelProto):
        try:
            return int(source.ByteSize())
        except EncodeError:  # above 2 GB no message can be written, and so none can say its size
            return serialized_size(ir.from_proto(source))
    if isinstance(source, ir.Model):
        path = source_path(source)
        return file_size(path) if path is not None and path.is_file() else serialized_size(source)
    return sum(file.stat().st_size for file in files_of(source) if file.is_file())


def files_of(path: str | os.PathLike[str]) -> list[Path]:
    """Return the files that a model consists of: its own, and its external data."""
    model = Path(path)
    proto, _ = read_proto(model)
    return [model, *(model.parent / location for location in sorted(external_locations(proto)))]


def external_locations(proto: onnx.ModelProto) -> set[str]:
    """Return the relative paths of all external data that a model names."""
    return {
        entry.value
        for tensor in _proto_tensors(proto)
        if tensor.data_location == onnx.TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    }


def read_proto(path: Path) -> tuple[onnx.ModelProto, dict[str, Extent]]:
    """Return a file's message, and where the initializers lie whose data it was parsed without."""
    check_regular_file(path, ModelError)
    if path.is_dir():
        raise ModelError(f"{str(path)!r} is a folder; give the path of the .onnx file inside it.")
    if not path.exists():
        raise ModelError(f"there is no file {str(path)!r}; check the path.")
    try:
        data, extents = split_file(path) or (path.read_bytes(), {})
    except OSError as error:
        reason = error.strerror or str(error)
        raise ModelError(f"{str(path)!r} cannot be read ({reason}); check its rights.") from error
    if not data:
        raise ModelError(f"{str(path)!r} is empty (0 bytes); export or download it again.")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        # Field 1, a varint, is how every ONNX exporter starts (the IR version).
        if data[0] == 0x08 and len(data) > 8:
            problem = "is cut off or damaged; export or download it again."
        else:
            problem = "is not an ONNX model; give a file that an ONNX exporter wrote."
        raise ModelError(f"{str(path)!r} {problem}") from error
    if not proto.HasField("graph"):
        raise ModelError(
            f"{str(path)!r} is not an ONNX model (it holds no graph); "
            "give a file that an ONNX exporter wrote."
        )
    return proto, extents


@without_collection()
def _from_proto(
    proto: onnx.ModelProto,
    what: str,
    folder: Path | None,
    sort: bool,
    elsewhere: Collection[str] = (),
) -> ir.Model:
    if not proto.HasField("graph"):
        raise ModelError(f"{what} holds no graph; give a model that an ONNX exporter wrote.")
    if not proto.opset_import:
        raise ModelError(f"{what} does not say which opset it uses; export it again.")
    _refuse_sparse(proto, what)
    _refuse_devices(proto, what)
    proto = take_off_maps(proto)
    _refuse_maps(proto, what)
    check_message(proto, what, elsewhere)
    if folder is None and external_locations(proto):
        raise ModelError(
            f"{what} keeps tensors in external files and was given without its folder; "
            "give the path of the file, or load it with onnx.load(path)."
        )
    try:
        model = ir.from_proto(proto)
    except MemoryError:
        raise
    except Exception as error:
        raise ModelError(
            f"{what} is damaged ({reason_of(_cause_of(error))}); export it again."
        ) from error
    # Sizes that no tensor can have: ONNX's shape inference ends the process by them. Exporters
    # write -1 for any size, which is known to do no harm.
    forget_sizes(model, lambda dim: isinstance(dim, int) and dim < -1)
    if "ai.onnx" in model.graph.opset_imports:  # the long name of the default domain
        model.graph.opset_imports[""] = model.graph.opset_imports.pop("ai.onnx")
    if folder is not None:
        _attach_external_data(model, what, folder)
    return _sorted(model, what) if sort else model


def _adopt(source: ir.Model, sort: bool) -> ir.Model:
    if not source.graph.opset_imports:
        raise ModelError("the model does not say which opset it uses; set graph.opset_imports.")
    try:
        model = clone_model(source)
    except ModelError:
        # Cloning needs sorted nodes, and sorting would touch the caller's: copy by serializing.
        model = ir.from_proto(ir.to_proto(source))
        model.meta.update(source.meta)
        folders = {
            slot.name: slot.tensor.base_dir
            for slot in tensor_slots(source)
            if isinstance(slot.tensor, ir.ExternalTensor)
        }
        for slot in tensor_slots(model):
            if isinstance(slot.tensor, ir.ExternalTensor):
                slot.tensor.base_dir = folders[slot.name]
    for slot in tensor_slots(model):
        slot.put(_share_bytes(slot.tensor))
    return _sorted(model, "the model") if sort else model


def _share_bytes(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """Return a tensor over the same bytes: renaming a value also renames the tensor it holds."""
    if isinstance(tensor, ir.ExternalTensor):
        return same_bytes(tensor)
    if isinstance(tensor, (ir.StringTensor, ir.LazyTensor)):
        return tensor
    return ir.LazyTensor(
        lambda: tensor,
        dtype=tensor.dtype,
        shape=shape_of(tensor),
        name=tensor.name,
        doc_string=tensor.doc_string,
        cache=False,
    )


def _sorted(model: ir.Model, what: str) -> ir.Model:
    try:
        if not is_in_order(model):
            model.graph.sort()
            check_order(model)  # what is still not there never will be
        for function in model.functions.values():
            function.sort()
    except ValueError as error:
        raise ModelError(f"{what} has nodes that feed each other in a circle.") from error
    return model


def _attach_external_data(model: ir.Model, what: str, folder: Path) -> None:
    """Point external tensors at the model's folder, after checking that each is whole in there."""
    files: dict[str, Path] = {}
    stored: dict[str, StoredFile] = {}
    for slot in tensor_slots(model):
        tensor = slot.tensor
        if not isinstance(tensor, ir.ExternalTensor):
            continue
        location = os.fspath(tensor.location)
        where = f"{what}: tensor {slot.name!r}"
        if location not in files:
            files[location] = _checked_file(location, where, folder)
        file = files[location]
        offset, length = tensor.offset or 0, tensor.length or tensor.nbytes
        info = file.stat()
        if offset < 0 or length < tensor.nbytes or offset + length > info.st_size:
            raise ModelError(
                f"{where} needs bytes {offset} to {offset + max(length, tensor.nbytes)} of "
                f"{location!r}, which has {info.st_size}; the data file is cut off or belongs "
                "to another model, so export or download both again."
            )
        if info.st_nlink > 1:
            # onnx-ir does not read it, since a hard link may be to any file; but somebody who could
            # read that one put it into the model's own folder.
            stored.setdefault(location, StoredFile(file))
            slot.put(_stored_tensor(tensor, stored[location], offset, where))
        elif file == folder / location:
            tensor.base_dir = str(folder)
        else:  # in the blobs of a download
            slot.put(external_like(tensor, file.name, offset, length, base_dir=str(file.parent)))


def _stored_tensor(
    tensor: ir.ExternalTensor, file: StoredFile, offset: int, where: str
) -> ir.TensorProtocol:
    if tensor.dtype.bitwidth < 8:
        raise ModelError(
            f"{where} needs {os.fspath(tensor.location)!r}, which is hard-linked and packs several "
            "numbers into a byte; replace it by a plain copy."
        )
    extent = Extent(tensor.dtype, tuple(tensor.shape.numpy()), offset, tensor.nbytes)
    return file.tensor(tensor.name or "", extent)


def _checked_file(location: str, where: str, folder: Path) -> Path:
    """Return the file of external data, which has to lie in the model's folder.

    Model files are untrusted, and links are followed to see where they lead. A snapshot in the
    cache of a download has links into the blobs beside it, and to those alone.
    """
    if not location:
        raise ModelError(f"{where} is external but names no data file; export the model again.")
    windows_root = location[1:2] == ":" or location.startswith("\\")
    escapes = Path(location).is_absolute() or windows_root or ".." in Path(location).parts
    path, real = folder / location, (folder / location).resolve()
    is_blob = path.is_symlink() and real.parent in _blobs_of(folder)
    if escapes or not (is_blob or real.is_relative_to(folder.resolve())):
        remedy = ""
        if not escapes:  # the user may well mean it
            remedy = "; copy the folder with its links followed (cp -rL)"
        raise ModelError(
            f"{where} points at {location!r}, outside the model's folder; "
            f"refused, because a model file may not read other files{remedy}."
        )
    if not path.is_file():
        raise ModelError(
            f"{where} needs the data file {location!r}, which is missing; put it beside the model."
        )
    return real if is_blob else path


def _blobs_of(folder: Path) -> list[Path]:
    """Return where the files of a snapshot lie, if a folder is in one: CACHE/snapshots/REVISION."""
    return [
        (place.parent.parent / "blobs").resolve()
        for place in (folder, *folder.parents)
        if place.parent.name == "snapshots"
    ]


def _refuse_devices(proto: onnx.ModelProto, what: str) -> None:
    # onnx-ir below 1.1 drops them without a word.
    configurations = getattr(proto, "configuration", ())
    if configurations and not hasattr(ir.Model, "device_configurations"):
        raise ModelError(
            f"{what} is spread over several devices (configuration {configurations[0].name!r}), "
            "which onnx-ir keeps from 1.1 on; export the model for one device, or install "
            "'onnx-ir>=1.1'."
        )


def _refuse_maps(proto: onnx.ModelProto, what: str) -> None:
    # onnx-ir has no such type; those at the end of a model were taken off.
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        kind = value.type
        if kind.HasField("sequence_type"):
            kind = kind.sequence_type.elem_type
        if kind.HasField("map_type"):
            raise ModelError(
                f"{what}: {value.name!r} is a map, not a tensor, which is not supported; export "
                "the model with tensors alone (skl2onnx: options={'zipmap': False})."
            )


def _refuse_sparse(proto: onnx.ModelProto, what: str) -> None:
    # onnx-ir drops sparse initializers without a word, so this looks at the file itself.
    for graph in _proto_graphs(proto):
        for sparse in graph.sparse_initializer:
            raise ModelError(
                f"{what}: tensor {sparse.values.name!r} is stored as a sparse tensor, which is not "
                "supported; export the model with dense weights."
            )
        for node in graph.node:
            if any(attribute.name == "sparse_value" for attribute in node.attribute):
                raise ModelError(
                    f"{what}: node {node.name or node.op_type!r} holds a sparse tensor, which is "
                    "not supported; export the model with dense weights."
                )


def _proto_graphs(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """Yield all graphs of a model; the body of a function is one of nodes alone."""
    bodies = (onnx.GraphProto(node=function.node) for function in proto.functions)
    for root in (proto.graph, *bodies):
        yield from (graph for _, graph in iter_messages("", root))


def _proto_tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    for graph in _proto_graphs(proto):
        yield from graph.initializer
        for attribute in (attribute for node in graph.node for attribute in node.attribute):
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def _cause_of(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error
