"""Save a model atomically: a kill at any moment leaves the old file or the new one, whole."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import onnx
import onnx_ir as ir

from bitwright.errors import OutputError
from bitwright.graph.checking import check_order
from bitwright.graph.cloning import clone_model
from bitwright.graph.loading import ModelSource, files_of
from bitwright.graph.model_bytes import CHUNK_BYTES, write_model, write_tensors
from bitwright.graph.source import source_path
from bitwright.graph.tensors import (
    TensorSlot,
    external_like,
    external_path,
    inline_copy,
    serialized_size,
    tensor_slots,
)
from bitwright.support import check_regular_file, logged, replace_file, temporary_beside

EXTERNAL_DATA_THRESHOLD = 2_000_000_000
"""Bytes above which tensors go to a `<name>.data` file by themselves (protobuf ends at 2 GiB)."""

_SMALLEST_EXTERNAL_TENSOR = 1024


def check_destination(
    path: str | os.PathLike[str],
    *,
    source: ModelSource | None = None,
    others: Iterable[str | os.PathLike[str] | None] = (),
) -> None:
    """Raise an OutputError if a file cannot or must not be written here; call it before any work.

    Neither the model `source` nor a file of `others`, which the job reads or writes too, is
    overwritten; None stands for a file that was not given.
    """
    target = Path(path)
    if str(target).startswith(("/dev/std", "/dev/fd/", "/proc/")):
        raise OutputError(
            f"{str(target)!r} is a stream; give the path of a file, or to the command -o -."
        )
    check_regular_file(target, OutputError)  # a rename would put a file in its place
    if not target.name or target.is_dir():
        raise OutputError(f"{str(target)!r} is a folder; give the path of a file in it.")
    check_parent(target)
    if source is not None:
        _check_not_input(target, source)
    for other in others:
        if other is not None and _is_same_file(target, other):
            raise OutputError(
                f"writing {str(target)!r} would overwrite {str(other)!r}, which is given too; "
                "choose another output path."
            )


def check_parent(target: Path) -> None:
    """Raise an OutputError if nothing can be written beside this path."""
    folder = target.parent
    if not folder.exists():
        raise OutputError(
            f"there is no folder {str(folder)!r} to write {target.name!r} in; "
            "create it or choose another."
        )
    if not folder.is_dir():
        raise OutputError(f"{str(folder)!r} is a file, not a folder; choose another output path.")
    _check_writable(target)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalData:
    """Which tensors go outside the model file, and where to."""

    location: str | None = None
    """A file in the model's folder, or a folder there where each tensor gets a file of its own;
    None: `<name>.data`, or the model's folder."""
    one_file: bool = True
    """All tensors in one file, or one file for each, by the tensor's name."""
    threshold: int = _SMALLEST_EXTERNAL_TENSOR
    """Tensors of at least this many bytes go outside."""
    attributes: bool = True
    """The tensors of attributes, as Constant nodes have them, may go outside too."""

    def takes(self, slot: TensorSlot) -> bool:
        """Return whether the tensor in a slot goes outside."""
        if slot.attribute and not self.attributes:
            return False
        return slot.tensor.nbytes >= self.threshold and slot.tensor.dtype != ir.DataType.STRING

    def file_for(self, target: Path, tensor: str) -> Path:
        """Return the file that a tensor of the model at `target` goes to."""
        place = target.parent / (self.location or "")
        if not self.one_file:
            # Tensor names hold slashes and colons, which no file system takes in a name.
            return place / (re.sub(r"[^\w.-]", "_", tensor) or "tensor")
        return place if self.location else target.with_name(f"{target.name}.data")


@logged("save")
def save_model(
    model: ir.Model,
    path: str | os.PathLike[str],
    *,
    external_data: bool | ExternalData | None = None,
) -> None:
    """Write a model atomically; the same model gives the same bytes.

    With external_data=True, or None and more than 2 GB, tensors of 1 KB and more go to
    `<name>.data` beside the model, streamed one by one; an `ExternalData` says it otherwise. All of
    it is first written to temporary files in the same folder and renamed at the end; on any failure
    these are removed and what stood there before is untouched. When another `<name>.data` is in
    place, the new one is named `<name>.<hash>.data`: two files cannot be swapped in one step, so
    the old pair stays valid until the new model file takes its place, and only then goes.
    """
    check_destination(path)
    target = Path(os.path.realpath(path))
    size = serialized_size(model)
    if external_data is None:
        external_data = size > EXTERNAL_DATA_THRESHOLD
    if not external_data and size > EXTERNAL_DATA_THRESHOLD:
        raise OutputError(
            f"the model takes {size / 1e9:.1f} GB and one ONNX file holds 2; "
            "write it with external data."
        )
    check_order(model)
    with _as_output_error(target):
        if external_data:
            chosen = external_data if isinstance(external_data, ExternalData) else ExternalData()
            _check_location(chosen, target)
            _write_with_data(clone_model(model), target, chosen)
        else:
            whole = _with_all_inside(model)
            stale = _data_files_of(target)
            with temporary_beside(target) as temporary:
                _write_file(temporary, lambda file: write_model(whole, file))
                replace_file(temporary, target)
            _remove(stale)


def _check_writable(target: Path) -> None:
    folder, problem = target.parent, None
    if not os.access(folder, os.W_OK | os.X_OK):
        problem = "no permission"
    else:
        # With room for the names of temporary files, and of data beside it.
        probe = folder / f".{target.name}.data.{secrets.token_hex(12)}.tmp"
        try:
            os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            probe.unlink()
        except OSError as error:
            problem = error.strerror or str(error)
    if problem:
        raise OutputError(
            f"the folder {str(folder)!r} cannot be written to ({problem}); change its rights, or "
            "choose another path."
        )


def _is_same_file(one: Path, other: str | os.PathLike[str]) -> bool:
    # os.path, as what a user gives as data may be no path that Path.exists takes.
    if os.path.exists(one) and os.path.exists(other):  # noqa: PTH110
        return os.path.samefile(one, other)  # noqa: PTH121
    return os.path.realpath(one) == os.path.realpath(other)


def _check_not_input(target: Path, source: ModelSource) -> None:
    data = target.with_name(target.name + ".data")
    if not target.exists() and not data.exists():
        return  # nothing there that could be lost
    inputs = _files_of(source)
    for ours in (target, data):
        for theirs in inputs:
            if ours.exists() and theirs.exists() and ours.samefile(theirs):
                raise OutputError(
                    f"writing {str(target)!r} would overwrite the input ({str(theirs)!r}); "
                    "choose another output path."
                )


def _files_of(source: ModelSource) -> list[Path]:
    if isinstance(source, onnx.ModelProto):
        return []
    if isinstance(source, ir.Model):
        tensors = (slot.tensor for slot in tensor_slots(source))
        files = {external_path(t) for t in tensors if isinstance(t, ir.ExternalTensor)}
        path = source_path(source)
        return [*([path] if path is not None else []), *map(Path, sorted(files))]
    try:
        return files_of(source)
    except Exception:  # noqa: BLE001 (a broken input is reported when it is loaded)
        return [Path(source)]


def _check_location(layout: ExternalData, target: Path) -> None:
    """Refuse a data file outside the model's folder, where no reader would look for it."""
    if layout.location is None:
        return
    place = target.parent / layout.location
    folder = place.parent if layout.one_file else place
    inside = place.resolve().is_relative_to(target.parent.resolve())
    wrong = layout.one_file and (place.is_dir() or place == target)
    if Path(layout.location).is_absolute() or not inside or wrong:
        what = "the name of a file" if layout.one_file else "a folder"
        raise OutputError(
            f"external data cannot go to {layout.location!r}; give {what} in the folder of the "
            "model."
        )
    if not folder.is_dir():
        raise OutputError(
            f"there is no folder {str(folder)!r} for external data; create it or choose another."
        )


def _with_all_inside(model: ir.Model) -> ir.Model:
    """Return a model that holds all of its tensors: a copy, where some lie in files."""
    if not any(isinstance(slot.tensor, ir.ExternalTensor) for slot in tensor_slots(model)):
        return model
    clone = clone_model(model)
    for slot in tensor_slots(clone):
        slot.put(inline_copy(slot.tensor))
    return clone


def _write_with_data(clone: ir.Model, target: Path, layout: ExternalData) -> None:
    groups: dict[Path, list[TensorSlot]] = {}
    inside: list[TensorSlot] = []
    for slot in tensor_slots(clone):
        if not layout.takes(slot):
            inside.append(slot)
            continue
        file = layout.file_for(target, slot.name)
        number = 0
        while not layout.one_file and (file in groups or file == target):
            number += 1  # two names, one spelling
            file = layout.file_for(target, f"{slot.name}_{number}")
        groups.setdefault(file, []).append(slot)
    stale = _data_files_of(target, groups)
    _refuse_own_files(clone, {*groups, *stale})
    with ExitStack() as stack:
        written: dict[Path, Path] = {}
        for plain, slots in groups.items():
            temporary_data = stack.enter_context(temporary_beside(plain))
            written[_write_data(slots, plain, temporary_data, target)] = temporary_data
        for slot in inside:
            slot.put(inline_copy(slot.tensor))
        temporary = stack.enter_context(temporary_beside(target))
        _write_file(temporary, lambda file: write_model(clone, file))
        new = [data for data in written if not data.exists()]
        try:
            for data, temporary_data in written.items():
                replace_file(temporary_data, data)
            replace_file(temporary, target)
        except BaseException:
            _remove(new)
            raise
    _remove([old for old in stale if old not in written])


def _refuse_own_files(clone: ir.Model, files: set[Path]) -> None:
    for slot in tensor_slots(clone):
        tensor = slot.tensor
        if isinstance(tensor, ir.ExternalTensor) and Path(external_path(tensor)) in files:
            raise OutputError(
                f"{Path(tensor.path).name!r} holds the weights of the model that is being "
                "written; choose another output path."
            )


def _write_data(slots: list[TensorSlot], plain: Path, temporary: Path, target: Path) -> Path:
    """Write tensors to a temporary file, point them at its final one, and return that."""
    ranges: list[tuple[int, int]] = []
    # Beside an older file it is named after its bytes, which are read once, as they are written.
    digest = hashlib.sha256() if plain.exists() else None
    _write_file(temporary, lambda file: write_tensors(slots, file, ranges, digest))
    data = plain
    if digest is not None and not _hold_the_same(plain, temporary):
        data = plain.with_name(f"{plain.stem}.{digest.hexdigest()[:12]}{plain.suffix}")
    for slot, (offset, length) in zip(slots, ranges, strict=True):
        place = data.relative_to(target.parent).as_posix()
        slot.put(external_like(slot.tensor, place, offset, length, name=slot.name))
    return data


def _remove(files: list[Path]) -> None:
    for file in files:
        with suppress(OSError):
            file.unlink()


def _hold_the_same(one: Path, other: Path) -> bool:
    """Whether two files have the same bytes."""
    if one.stat().st_size != other.stat().st_size:
        return False
    with one.open("rb") as first, other.open("rb") as second:
        while chunk := first.read(CHUNK_BYTES):
            if chunk != second.read(CHUNK_BYTES):
                return False
    return True


def _data_files_of(target: Path, files: Iterable[Path] = ()) -> list[Path]:
    """Return the data files of the model that stands at the target, if `save_model` named them.

    Whoever wrote that model chose its paths, so none that leaves its folder is followed.
    """
    if not target.is_file():
        return []
    plain = {target.with_name(f"{target.name}.data"), *files}
    names = "|".join(rf"{re.escape(f.stem)}(\.[0-9a-f]{{12}})?{re.escape(f.suffix)}" for f in plain)
    return [
        file
        for file in _files_of(target)[1:]
        if re.fullmatch(names, file.name)
        and file.is_file()
        and file.parent.resolve().is_relative_to(target.parent.resolve())
    ]


def _write_file(path: Path, write: Callable[[BinaryIO], None]) -> None:
    with path.open("wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _as_output_error(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
            reason = "the disk is full or a size limit was reached; free some space and try again."
        else:
            reason = f"{error.strerror or error}; check the folder and try again."
        raise OutputError(f"{str(target)!r} was not written: {reason}") from error
