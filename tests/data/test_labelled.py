"""Labels come with samples, beside them, or as folders; what memory has no room for is on disk."""

import json

import numpy as np
import pytest
from PIL import Image

from bitwright.data import InputSpec
from bitwright.data.labelled import ArrayStore, fingerprint_data, open_labelled, read_labels
from bitwright.errors import DataError

SPEC = InputSpec("x", np.dtype("float32"), (1, 2))


def stack(count):
    return np.arange(2 * count, dtype=np.float32).reshape(count, 2)


def labels_of(samples):
    return [int(sample["label"]) for sample in samples]


def test_more_keys_of_a_dict_are_for_the_metric():
    given = [{"x": row[None], "label": n, "box": [1, 2]} for n, row in enumerate(stack(3))]
    samples = open_labelled(given, [SPEC])
    assert labels_of(samples) == [0, 1, 2]
    assert samples[1]["box"] == [1, 2]
    assert list(samples.feeds(1)) == ["x"]


def test_more_arrays_of_a_file_are_cut_with_the_samples(tmp_path):
    np.savez(tmp_path / "all.npz", x=stack(4), label=np.array([5, 6, 7, 8]))
    assert labels_of(open_labelled(tmp_path / "all.npz", [SPEC])) == [5, 6, 7, 8]
    folder = tmp_path / "each"
    folder.mkdir()
    for number, row in enumerate(stack(3)):
        np.savez(folder / f"{number}.npz", x=row[None], label=number)
    assert labels_of(open_labelled(folder, [SPEC])) == [0, 1, 2]


def test_labels_without_a_row_for_each_sample_are_refused():
    with pytest.raises(DataError, match=r"'label' in the dict of arrays .* each of the 4 samples"):
        open_labelled({"x": stack(4), "label": np.arange(3)}, [SPEC])


def test_tuples_hold_the_label_behind_the_inputs():
    given = [(row[None], n) for n, row in enumerate(stack(3))]
    assert labels_of(open_labelled(given, [SPEC])) == [0, 1, 2]


def test_labels_are_given_beside_as_a_list_or_a_file(tmp_path):
    assert labels_of(open_labelled(stack(3), [SPEC], labels=[2, 0, 1])) == [2, 0, 1]
    for name, text in (("a.txt", "2\n0\n1\n"), ("a.json", "[2, 0, 1]"), ("a.csv", "2\n0\n\n1")):
        (tmp_path / name).write_text(text)
        assert list(read_labels(tmp_path / name)) == [2, 0, 1]
    np.save(tmp_path / "a.npy", np.array([2, 0, 1]))
    assert list(read_labels(str(tmp_path / "a.npy"))) == [2, 0, 1]
    (tmp_path / "words.txt").write_text("cat\ndog\n")
    assert read_labels(tmp_path / "words.txt") == ["cat", "dog"]


@pytest.mark.parametrize("count", [2, 4])
def test_another_number_of_labels_is_refused(count):
    with pytest.raises(DataError, match=f"{count} labels"):
        open_labelled(stack(3), [SPEC], labels=list(range(count)))


def test_bad_labels_get_one_sentence(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"a": 1}))
    with pytest.raises(DataError, match="holds no list of labels"):
        read_labels(tmp_path / "a.json")
    (tmp_path / "a.bin").write_bytes(b"12")
    with pytest.raises(DataError, match=r"\.npy, \.json, \.txt and \.csv"):
        read_labels(tmp_path / "a.bin")
    with pytest.raises(DataError, match="labels are a list, an array or a file, not a int"):
        read_labels(3)
    with pytest.raises(DataError, match="cannot read the labels"):
        read_labels(tmp_path / "none.txt")


def test_images_in_one_folder_for_each_class_have_its_number(tmp_path):
    for name, count in (("cat", 1), ("ant", 3)):
        (tmp_path / name).mkdir()
        for number in range(count):
            gray = 100 * (name == "cat") + number
            Image.new("L", (2, 2), gray).save(tmp_path / name / f"{number}.png")
    spec = InputSpec("x", np.dtype("uint8"), (1, 1, 2, 2))
    samples = open_labelled(tmp_path, [spec])
    found = [(int(sample["label"]), int(sample["x"][0, 0, 0, 0])) for sample in samples]
    assert sorted(found) == [(0, 0), (0, 1), (0, 2), (1, 100)]


def test_what_does_not_fit_in_memory_is_the_same_from_disk():
    given = {"x": stack(5), "label": np.arange(5)}
    kept, spilled = (open_labelled(given, [SPEC], memory_budget=b) for b in (1 << 20, 16))
    for one, other in zip(kept, spilled, strict=True):
        np.testing.assert_array_equal(one["x"], other["x"])
        assert one["label"] == other["label"]


def test_names_of_arrays_survive_the_disk():
    store = ArrayStore(memory_budget=0)
    store.append({"a/b:0": np.ones(1), "c": np.zeros((2, 2), np.float16)})
    assert list(store[0]) == ["a/b:0", "c"]
    assert store[0]["c"].dtype == np.float16


def test_a_sample_that_does_not_fit_the_model_is_refused():
    with pytest.raises(DataError, match="sample 0 names 'y', which is no input of the model"):
        open_labelled([{"y": stack(1), "label": 0}], [SPEC])


def test_data_is_told_apart_by_its_bytes_or_files(tmp_path):
    one, same, other = stack(3), stack(3), stack(3) + 1
    assert fingerprint_data(one) == fingerprint_data(same) != fingerprint_data(other)
    assert fingerprint_data([{"x": one, "label": 1}]) != fingerprint_data([{"x": one, "label": 2}])
    assert fingerprint_data(iter([one])) is None
    np.save(tmp_path / "a.npy", one)
    before = fingerprint_data(tmp_path)
    np.save(tmp_path / "b.npy", other)
    assert fingerprint_data(tmp_path) != before
