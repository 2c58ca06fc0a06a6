import os
import pickle
import zipfile

import numpy as np
import pytest
from PIL import Image

from bitwright.data import open_data
from bitwright.data.array_files import load_arrays
from bitwright.data.specs import InputSpec
from bitwright.errors import DataError

F32 = np.dtype("float32")
X = InputSpec("x", F32, ("batch", 2))
FIXED = InputSpec("x", F32, (1, 2))
Y = InputSpec("y", np.dtype("int64"), ("batch",))
PICTURE = InputSpec("x", F32, (1, 3, 4, 4))


def x(value=0.0, batch=1):
    return np.full((batch, 2), value, np.float32)


def values(samples):
    return [float(sample["x"].flat[0]) for sample in samples]


def test_one_npy_file_is_a_stack(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.arange(6, dtype=np.float32).reshape(3, 2))
    samples = open_data(path, [X])
    assert (samples.len_hint, samples.description) == (3, str(path))
    assert values(samples) == values(samples) == [0, 2, 4]
    assert values(open_data(str(path), [FIXED], limit=2)) == [0, 2]


def test_an_npz_file_has_the_inputs_by_name(tmp_path):
    np.savez(tmp_path / "d.npz", x=np.ones((3, 1, 2), np.float32), y=np.arange(3).reshape(3, 1))
    samples = list(open_data(tmp_path / "d.npz", [X, Y]))
    assert [int(sample["y"][0]) for sample in samples] == [0, 1, 2]
    assert samples[0]["x"].shape == (1, 2)


def test_a_single_array_in_an_npz_may_have_any_name(tmp_path):
    np.savez(tmp_path / "d.npz", x(5))
    assert values(open_data(tmp_path / "d.npz", [X])) == [5]


def test_a_folder_is_read_in_the_order_of_names(tmp_path):
    for name, value in (("b.npy", 2), ("a.npy", 1), ("c.npy", 3)):
        np.save(tmp_path / name, x(value, batch=2))
    np.savez(tmp_path / "d.npz", x=x(4))
    (tmp_path / ".hidden").write_text("passed over")
    samples = list(open_data(tmp_path, [X]))
    assert values(samples) == [1, 2, 3, 4]
    # One file among many is one batch of an open size, and several of a fixed one.
    assert samples[0]["x"].shape == (2, 2)
    assert len(list(open_data(tmp_path, [FIXED]))) == 7


def test_one_file_for_each_input(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(6, dtype=np.float32).reshape(3, 2))
    np.save(tmp_path / "y.npy", np.arange(3))
    samples = open_data(tmp_path, [X, Y])
    assert samples.len_hint == 3
    assert [int(sample["y"][0]) for sample in samples] == [0, 1, 2]


def test_one_subfolder_for_each_input(tmp_path):
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
    for number in range(3):
        np.save(tmp_path / "x" / f"{number}.npy", x(number))
        np.save(tmp_path / "y" / f"{number}.npy", np.array([number * 10]))
    samples = list(open_data(tmp_path, [X, Y]))
    assert values(samples) == [0, 1, 2]
    assert [int(sample["y"][0]) for sample in samples] == [0, 10, 20]
    (tmp_path / "y" / "2.npy").rename(tmp_path / "y" / "3.npy")
    with pytest.raises(DataError, match="do not hold the same file names"):
        open_data(tmp_path, [X, Y])


def test_subfolders_must_be_the_inputs(tmp_path):
    (tmp_path / "x").mkdir()
    np.save(tmp_path / "x" / "0.npy", x())
    with pytest.raises(DataError, match="no folder for the model's input 'y'"):
        open_data(tmp_path, [X, Y])
    (tmp_path / "yy").mkdir()
    np.save(tmp_path / "yy" / "0.npy", x())
    with pytest.raises(DataError, match="named after no input of the model"):
        open_data(tmp_path, [X, Y])


def test_class_folders_of_images_are_taken_in_turn(tmp_path):
    for name, count, shade in (("cat", 3, 51), ("dog", 2, 102)):
        (tmp_path / name).mkdir()
        for number in range(count):
            Image.new("RGB", (4, 4), (shade + number,) * 3).save(tmp_path / name / f"{number}.png")
    pixels = [round(value * 255) for value in values(open_data(tmp_path, [PICTURE]))]
    assert pixels == [51, 102, 52, 103, 53]


def test_a_fitting_array_is_mapped_and_not_read(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((4, 2), np.float32))
    sample = next(iter(open_data(tmp_path / "x.npy", [X])))
    base = sample["x"]
    while getattr(base, "base", None) is not None and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)


def test_a_fitting_archive_is_mapped_and_not_read(tmp_path):
    stored = {
        "x": np.arange(8, dtype=np.float32).reshape(4, 2),
        "y": np.asfortranarray(np.eye(3)[:2]),
    }
    np.savez(tmp_path / "d.npz", **stored)
    found = load_arrays(tmp_path / "d.npz")
    assert all(isinstance(array, np.memmap) for array in found.values())
    np.savez_compressed(tmp_path / "c.npz", **stored)
    for arrays in (found, load_arrays(tmp_path / "c.npz")):
        for name, array in stored.items():
            np.testing.assert_array_equal(arrays[name], array)


def test_an_archive_with_other_arrays_is_refused_before_one_is_read(tmp_path):
    np.savez(tmp_path / "d.npz", w=x(), z=x())
    content = bytearray((tmp_path / "d.npz").read_bytes())
    content[184] ^= 1  # of w: reading it would fail first
    (tmp_path / "d.npz").write_bytes(content)
    with pytest.raises(DataError, match="names 'w', which is no input"):
        list(open_data(tmp_path / "d.npz", [X]))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no such pipes")
@pytest.mark.parametrize("name", ["d.npy", "d.npz", "d.txt"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path, name):
    os.mkfifo(tmp_path / name)
    for path in (tmp_path / name, tmp_path):
        with pytest.raises(DataError, match=r"is a pipe or a device|neither a .npy"):
            list(open_data(path, [X]))


def header(text):
    """Return a .npy file of eight bytes with this header."""
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(8)


def broken_files(folder):
    np.save(folder / "whole.npy", np.zeros((50, 2), np.float32))
    np.savez(folder / "whole.npz", x=np.zeros((50, 2), np.float32))
    npy, npz = (folder / "whole.npy").read_bytes(), (folder / "whole.npz").read_bytes()
    np.save(folder / "object.npy", np.array([{}], object), allow_pickle=True)
    np.savez(folder / "object.npz", x=np.array([{}], object), allow_pickle=True)
    nested = b"{'descr': '<f4', 'fortran_order': False, 'shape': " + b"(" * 4000 + b")" * 4000
    huge = header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776, 64), }\n")
    for name, method in (("stored", zipfile.ZIP_STORED), ("packed", zipfile.ZIP_DEFLATED)):
        with zipfile.ZipFile(folder / f"{name}.npz", "w", method) as archive:
            archive.writestr("x.npy", huge)
    return {
        "nested.npy": (header(nested + b"}"), "cut off or damaged"),
        "open.npy": (header(b"{'descr': ("), "cut off or damaged"),
        "untyped.npy": (
            header(b"{'descr': [1], 'fortran_order': False, 'shape': (2,), }"),
            "cut off or damaged",
        ),
        "huge.npy": (huge, "cut off or damaged"),
        "stored.npz": ((folder / "stored.npz").read_bytes(), "cut off or damaged"),
        "packed.npz": ((folder / "packed.npz").read_bytes(), "cut off or damaged"),
        "short.npy": (npy[:-9], "cut off or damaged"),
        "header.npy": (npy[:40], "cut off or damaged"),
        "magic.npy": (npy[:7], "cut off or damaged"),
        "short.npz": (npz[:-30], "cut off or damaged"),
        "flipped.npz": (npz[:200] + b"\xff" * 20 + npz[220:], "cut off or damaged"),
        "nothing.npy": (b"", "is empty"),
        "nothing.npz": (b"", "is empty"),
        "text.npy": (b"1,2,3\n4,5,6\n", "not a NumPy file"),
        "text.npz": (b"1,2,3\n4,5,6\n", "not a NumPy file"),
        "pickle.npy": (pickle.dumps([1, 2]), "pickled Python objects, which are never loaded"),
        "object.npy": ((folder / "object.npy").read_bytes(), "pickled Python objects"),
        "object.npz": ((folder / "object.npz").read_bytes(), "pickled Python objects"),
        "swapped.npy": (npz, "rename it to .npz"),
        "swapped.npz": (npy, "rename it to .npy"),
    }


@pytest.mark.parametrize(
    "name",
    [
        "nested.npy",
        "open.npy",
        "untyped.npy",
        "huge.npy",
        "stored.npz",
        "packed.npz",
        "short.npy",
        "header.npy",
        "magic.npy",
        "short.npz",
        "flipped.npz",
        "nothing.npy",
        "nothing.npz",
        "text.npy",
        "text.npz",
        "pickle.npy",
        "object.npy",
        "object.npz",
        "swapped.npy",
        "swapped.npz",
    ],
)
def test_a_file_that_cannot_be_trusted_is_named_with_its_remedy(tmp_path, name):
    content, words = broken_files(tmp_path)[name]
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / name).write_bytes(content)
    for path in (folder / name, folder):
        with pytest.raises(DataError) as caught:
            list(open_data(path, [X]))
        assert words in str(caught.value)
        assert name in str(caught.value)


def test_labels_beside_the_inputs_of_an_npz_are_not_read(tmp_path):
    np.savez(tmp_path / "d.npz", x=x(), label=np.arange(7))
    assert [list(sample) for sample in open_data(tmp_path / "d.npz", [X])] == [["x"]]


def test_an_unknown_array_in_an_npz_names_the_file(tmp_path):
    np.savez(tmp_path / "d.npz", y=x(), z=x())
    with pytest.raises(DataError, match=r"d.npz' names 'y', which is no input"):
        list(open_data(tmp_path / "d.npz", [X]))


def test_one_array_for_two_inputs_is_refused(tmp_path):
    np.save(tmp_path / "d.npy", x())
    with pytest.raises(DataError, match="holds one array, but the model has 2 inputs"):
        list(open_data(tmp_path / "d.npy", [X, Y]))


def test_an_empty_stack_is_refused(tmp_path):
    np.save(tmp_path / "d.npy", np.zeros((0, 2), np.float32))
    with pytest.raises(DataError, match="holds no samples"):
        list(open_data(tmp_path / "d.npy", [X]))


def test_an_empty_archive_is_refused(tmp_path):
    np.savez(tmp_path / "d.npz")
    with pytest.raises(DataError, match="holds no arrays"):
        list(open_data(tmp_path / "d.npz", [X]))


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(DataError, match="is empty; put"):
        open_data(tmp_path, [X])
    (tmp_path / "x").mkdir()
    with pytest.raises(DataError, match="is empty; put"):
        open_data(tmp_path, [X])


def test_mixed_content_is_refused(tmp_path):
    np.save(tmp_path / "a.npy", x())
    Image.new("RGB", (4, 4)).save(tmp_path / "b.png")
    with pytest.raises(DataError, match=r"mixes arrays \('a.npy'\) and images \('b.png'\)"):
        open_data(tmp_path, [X])
    (tmp_path / "sub").mkdir()
    np.save(tmp_path / "sub" / "c.npy", x())
    with pytest.raises(DataError, match=r"mixes files .* give a pattern such as"):
        open_data(tmp_path, [X])


def test_other_files_in_a_folder_are_passed_over_with_a_warning(tmp_path):
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(DataError, match=r"notes.txt' is neither"):
        open_data(tmp_path, [X])
    np.save(tmp_path / "a.npy", x())
    (tmp_path / "annotations").mkdir()
    with pytest.warns(UserWarning, match="also has 2 other files, such as 'notes.txt'"):
        assert len(list(open_data(tmp_path, [X]))) == 1


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "data.xls").write_text("1,2")
    with pytest.raises(DataError, match=r"neither a .npy, .npz or .csv file nor an image"):
        open_data(tmp_path / "data.xls", [X])


def test_patterns_and_lists_of_paths_stand_for_files_in_order(tmp_path):
    (tmp_path / "deep").mkdir()
    for name, value in (("b.npy", 2), ("a.npy", 1), ("deep/c.npy", 3)):
        np.save(tmp_path / name, x(value))

    def read(source):
        samples = open_data(source, [X])
        return [float(sample["x"][0, 0]) for sample in samples]

    assert read(tmp_path / "*.npy") == [1, 2]
    assert read(str(tmp_path / "**" / "*.npy")) == [1, 2, 3]
    assert read([tmp_path / "b.npy", str(tmp_path / "a.npy")]) == [2, 1]
    with pytest.raises(DataError, match="no data file fits the pattern"):
        read(tmp_path / "*.png")
    with pytest.raises(DataError, match=r"there is no file .*no\.npy'; check the list"):
        read([tmp_path / "no.npy"])


def test_a_function_is_given_each_array_of_a_file(tmp_path):
    np.save(tmp_path / "a.npy", np.stack([x(1), x(2)]))
    samples = open_data(tmp_path / "a.npy", [X], transform=lambda array: 10 * array)
    assert [float(sample["x"][0, 0]) for sample in samples] == [10, 20]


def test_preprocessing_of_arrays_is_refused(tmp_path):
    np.save(tmp_path / "a.npy", x())
    for path in (tmp_path, tmp_path / "a.npy"):
        with pytest.raises(DataError, match="holds arrays and not images"):
            open_data(path, [X], transform="imagenet")
