"""Readers of Quark give samples that fit the model, and give them again."""

import numpy as np
from support.models import build, make_mlp, node

from bitwright.compat.quark import CachedDataReader, PathDataReader, RandomDataReader


def test_random_samples_have_the_shapes_and_ranges_asked_for():
    model = build([node("Relu", ["x"], ["y"], name="relu")], {"x": ["n", 4]}, {"y": ["n", 4]})
    reader = RandomDataReader(model, {"x": [2, 4]}, {"x": [-3, -2]})
    (sample,) = list(reader)
    assert sample["x"].shape == (2, 4) and sample["x"].max() < -1.9
    assert reader.get_next() is None
    reader.reset_iter()
    assert reader.get_next() is not None
    assert next(RandomDataReader(model, [3, 4]))["x"].shape == (3, 4)


def test_samples_of_another_reader_are_kept():
    reader = CachedDataReader(iter([{"x": np.full(1, value)} for value in range(5)]), data_size=3)
    assert len(reader) == 3
    for _ in range(2):
        assert [int(sample["x"][0]) for sample in reader] == [0, 1, 2]
        reader.reset_iter()


def test_samples_of_a_folder(tmp_path):
    model = make_mlp(width=32)
    spec = model.graph.input[0]
    width = spec.type.tensor_type.shape.dim[-1].dim_value
    np.save(tmp_path / "a.npy", np.ones((1, width), np.float32))
    (sample,) = list(PathDataReader(model, tmp_path))
    assert sample[spec.name].shape == (1, width)
