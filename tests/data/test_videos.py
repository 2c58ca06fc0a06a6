import sys

import numpy as np
import pytest

from bitwright.data import InputSpec, open_data
from bitwright.errors import DataError, MissingPackageError

IMAGE = InputSpec("x", np.dtype("float32"), ("n", 3, 16, 16))


def save_video(path, frames, per_second):
    """Write frames of one gray each, brighter and brighter."""
    av = pytest.importorskip("av")
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=per_second)
        stream.width = stream.height = 64
        stream.pix_fmt = "yuv420p"
        for number in range(frames):
            pixels = np.full((64, 64, 3), 255 * number // frames, np.uint8)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def test_a_video_gives_one_frame_of_each_second(tmp_path):
    save_video(tmp_path / "film.mp4", frames=30, per_second=10)
    samples = open_data(tmp_path / "film.mp4", [IMAGE])
    means = [float(sample["x"].mean()) for sample in samples]
    np.testing.assert_allclose(means, [0, 1 / 3, 2 / 3], atol=0.03)
    assert len(list(open_data(tmp_path, [IMAGE], limit=2))) == 2


def test_a_damaged_video_is_one_sentence(tmp_path):
    pytest.importorskip("av")
    (tmp_path / "film.mp4").write_bytes(b"no video at all")
    with pytest.raises(DataError, match="cannot be read"):
        list(open_data(tmp_path / "film.mp4", [IMAGE]))


def test_without_pyav_the_package_to_install_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    (tmp_path / "film.mp4").write_bytes(b"")
    with pytest.raises(MissingPackageError, match=r"pip install 'bitwright\[video\]'"):
        list(open_data(tmp_path / "film.mp4", [IMAGE]))


def test_a_fixed_batch_takes_no_video(tmp_path):
    (tmp_path / "film.mp4").write_bytes(b"")
    spec = InputSpec("x", np.dtype("float32"), (4, 3, 16, 16))
    with pytest.raises(DataError, match="takes 4 images at a time"):
        list(open_data(tmp_path / "film.mp4", [spec]))
