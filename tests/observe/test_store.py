import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support.models import make_cnn, make_samples

from bitwright.errors import DataError, OutputError
from bitwright.numerics.positions import PositionGrid
from bitwright.observe import KeptObservations, TensorSketch, load_sketches, observe, save_sketches

any_batch = hnp.arrays(np.float32, st.integers(0, 9), elements=st.floats(width=32))


@pytest.fixture
def sketches():
    rng = np.random.default_rng(0)
    channels = TensorSketch.empty(channel_axis=1)
    channels.update(rng.normal(size=(2, 3, 4)).astype(np.float32))
    voted = TensorSketch.empty(
        histogram=False, grids=[PositionGrid(-127, 127, True), PositionGrid(0, 255, False)]
    )
    for size in (1, 1, 20):
        voted.update(size * rng.normal(size=99).astype(np.float32))
    return {
        "votes": voted,
        "no votes": TensorSketch.empty(grids=[PositionGrid(0, 255, False)]),
        "x": TensorSketch.of(rng.normal(size=999), [np.nan, np.inf]),
        "layer/é:0": channels,
        "extremes": TensorSketch.of([-1.0, 2.0], histogram=False),
        "nothing": TensorSketch.empty(),
    }


def test_the_same_sketches_are_the_same_bytes(tmp_path, sketches):
    written = set()
    for _ in range(8):
        save_sketches(tmp_path / "s", sketches, fingerprint="m")
        written.add((tmp_path / "s").read_bytes())
    assert len(written) == 1


def test_what_is_saved_comes_back(tmp_path, sketches):
    save_sketches(tmp_path / "s", sketches, fingerprint="m")
    assert load_sketches(tmp_path / "s", fingerprint="m") == sketches
    assert load_sketches(tmp_path / "s") == sketches
    assert [p.name for p in tmp_path.iterdir()] == ["s"]


@given(arrays=st.lists(any_batch, max_size=3))
@settings(deadline=None, max_examples=20)
def test_any_sketch_comes_back(tmp_path_factory, arrays):
    path = tmp_path_factory.mktemp("store") / "s"
    sketch = TensorSketch.of(*arrays)
    save_sketches(path, {"x": sketch}, fingerprint="")
    assert load_sketches(path)["x"] == sketch


def test_another_fingerprint_is_refused(tmp_path, sketches):
    save_sketches(tmp_path / "s", sketches, fingerprint="model A")
    with pytest.raises(DataError, match="another model"):
        load_sketches(tmp_path / "s", fingerprint="model B")


@pytest.mark.parametrize("keep", [0.0, 0.02, 0.5, 0.99])
def test_a_cut_off_file_is_refused(tmp_path, sketches, keep):
    path = tmp_path / "s"
    save_sketches(path, sketches, fingerprint="m")
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(DataError, match=r"damaged or cut off"):
        load_sketches(path)


def test_other_files_are_refused(tmp_path):
    from safetensors.numpy import save_file

    save_file({"w": np.zeros(3, np.float32)}, tmp_path / "weights.safetensors")
    with pytest.raises(DataError, match="something else than sketches"):
        load_sketches(tmp_path / "weights.safetensors")
    with pytest.raises(DataError, match="cannot read"):
        load_sketches(tmp_path / "missing")


def test_counts_that_do_not_add_up_are_refused(tmp_path, sketches):
    path = tmp_path / "s"
    save_sketches(path, {"x": TensorSketch.of([1.0, 2.0])}, fingerprint="m")
    content = path.read_bytes()
    path.write_bytes(content.replace(rb"\"count\":2", rb"\"count\":9"))
    with pytest.raises(DataError, match="contradicts itself"):
        load_sketches(path)


@pytest.mark.parametrize("hole", [0.0, np.nan])
def test_a_histogram_of_a_part_of_the_values_comes_back(hole, tmp_path):
    values = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    values[::3] += hole
    sketch = TensorSketch.empty(most_counted=64)
    sketch.update(values)
    save_sketches(tmp_path / "s", {"x": sketch}, fingerprint="m")
    assert load_sketches(tmp_path / "s") == {"x": sketch}


def test_a_missing_folder_is_one_sentence(tmp_path, sketches):
    with pytest.raises(OutputError, match="cannot write"):
        save_sketches(tmp_path / "no" / "s", sketches, fingerprint="m")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, sketches, monkeypatch):
    path = tmp_path / "s"
    save_sketches(path, {}, fingerprint="old")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="No space left"):
        save_sketches(path, sketches, fingerprint="new")
    assert load_sketches(path, fingerprint="old") == {}
    assert [p.name for p in tmp_path.iterdir()] == ["s"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with a name here")
def test_a_pipe_is_neither_read_nor_replaced(tmp_path, sketches):
    os.mkfifo(tmp_path / "s")
    with pytest.raises(DataError, match="is a pipe or a device"):
        load_sketches(tmp_path / "s")
    with pytest.raises(OutputError, match="is a pipe or a device"):
        save_sketches(tmp_path / "s", sketches, fingerprint="m")
    assert (tmp_path / "s").is_fifo()


OPTIONS = {
    "means": {"x": 1},
    "per_channel": {"x": 1},
    "per_batch": {"x": [PositionGrid(-127, 127, True)]},
    "progress": False,
}


def test_a_part_comes_back_to_the_bit_with_what_its_sums_lost(tmp_path):
    model = make_cnn()
    name = model.graph.input[0].name
    options = {
        key: {name: value["x"]} if isinstance(value, dict) else value
        for key, value in OPTIONS.items()
    }
    samples = make_samples(model, 9)
    parts = [observe(model, [name], samples[i : i + 3], **options) for i in range(0, 9, 3)]
    kept = KeptObservations(tmp_path, "this")
    for number, part in enumerate(parts):
        kept.put(number, part)
    again = [kept.get(number) for number in range(3)]
    assert again == parts
    merged, whole = again[0] | again[1] | again[2], observe(model, [name], samples, **options)
    assert merged == whole
    for one, other in zip(again, parts, strict=True):
        np.testing.assert_array_equal(one.sketches[name]._rest, other.sketches[name]._rest)


def test_parts_of_something_else_are_not_there_and_damaged_ones_are_told(tmp_path):
    model = make_cnn()
    name = model.graph.input[0].name
    kept = KeptObservations(tmp_path, "this")
    kept.put(0, observe(model, [name], make_samples(model, 2), progress=False))
    assert 0 in kept and 0 not in KeptObservations(tmp_path, "that") and 1 not in kept
    next(tmp_path.rglob("*.safetensors")).write_bytes(b"x")
    with pytest.raises(DataError, match="is damaged; delete it to do that part again"):
        kept.get(0)
