import numpy as np
import pytest
from support.models import make_cnn, make_samples

from bitwright.errors import DataError
from bitwright.numerics.positions import PositionGrid
from bitwright.observe import KeptObservations, observe

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
    with pytest.raises(DataError, match="is damaged; delete its folder"):
        kept.get(0)
