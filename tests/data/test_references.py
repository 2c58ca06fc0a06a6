import pickle

import numpy as np
import pytest
from PIL import Image
from support.elsewhere import Elsewhere

import bitwright
from bitwright.data import InputSpec, open_data, read_samples, refer_to
from bitwright.data.holdout import HoldoutSplit

SPEC = InputSpec("image", np.dtype("float32"), ("n", 3, 8, 8))


@pytest.fixture
def images(tmp_path):
    rng = np.random.default_rng(0)
    for number in range(18):
        pixels = rng.integers(0, 256, (8, 8, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number:02}.png")
    return tmp_path


@pytest.fixture
def stack(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(1).random((18, 3, 8, 8), np.float32))
    return tmp_path / "x.npy"


@pytest.mark.parametrize("kind", ["images", "stack"])
@pytest.mark.parametrize("options", [{}, {"limit": 10}, {"channels_last": ("image",)}])
def test_what_is_referred_to_is_what_is_read(request, kind, options):
    path = request.getfixturevalue(kind)
    references = refer_to(path, [SPEC], **options)
    there = pickle.loads(pickle.dumps(list(references)))
    samples = list(open_data(path, [SPEC], limit=options.get("limit")))
    assert len(references) == len(samples) == len(there)
    for one, other in zip(read_samples(reversed(there)), reversed(samples), strict=True):
        wanted = other["image"]
        if "channels_last" in options:
            wanted = wanted.transpose(0, 2, 3, 1)
        np.testing.assert_array_equal(one["image"], wanted)


def test_what_must_be_read_in_order_is_not_referred_to(tmp_path):
    np.savez(tmp_path / "x.npz", image=np.zeros((3, 3, 8, 8), np.float32))
    assert refer_to(tmp_path / "x.npz", [SPEC]) is None
    assert refer_to(np.zeros((3, 3, 8, 8), np.float32), [SPEC]) is None
    np.save(tmp_path / "x.npy", np.zeros((3, 3, 8, 8), np.float32))
    assert refer_to(tmp_path / "x.npy", [SPEC], transform=lambda x: x) is None


def test_a_holdout_of_references_is_that_of_samples(images):
    references = HoldoutSplit(refer_to(images, [SPEC]))
    samples = HoldoutSplit(open_data(images, [SPEC]))
    seen, wanted = list(read_samples(references)), list(samples)
    assert references.count == samples.count and references.len_hint == samples.len_hint
    assert references.description == samples.description
    for one, other in zip(
        [*seen, *references.holdout, *references.first],
        [*wanted, *samples.holdout, *samples.first],
        strict=True,
    ):
        np.testing.assert_array_equal(one["image"], other["image"])


@pytest.mark.slow
def test_workers_that_see_the_files_read_them(tmp_path, monkeypatch):
    demo = bitwright.load_demo()
    path = tmp_path / "digits.npy"
    np.save(path, demo.calibration[:20])
    here = bitwright.quantize(demo.model_path, data=path, recipe="int8")
    for shared in (True, False):
        engine = Elsewhere(shared_storage=shared)
        there = bitwright.quantize(demo.model_path, data=path, recipe="int8", engine=engine)
        assert engine.asked == [str(path)]
        assert engine.sent_samples == (0 if shared else 18)
        assert there.plan == here.plan and there.outputs == here.outputs
        compared = bitwright.compare(demo.model_path, here.model, data=path, engine=engine)
        assert (
            compared.to_dict()
            == bitwright.compare(demo.model_path, here.model, data=path).to_dict()
        )
