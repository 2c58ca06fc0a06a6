"""Calibration data on disk: arrays, images, videos, tables, folders of them, and patterns."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from bitwright.data.array_files import ARRAY_READERS, load_arrays, load_npy
from bitwright.data.audio import AUDIO_SUFFIXES, open_recordings
from bitwright.data.image_preprocess import no_images
from bitwright.data.images import IMAGE_SUFFIXES, VIDEO_SUFFIXES, open_images, video_samples
from bitwright.data.items import transformed
from bitwright.data.samples import NamedSample, Samples
from bitwright.data.specs import InputSpec, Sample, split_stack
from bitwright.data.tables import load_table
from bitwright.errors import DataError, did_you_mean
from bitwright.support import check_regular_file, counted, warn_user

# Suffix of a file -> the kind of data in it; all files of a folder are of one kind.
_KINDS = {
    **dict.fromkeys((".npy", ".npz"), "arrays"),
    **dict.fromkeys(IMAGE_SUFFIXES, "images"),
    **dict.fromkeys(VIDEO_SUFFIXES, "videos"),
    **dict.fromkeys(AUDIO_SUFFIXES, "recordings"),
    ".csv": "tables",
}
_ACCEPTED = "a .npy, .npz or .csv file, an image, a video, a recording, or a folder of these"


def is_sample_file(path: str | os.PathLike[str]) -> bool:
    """Return whether a file holds arrays or an image, by its name."""
    return Path(path).suffix.lower() in _KINDS


def is_array_file(path: str | os.PathLike[str]) -> bool:
    """Return whether a file holds arrays, by its name."""
    return Path(path).suffix.lower() in ARRAY_READERS


def list_files(path: Path) -> list[Path]:
    """Return the file that a path names, or those of a folder without folders, by their names."""
    if path.is_file():
        return [path]
    files, folders, _ = _list_folder(path)
    return [] if folders else files


def class_of_images(path: Path) -> list[int] | None:
    """Return the class of each image as `open_path` gives them; None: no folder of classes.

    A folder has one subfolder for each class; their names, in order, are classes 0, 1, 2, ...
    """
    if not path.is_dir():
        return None
    files, folders, _ = _list_folder(path)
    if files or not folders:
        return None
    contents = [_list_folder(sub)[0] for sub in folders]
    number = {file: index for index, found in enumerate(contents) for file in found}
    return [number[file] for file in _interleave(contents)]


def open_path(path: Path, specs: Sequence[InputSpec], transform: Any = None) -> Samples:
    """Open the samples in a file or in a folder; `transform` is for images and videos.

    * A `.npz` file holds one array for each input of the model, under its name; more arrays, such
      as labels, are not read. A model with one input takes a `.npy` file, or a `.npz` with one
      array of any name. `split_stack` has the rule for files that hold many samples.
    * A `.csv` file has a sample in each row (`load_table`), a video one in each second.
    * A folder holds such files; or one `.npy` named after each input; or one subfolder for each
      input, with files of the same names in each.
    * A folder of images may have subfolders (one for each class), which are then taken in turn,
      so that a limit does not see one class only.
    * A pattern such as `images/*.png` or `images/**/*.png` stands for the files that it fits.

    Files of other kinds in a folder are passed over, with a warning unless they are hidden.
    """
    check_regular_file(path, DataError)
    if not path.exists() and glob.has_magic(str(path)):
        names = glob.glob(str(path), recursive=True)  # noqa: PTH207 - relative and absolute ones
        found = sorted(map(Path, names))
        files = [file for file in found if file.is_file() and is_sample_file(file)]
        if not files:
            raise DataError(f"no data file fits the pattern {str(path)!r}; give {_ACCEPTED}.")
        return open_paths(files, specs, transform, str(path))
    if not path.exists():
        raise DataError(
            f"there is no calibration data at {str(path)!r}; give the path of {_ACCEPTED}."
        )
    if path.is_file():
        if not is_sample_file(path):
            raise DataError(
                f"{str(path)!r} is neither a .npy, .npz or .csv file nor an image or a video; "
                "save the data with np.savez(path, input_name=array)."
            )
        return open_paths([path], specs, transform, str(path))
    return _open_folder(path, tuple(specs), transform)


def open_paths(
    files: Sequence[Path], specs: Sequence[InputSpec], transform: Any, origin: str
) -> Samples:
    """Open files of one kind, whose order is that of the samples."""
    specs = tuple(specs)
    kind = _one_kind(origin, files)
    if kind == "images":
        return open_images(list(files), specs, transform, _described(origin, files, "image"))
    if kind == "videos":
        described = _described(origin, files, "video")
        return Samples(lambda: video_samples(files, specs, transform), specs, description=described)
    if kind == "recordings":
        described = _described(origin, files, "recording")
        return open_recordings(files, specs, transform, described)
    _refuse_preprocess(origin, transform)
    lone = len(files) == 1
    total = _file_samples(files[0], specs, lone=True)[0] if lone else None
    if total == 0:
        raise DataError(f"{str(files[0])!r} holds no samples; give at least one.")

    def produce_arrays() -> Iterator[NamedSample]:
        for file in files:
            for sample in _file_samples(file, specs, lone=lone or kind == "tables")[1]:
                yield transformed(sample, specs, 0, transform), file.name

    def at(number: int) -> NamedSample:
        # The file is mapped into memory: samples before this one are not read.
        sample = next(islice(_file_samples(files[0], specs, lone=True)[1], number, None))
        return sample, files[0].name

    described = origin if lone and origin == str(files[0]) else _described(origin, files, "file")
    mapped = lone and files[0].suffix.lower() == ".npy" and not callable(transform)
    return Samples(
        produce_arrays, specs, description=described, len_hint=total, at=at if mapped else None
    )


def _described(origin: str, files: Sequence[Path], noun: str) -> str:
    return f"{origin} ({counted(len(files), noun)})"


def _open_folder(folder: Path, specs: tuple[InputSpec, ...], transform: Any) -> Samples:
    files, folders, others = _list_folder(folder)
    if files and any(_list_folder(sub)[0] for sub in folders):
        raise DataError(
            f"{str(folder)!r} mixes files ({files[0].name!r}) and folders ({folders[0].name!r}); "
            "keep only the calibration data in it, or give a pattern such as "
            f"'{folder}/*{files[0].suffix}'."
        )
    if not files and not folders:
        raise DataError(
            f"the folder {str(folder)!r} is empty; put .npy or .npz files or images in it."
            if not others
            else f"{str(others[0])!r} is neither a .npy, .npz or .csv file nor an image or a "
            f"video, and nothing in {str(folder)!r} is; give {_ACCEPTED}."
        )
    _tell_passed_over(folder, [*others, *(folders if files else ())])
    if not files:
        return _open_subfolders(folder, folders, specs, transform)
    if len(specs) > 1 and {file.stem for file in files} == {spec.name for spec in specs}:
        _refuse_preprocess(str(folder), transform)
        return _open_named_files(folder, files, specs)
    return open_paths(files, specs, transform, str(folder))


def _tell_passed_over(folder: Path, others: Sequence[Path]) -> None:
    if others:
        warn_user(
            f"{str(folder)!r} also has {counted(len(others), 'other file')}, such as "
            f"{others[0].name!r}, without calibration data; passed over."
        )


def _list_folder(folder: Path) -> tuple[list[Path], list[Path], list[Path]]:
    """Return the files with data in them, the folders, and the other files of a folder."""
    entries = sorted(
        (entry for entry in folder.iterdir() if not entry.name.startswith(".")),
        key=lambda entry: entry.name,
    )
    plain = [entry for entry in entries if not entry.is_dir()]
    return (
        [entry for entry in plain if is_sample_file(entry)],
        [entry for entry in entries if entry.is_dir()],
        [entry for entry in plain if not is_sample_file(entry)],
    )


def _one_kind(origin: str, files: Sequence[Path]) -> str:
    kinds: dict[str, Path] = {}
    for file in files:
        if not is_sample_file(file):
            raise DataError(f"{str(file)!r} holds no calibration data; give {_ACCEPTED}.")
        kinds.setdefault(_KINDS[file.suffix.lower()], file)
    if len(kinds) > 1:
        (one, first), (other, second) = sorted(kinds.items(), reverse=True)[-2:]
        raise DataError(
            f"{origin!r} mixes {other} ({second.name!r}) and {one} ({first.name!r}); keep only one "
            "kind in it."
        )
    return next(iter(kinds))


def _open_subfolders(
    folder: Path, folders: list[Path], specs: tuple[InputSpec, ...], transform: Any
) -> Samples:
    names = {spec.name for spec in specs}
    contents: dict[str, list[Path]] = {}
    for sub in folders:
        files, deeper, others = _list_folder(sub)
        if not files:
            raise DataError(
                f"the folder {str(sub)!r} {'has folders in it' if deeper else 'is empty'}; "
                "put the .npy files or images of one input or class directly in it."
            )
        _tell_passed_over(sub, [*others, *deeper])
        contents[sub.name] = files
    everything = [file for files in contents.values() for file in files]
    if _one_kind(str(folder), everything) == "images" and not names <= contents.keys():
        return open_paths(_interleave(list(contents.values())), specs, transform, str(folder))
    _refuse_preprocess(str(folder), transform)
    for name in sorted(contents.keys() - names):
        raise DataError(
            f"the folder {str(folder / name)!r} is named after no input of the model."
            f"{did_you_mean(name, names)}"
        )
    for name in sorted(names - contents.keys()):
        raise DataError(
            f"{str(folder)!r} has no folder for the model's input {name!r}; "
            "give one folder for each input."
        )
    return _open_input_folders(folder, contents, specs)


def _open_input_folders(
    folder: Path, contents: Mapping[str, Sequence[Path]], specs: tuple[InputSpec, ...]
) -> Samples:
    """One subfolder for each input: files of the same name make one sample."""
    stems = {name: [file.stem for file in files] for name, files in contents.items()}
    first = specs[0].name
    for name, found in stems.items():
        if found != stems[first]:
            odd = sorted(set(found) ^ set(stems[first])) or found
            raise DataError(
                f"the folders {first!r} and {name!r} in {str(folder)!r} do not hold the same file "
                f"names ({odd[0]!r} is in one only); give each sample a file in every folder."
            )
    for file in (file for files in contents.values() for file in files):
        if file.suffix.lower() != ".npy":
            raise DataError(
                f"{str(file)!r} is no .npy file; where each input has its own folder, "
                "save every array with np.save."
            )

    def produce() -> Iterator[NamedSample]:
        for position, stem in enumerate(stems[first]):
            arrays = {spec.name: load_npy(contents[spec.name][position]) for spec in specs}
            for sample in split_stack(arrays, specs, origin=stem, lone=False)[1]:
                yield sample, stem

    described = f"{folder} ({counted(len(stems[first]), 'file')} for each input)"
    return Samples(produce, specs, description=described)


def _open_named_files(folder: Path, files: Sequence[Path], specs: tuple[InputSpec, ...]) -> Samples:
    """One file for each input, named after it, as if they were the arrays of one `.npz`."""
    for file in files:
        if file.suffix.lower() != ".npy":
            raise DataError(
                f"{str(file)!r} is named after an input but is no .npy file; save it with np.save."
            )
    arrays = {file.stem: load_npy(file) for file in files}
    origin = str(folder)
    count, _ = split_stack(arrays, specs, origin=origin, lone=True)

    def produce() -> Iterator[NamedSample]:
        for sample in split_stack(arrays, specs, origin=origin, lone=True)[1]:
            yield sample, folder.name

    return Samples(produce, specs, description=origin, len_hint=count)


def _interleave(groups: Sequence[Sequence[Path]]) -> list[Path]:
    """Return one file of each group in turn, until none is left."""
    longest = max(map(len, groups))
    return [group[index] for index in range(longest) for group in groups if index < len(group)]


def _refuse_preprocess(origin: str, transform: Any) -> None:
    if transform is not None and not callable(transform):
        raise no_images(f"{origin!r} holds arrays and not images")


def _file_samples(
    path: Path, specs: tuple[InputSpec, ...], *, lone: bool
) -> tuple[int, Iterator[Sample]]:
    if path.suffix.lower() == ".csv":
        return split_stack(load_table(path, specs), specs, origin=str(path), lone=True)
    arrays = load_arrays(path, [spec.name for spec in specs])
    if len(specs) == 1 and len(arrays) == 1:
        arrays = {specs[0].name: next(iter(arrays.values()))}
    elif "" in arrays:
        raise DataError(
            f"{str(path)!r} holds one array, but the model has {len(specs)} inputs "
            f"({', '.join(spec.name for spec in specs)}); "
            "save them together with np.savez(path, input_name=array, ...)."
        )
    return split_stack(arrays, specs, origin=str(path), lone=lone)
