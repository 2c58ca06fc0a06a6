"""Big tensors of a file stay on disk; what is loaded, run and written is the same as ever."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from support.models import build, constants_of, make_samples, node, normal, run

from bitwright import graph
from bitwright.graph import extents
from bitwright.graph.extents import field_header
from bitwright.run import Session


@pytest.fixture(autouse=True)
def lower_limits(monkeypatch):
    """Treat small files as big ones."""
    if extents.os.name != "posix":
        pytest.skip("files are read in parts where an open file can be replaced")
    monkeypatch.setattr(extents, "SMALLEST_FILE", 0)
    monkeypatch.setattr(extents, "SMALLEST_TENSOR", 256)
    monkeypatch.setattr(graph.model_bytes, "SMALLEST_TENSOR", 256)


def make_model(**constants):
    constants = {"w": normal(16, 32), "v": normal(32, 8, seed=1), **constants}
    nodes = [
        node("MatMul", ["x", "w"], ["h"], name="a"),
        node("MatMul", ["h", "v"], ["y"], name="b"),
    ]
    return build(nodes, {"x": [2, 16]}, {"y": [2, 8]}, constants)


def saved(folder, model):
    path = folder / "model.onnx"
    onnx.save(model, path)
    return path


def kept_on_disk(model):
    return {
        name
        for name, value in model.graph.initializers.items()
        if isinstance(value.const_value, ir.LazyTensor)
    }


def test_big_initializers_are_read_when_asked_for_and_not_kept(tmp_path):
    model = make_model()
    loaded = graph.load_model(saved(tmp_path, model))
    assert kept_on_disk(loaded) == {"w", "v"}
    for name, array in constants_of(model).items():
        tensor = loaded.graph.initializers[name].const_value
        np.testing.assert_array_equal(tensor.numpy(), array)
        assert tensor.nbytes == array.nbytes
        assert tensor.numpy() is not tensor.numpy()


def test_the_message_is_the_same_but_for_the_data(tmp_path):
    model = make_model()
    message, found = extents.split_file(saved(tmp_path, model))
    light = onnx.ModelProto.FromString(message)
    assert set(found) == {"w", "v"}
    for tensor in model.graph.initializer:
        tensor.ClearField("raw_data")
    assert light == model


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int8, np.int64, np.bool_])
def test_every_type_of_whole_bytes(tmp_path, dtype):
    array = (normal(40, 30) * 50).astype(dtype)
    model = make_model()
    model.graph.initializer.append(onnx.numpy_helper.from_array(array, "extra"))
    loaded = graph.load_model(saved(tmp_path, model))
    assert "extra" in kept_on_disk(loaded)
    np.testing.assert_array_equal(loaded.graph.initializers["extra"].const_value.numpy(), array)


def test_packed_dims_and_typed_data(tmp_path):
    """Data in float_data stays in the message; dimensions may be packed or not."""
    model = make_model()
    typed = onnx.helper.make_tensor("typed", onnx.TensorProto.FLOAT, [100], np.arange(100.0))
    model.graph.initializer.append(typed)
    loaded = graph.load_model(saved(tmp_path, model))
    assert "typed" not in kept_on_disk(loaded)
    np.testing.assert_array_equal(
        loaded.graph.initializers["typed"].const_value.numpy(), range(100)
    )


def test_the_file_may_go_while_the_model_is_in_use(tmp_path):
    model = make_model()
    path = saved(tmp_path, model)
    loaded = graph.load_model(path)
    path.unlink()
    array = loaded.graph.initializers["w"].const_value.numpy()
    np.testing.assert_array_equal(array, constants_of(model)["w"])


def test_it_runs_and_is_written_as_it_was(tmp_path, monkeypatch):
    model = make_model()
    samples = make_samples(model, 2)
    loaded = graph.load_model(saved(tmp_path, model))
    monkeypatch.setattr("bitwright.run.opening._SMALLEST_SHARED", 256)
    session = Session(loaded)
    wanted = run(model, samples)
    for sample, outputs in zip(samples, wanted, strict=True):
        np.testing.assert_array_equal(session.run(sample)["y"], outputs[0])
    graph.save_model(loaded, tmp_path / "again.onnx")
    again = onnx.load(tmp_path / "again.onnx")
    onnx.checker.check_model(again, full_check=True)
    assert again.graph.node == model.graph.node
    for name, array in constants_of(model).items():
        np.testing.assert_array_equal(constants_of(again)[name], array)


@pytest.mark.parametrize("cut", [1, 10, 300, 2000])
def test_a_file_that_is_cut_off_is_told_about_as_ever(tmp_path, cut):
    path = saved(tmp_path, make_model())
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(graph.loading.ModelError):
        graph.load_model(path)


def test_what_is_no_model_is_told_about_as_ever(tmp_path):
    path = tmp_path / "model.onnx"
    for text in (b"hello, world" * 100, bytes(1000), b"\xff" * 1000):
        path.write_bytes(text)
        with pytest.raises(graph.loading.ModelError, match=r"not an ONNX model|cut off"):
            graph.load_model(path)


def test_a_field_begins_with_its_number_and_length():
    assert field_header(9, 300) == bytes([9 * 8 + 2, 0xAC, 0x02])
