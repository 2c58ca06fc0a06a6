"""What tests of several tools start from."""

import onnx
import pytest
from support.models import make_cnn, make_samples


@pytest.fixture
def paths(tmp_path):
    """A float model, where the quantized one goes, and data: what the examples start from."""
    model = make_cnn()
    onnx.save(model, tmp_path / "float.onnx")
    return str(tmp_path / "float.onnx"), str(tmp_path / "quantized.onnx"), make_samples(model)


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="fine-tuning needs torch")
