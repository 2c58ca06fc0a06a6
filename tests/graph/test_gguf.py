"""GGUF files: what is supported, and what is refused."""

import numpy as np
import pytest
from support.checkpoints import make_tensors, write_gguf

from bitwright.errors import MissingPackageError, ModelError
from bitwright.graph.gguf import GGUFFile


def test_rows_come_back_in_the_order_of_hugging_face(tmp_path):
    pytest.importorskip("gguf")
    tensors = make_tensors(layers=1)
    for architecture in ("llama", "qwen2"):
        file = GGUFFile(write_gguf(tmp_path / "a.gguf", tensors, architecture=architecture))
        for name, array in tensors.items():
            np.testing.assert_array_equal(file.read(name), array)
            assert file.shape(name) == array.shape and name in file
    assert file.architecture == "qwen2" and not file.gains_with_offset


def test_an_unknown_architecture_is_refused_with_those_that_are_known(tmp_path):
    pytest.importorskip("gguf")
    path = write_gguf(tmp_path / "a.gguf", make_tensors(layers=1), architecture="mamba")
    with pytest.raises(ModelError, match=r"architecture 'mamba'; those .* gemma2, .* llama, qwen2"):
        GGUFFile(path)


def test_an_unknown_type_of_tensor_is_refused(tmp_path, monkeypatch):
    gguf = pytest.importorskip("gguf")
    file = GGUFFile(write_gguf(tmp_path / "a.gguf", make_tensors(layers=1)))

    def refuse(data, kind):
        raise NotImplementedError

    monkeypatch.setattr(gguf, "dequantize", refuse)
    with pytest.raises(ModelError, match=r"'token_embd.weight' of .* has type F32"):
        file.read("token_embd.weight")


def test_what_is_no_such_file_is_refused(tmp_path):
    with pytest.raises(ModelError, match="there is no file"):
        GGUFFile(tmp_path / "none.gguf")
    pytest.importorskip("gguf")
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF and nothing else")
    with pytest.raises(ModelError, match="is no GGUF file, or a damaged one"):
        GGUFFile(path)


def test_without_the_package_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    path = tmp_path / "a.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(MissingPackageError, match=r"pip install 'bitwright\[gguf\]'"):
        GGUFFile(path)
