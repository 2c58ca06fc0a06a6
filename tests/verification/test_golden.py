"""A file says whether it still answers as where it was made."""

import base64
import json
import zlib

import numpy as np
import onnx
import pytest
from onnx.helper import set_model_props
from safetensors.numpy import load
from support.models import make_mlp, make_samples

import bitwright
from bitwright.cli import main
from bitwright.errors import ModelError, TargetError
from bitwright.support.store import to_bytes
from bitwright.verification.golden import GOLDEN, keep_golden


@pytest.fixture
def path(tmp_path):
    model = make_mlp()
    onnx.save(model, tmp_path / "m.onnx")
    assert keep_golden(tmp_path / "m.onnx", make_samples(model, 2)) == 2
    return tmp_path / "m.onnx"


def rewrite(path, change):
    """Change the stored arrays, and the facts beside them."""
    model = onnx.load(path)
    known = {entry.key: entry.value for entry in model.metadata_props}
    content = zlib.decompress(base64.b64decode(known[GOLDEN]))
    facts = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    text = base64.b64encode(zlib.compress(to_bytes(change(load(content)), facts))).decode()
    set_model_props(model, {**known, GOLDEN: text})
    onnx.save(model, path)


def scaled(factor):
    return lambda arrays: {n: a * np.float32(factor) if ">" in n else a for n, a in arrays.items()}


def test_the_same_file_is_the_same_here(path, capsys):
    assert bitwright.verify(path, "here").findings == ()
    assert main(["verify", str(path), "--here"]) == 0
    assert f"{path}: same on this machine" in capsys.readouterr().out


def test_one_flipped_weight_is_different(path, capsys):
    model = onnx.load(path)
    weight = next(one for one in model.graph.initializer if len(one.dims) == 2)
    array = onnx.numpy_helper.to_array(weight).copy()
    array.flat[0] *= -1
    weight.CopyFrom(onnx.numpy_helper.from_array(array, weight.name))
    onnx.save(model, path)
    found = bitwright.verify(path, "here")
    assert [one.node for one in found.errors] == ["", model.graph.output[0].name]
    assert "was changed after" in found.errors[0].message
    assert main(["verify", str(path), "--here"]) == 1
    assert "different on this machine" in capsys.readouterr().out


def test_last_bits_are_within_rounding_and_only_strict_fails(path, capsys):
    rewrite(path, scaled(1 + 3e-7))
    found = bitwright.verify(path, "here")
    assert found.ok and "differ as roundings do" in found.warnings[0].message
    assert main(["verify", str(path), "--here"]) == 0
    assert "within rounding" in capsys.readouterr().out
    assert main(["verify", str(path), "--here", "--strict"]) == 1


def test_other_answers_are_different_by_how_much(path):
    rewrite(path, scaled(2))
    (found,) = bitwright.verify(path, "here").errors
    assert found.values == {"difference": "50 %"} and found.consequence == "wrong"


def test_files_without_answers_and_damaged_ones_are_refused(path):
    with pytest.raises(ModelError, match="has no golden answers"):
        bitwright.verify(make_mlp(), "here")
    model = onnx.load(path)
    set_model_props(model, {GOLDEN: "AAAA"})
    with pytest.raises(ModelError, match="golden answers in the model are damaged"):
        bitwright.verify(model, "here")
    with pytest.raises(TargetError, match="providers run the golden answers"):
        bitwright.verify(path, providers=["CPUExecutionProvider"])


def test_what_does_not_fit_into_a_megabyte_is_left_out(path):
    sample = {"x": np.random.default_rng(0).random((300_000, 1), np.float32)}
    model = onnx.load(path)
    name, width = model.graph.input[0].name, model.graph.input[0].type.tensor_type.shape.dim[-1]
    big = {name: np.repeat(sample["x"], width.dim_value, 1)[:65536]}
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "n"
    onnx.save(model, path)
    assert keep_golden(path, [big]) == 0
