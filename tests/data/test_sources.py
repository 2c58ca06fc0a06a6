from __future__ import annotations

import sys

import numpy as np
import pytest
from onnxruntime.quantization import CalibrationDataReader

from bitwright.data import (
    InputSpec,
    RandomData,
    Samples,
    ShapedData,
    TextData,
    cache_samples,
    channels_first_specs,
    open_data,
    to_channels_last,
)
from bitwright.errors import DataError

F32 = np.dtype("float32")
X = InputSpec("x", F32, ("batch", 2))
Y = InputSpec("y", np.dtype("int64"), ("batch",))


def x(value=0.0, batch=1):
    return np.full((batch, 2), value, np.float32)


def values(samples):
    return [float(sample["x"].flat[0]) for sample in samples]


class Reader(CalibrationDataReader):
    def __init__(self, count, end=None):
        self.given, self.count, self.end = 0, count, end

    def get_next(self):
        if self.given == self.count:
            return self.end
        self.given += 1
        return {"x": x(self.given)}


class Tensor:
    """What a torch tensor lets itself be known by; numpy() refuses as one with gradients does."""

    def __init__(self, array, detached=False):
        self.array, self.detached = array, detached
        self.shape = array.shape

    def detach(self):
        return Tensor(self.array, detached=True)

    def cpu(self):
        return self

    def numpy(self):
        if not self.detached:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad.")
        return self.array


class BFloat16Tensor(Tensor):
    def detach(self):
        return self

    def numpy(self):
        raise TypeError("Got unsupported ScalarType BFloat16")

    def float(self):
        return Tensor(self.array, detached=True)


class Loader:
    """A torch DataLoader by its attributes."""

    def __init__(self, batches, length=True):
        self.dataset, self.batch_size, self.batches = object(), 2, batches
        self.length, self.passes = length, 0

    def __iter__(self):
        self.passes += 1
        return iter(self.batches)

    def __len__(self):
        if not self.length:
            raise TypeError("IterableDataset has no len()")
        return len(self.batches)


class Parts:
    """A part of a Hugging Face dataset by its attributes."""

    features = ("x",)


class Dataset:
    """A torch dataset: a length, and samples by number, which never end by themselves."""

    def __len__(self):
        return 3

    def __getitem__(self, number):
        return np.full(2, number, np.float32), "label"


def test_labels_beside_the_inputs_are_left_out():
    given = [{"x": x(1), "label": 3}, {"x": x(2), "label": 4}]
    assert [list(sample) for sample in open_data(given, [X])] == [["x"], ["x"]]
    assert values(open_data([(x(1), 3), (x(2), 4)], [X])) == [1, 2]
    assert values(open_data([({"x": x(5)}, 3)], [X])) == [5]
    stacked = {"x": np.zeros((3, 2), np.float32), "label": np.arange(5)}
    assert values(open_data(stacked, [X])) == [0, 0, 0]


def test_a_dataset_is_read_to_its_length_and_gets_the_batch_dimension():
    samples = open_data(Dataset(), [X])
    assert (values(samples), samples.len_hint) == ([0, 1, 2], 3)
    assert next(iter(samples))["x"].shape == (1, 2)
    rows = [{"x": [1.0, 2.0], "label": 0}]  # lists, as Hugging Face's datasets give them
    assert values(open_data(rows, [X])) == [1]


def test_a_function_is_given_each_item():
    assert values(open_data(Dataset(), [X], transform=lambda pair: -pair[0])) == [0, -1, -2]
    stack = np.ones((2, 2), np.float32)
    assert values(open_data(stack, [X], transform=lambda array: 5 * array)) == [5, 5]


def test_a_list_of_dicts_can_be_read_twice():
    samples = open_data([{"x": x(1)}, {"x": x(2)}], [X])
    assert isinstance(samples, Samples)
    assert (samples.len_hint, samples.repeatable) == (2, True)
    assert values(samples) == values(samples) == [1, 2]


def test_a_generator_is_read_once_and_lazily():
    given = []

    def generate():
        for number in range(5):
            given.append(number)
            yield {"x": x(number)}

    samples = open_data(generate(), [X])
    assert samples.len_hint is None
    stream = iter(samples)
    next(stream)
    assert given == [0]
    assert values(stream) == [1, 2, 3, 4]
    with pytest.raises(DataError, match="only once"):
        iter(samples)


def test_tuples_and_single_arrays_are_paired_with_the_inputs():
    pair = (x(3), np.zeros(1, np.int64))
    assert values(open_data([pair], [X, Y])) == [3]
    assert values(open_data([list(pair)], [X, Y])) == [3]
    assert values(open_data([x(4), x(5)], [X])) == [4, 5]
    assert values(open_data(((x(6),), (x(7),)), [X])) == [6, 7]


def test_a_stacked_array_or_dict_of_arrays_is_taken_apart():
    stack = np.arange(6, dtype=np.float32).reshape(3, 2)
    samples = open_data(stack, [X])
    assert samples.len_hint == 3
    assert values(samples) == values(samples) == [0, 2, 4]
    both = open_data({"x": stack, "y": np.arange(3)}, [X, Y], limit=2)
    assert [int(sample["y"][0]) for sample in both] == [0, 1]
    assert values(open_data(Tensor(stack), [X])) == [0, 2, 4]


@pytest.mark.parametrize("end", [None, {}, False])
def test_a_calibration_data_reader_is_read_to_its_end(end):
    samples = open_data(Reader(3, end), [X])
    assert samples.len_hint is None
    assert values(samples) == [1, 2, 3]


def test_a_reader_is_not_drained_past_the_limit():
    reader = Reader(10)
    samples = open_data(reader, [X], limit=4)
    assert values(samples) == [1, 2, 3, 4]
    assert reader.given == 4


def test_a_reader_that_ends_with_stop_iteration_ends():
    class Raising:
        def __init__(self):
            self.stream = iter([{"x": x(1)}])

        def get_next(self):
            return next(self.stream)

    assert values(open_data(Raising(), [X])) == [1]


def test_get_next_wins_over_iter():
    class Both(Reader):
        def __iter__(self):
            raise AssertionError("not this way")

    assert values(open_data(Both(2), [X])) == [1, 2]


def test_an_exhausted_reader_is_reported():
    reader = Reader(2)
    list(open_data(reader, [X]))
    with pytest.raises(DataError, match=r"Reader \(get_next\)\) has no samples; .*fresh"):
        list(open_data(reader, [X]))


def test_a_loader_gives_its_leading_elements_and_keeps_labels_out():
    loaded_before = "torch" in sys.modules  # by another test
    labels = Tensor(np.zeros(2, np.int64))
    loader = Loader([(Tensor(x(1, 2)), labels), [Tensor(x(2, 2)), labels]])
    samples = open_data(loader, [X])
    assert (samples.len_hint, samples.description) == (2, "Loader of batches")
    assert loader.passes == 0
    assert values(samples) == [1, 2]
    assert values(open_data(Loader([Tensor(x(5, 2))]), [X])) == [5]
    assert values(open_data(Loader([{"x": Tensor(x(6)), "label": labels}]), [X])) == [6]
    assert values(open_data(Loader([BFloat16Tensor(x(7))]), [X])) == [7]
    assert ("torch" in sys.modules) == loaded_before


def test_a_loader_over_a_stream_has_no_length():
    assert open_data(Loader([Tensor(x())], length=False), [X]).len_hint is None


def test_a_loader_with_a_misspelt_name_is_still_refused():
    with pytest.raises(DataError, match="no input of the model"):
        list(open_data(Loader([{"X": Tensor(x())}]), [X]))


def test_samples_can_be_opened_again():
    first = open_data([{"x": x(1)}, {"x": x(2)}], [X])
    assert values(open_data(first, [X], limit=1)) == [1]
    once = open_data(Reader(1), [X])
    assert not open_data(once, [X]).repeatable


def test_a_bad_sample_is_found_when_its_turn_comes():
    stream = iter(open_data([{"x": x(1)}, {"x": x(np.nan)}], [X]))
    next(stream)
    with pytest.raises(DataError, match="sample 1: input 'x' holds 2 NaN"):
        next(stream)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (None, "no calibration data; give"),
        ([], "empty; give at least one sample"),
        (iter([]), "has no samples"),
        (np.zeros((0, 2), np.float32), "empty"),
        (42, "cannot be read from a int; give"),
        ("no/such/folder", "no calibration data at 'no/such/folder'; give the path"),
        ([(1.0, 2.0)], "sample 0 is a tuple of 2 values, but the model takes 1 (x)"),
        ({"x": [[1.0], [1.0, 2.0]]}, "the data for 'x' cannot be read as an array"),
        (["image.png"], "there is no file 'image.png'; check the list of paths"),
        ({"train": Parts(), "test": Parts()}, "has parts (train, test); give one of them"),
        (b"bytes", "sample 0 is a int"),
    ],
)
def test_what_is_no_data_is_refused_in_a_sentence(source, words):
    with pytest.raises(DataError) as caught:
        list(open_data(source, [X]))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_array_cannot_feed_two_inputs():
    with pytest.raises(DataError, match="sample 0 is one array, but the model has 2 inputs"):
        list(open_data([x()], [X, Y]))


@pytest.mark.parametrize("limit", [0, -3])
def test_a_limit_below_one_is_refused(limit):
    with pytest.raises(DataError, match="at least 1"):
        open_data([{"x": x()}], [X], limit=limit)


def test_preprocessing_without_images_is_refused():
    with pytest.raises(DataError, match="sample 0 is no image"):
        list(open_data([{"x": x()}], [X], transform="unit"))
    with pytest.raises(DataError, match="not a folder of images"):
        open_data(x(), [X], transform="unit")
    with pytest.raises(DataError, match="RandomData makes its own arrays"):
        open_data(RandomData(), [X], transform="unit")


def test_a_loader_that_shuffles_can_be_read_once_only():
    class RandomSampler:
        pass

    class SequentialSampler:
        pass

    class Loader:
        dataset, batch_size = (), 1

        def __init__(self, sampler):
            self.sampler = sampler

        def __iter__(self):
            return iter([np.zeros((1, 2), np.float32)] * 3)

    spec = InputSpec("x", np.dtype("float32"), (1, 2))
    assert open_data(Loader(SequentialSampler()), [spec]).repeatable
    assert not open_data(Loader(RandomSampler()), [spec]).repeatable


SPEC = InputSpec("x", np.dtype("float32"), (1, 4))


def samples(count=3):
    return [{"x": np.full((1, 4), i, np.float32)} for i in range(count)]


def test_what_can_be_read_again_is_not_copied():
    data = open_data(samples(), [SPEC])
    assert cache_samples(data, max_bytes=1) is data


def test_a_generator_can_be_read_twice_afterwards():
    kept = cache_samples(open_data(iter(samples()), [SPEC]), max_bytes=48)
    for _ in range(2):
        assert [float(sample["x"][0, 0]) for sample in kept] == [0.0, 1.0, 2.0]
    assert kept.repeatable and kept.len_hint == 3


def test_a_buffer_that_is_filled_again_is_copied():
    def reuse():
        buffer = np.zeros((1, 4), np.float32)
        for number in range(3):
            buffer[:] = number
            yield {"x": buffer}

    kept = cache_samples(open_data(reuse(), [SPEC]), max_bytes=1000)
    assert [float(sample["x"][0, 0]) for sample in kept] == [0.0, 1.0, 2.0]


def test_too_much_is_refused_with_what_to_do():
    with pytest.raises(DataError, match="47 bytes; give a list or files"):
        cache_samples(open_data(iter(samples()), [SPEC]), max_bytes=47)


IMAGE = InputSpec("image", np.dtype("float32"), ("n", 3, 8, 9))
SIZE = InputSpec("size", np.dtype("int64"), (2,))
SAMPLE = {
    "image": np.arange(216, dtype=np.float32).reshape(1, 3, 8, 9),
    "size": np.array([8, 9]),
}


def test_only_the_transposed_inputs_change():
    transposed = to_channels_last(open_data([SAMPLE] * 3, [IMAGE, SIZE]), {"image"})
    samples = list(transposed)
    np.testing.assert_array_equal(samples[0]["image"], SAMPLE["image"].transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(samples[0]["size"], SAMPLE["size"])
    assert samples[0]["image"].flags.c_contiguous
    assert (len(samples), transposed.len_hint, transposed.description) == (3, 3, "list of samples")
    assert transposed.specs[0].shape == ("n", 8, 9, 3)
    assert channels_first_specs(transposed.specs, {"image"}) == (IMAGE, SIZE)


def test_it_can_be_read_as_often_as_the_data():
    again = to_channels_last(open_data([SAMPLE], [IMAGE, SIZE]), {"image"})
    assert len(list(again)) == len(list(again)) == 1
    once = to_channels_last(open_data(iter([SAMPLE]), [IMAGE, SIZE]), {"image"})
    assert (once.repeatable, len(list(once))) == (False, 1)
    with pytest.raises(DataError, match="only once"):
        list(once)


def test_data_in_the_new_layout_is_refused():
    sample = SAMPLE | {"image": SAMPLE["image"].transpose(0, 2, 3, 1)}
    with pytest.raises(
        DataError, match=r"looks like NHWC; transpose it with array.transpose\(0, 3, 1, 2\)"
    ):
        list(to_channels_last(open_data([sample], [IMAGE, SIZE]), {"image"}))


def test_nothing_transposed_is_the_same_stream():
    samples = open_data([SAMPLE], [IMAGE, SIZE])
    assert to_channels_last(samples, set()) is samples


IDS = InputSpec("input_ids", np.dtype("int64"), ("batch", "length"))


class Letters:
    def encode(self, text):
        return [ord(letter) for letter in text]


def test_requests_and_arrays_become_samples(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("abcdefgh")
    sources = {
        "text": TextData(text=text, tokenizer=Letters(), length=4),
        "random": RandomData(count=2, shapes={"length": 4}),
        "array": np.zeros((2, 4), np.int64),
    }
    for source in sources.values():
        shapes = [sample["input_ids"].shape for sample in open_data(source, [IDS])]
        assert shapes == [(1, 4), (1, 4)]


def test_shapes_beside_data_fix_what_the_model_leaves_open():
    array = np.zeros((2, 4), np.int64)
    given = ShapedData(data=array, shapes={"length": 4})
    assert len(list(open_data(given, [IDS]))) == 2
    with pytest.raises(DataError, match="make dimension 1 5 instead of 4"):
        list(open_data(ShapedData(data=array, shapes={"length": 5}), [IDS]))
