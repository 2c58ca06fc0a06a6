from __future__ import annotations

import subprocess
import sys
import textwrap

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from bitwright.errors import ModelError
from bitwright.graph import (
    file_size,
    infer_shapes,
    load_model,
    normalize,
    source_path,
    tensor_slots,
)
from bitwright.graph.cloning import to_message
from bitwright.graph.tensors import row_reader

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_a_proto_is_not_modified_by_what_we_do_to_the_model(builders):
    proto = builders.mlp()
    before = proto.SerializeToString(deterministic=True)
    model = load_model(proto)
    model.graph.initializers["w1"].name = "renamed"
    model.graph.inputs[0].dtype = ir.DataType.FLOAT16
    normalize(model)
    assert proto.SerializeToString(deterministic=True) == before


def test_an_ir_model_is_not_modified_and_its_data_is_not_copied(builders):
    theirs = ir.from_proto(builders.mlp())
    before = ir.to_proto(theirs).SerializeToString(deterministic=True)
    ours = load_model(theirs)
    ours.graph.initializers["w1"].name = "renamed"
    ours.graph.inputs[0].dtype = ir.DataType.FLOAT16
    ours.graph.node(0).name = "other"
    assert ir.to_proto(theirs).SerializeToString(deterministic=True) == before
    array = np.ones((4, 4), np.float32)
    theirs.graph.initializers["w1"].const_value = ir.tensor(array, name="w1")
    assert np.shares_memory(
        load_model(theirs).graph.initializers["w1"].const_value.numpy(),
        theirs.graph.initializers["w1"].const_value.numpy(),
    )


def test_an_unsorted_ir_model_is_sorted_in_our_copy_only(builders):
    proto = builders.mlp()
    nodes = list(proto.graph.node)[::-1]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    theirs = ir.from_proto(proto)
    ours = load_model(theirs)
    assert [node.name for node in ours.graph] == ["first", "bias", "act", "second"]
    assert [node.name for node in theirs.graph] == ["second", "act", "bias", "first"]


def test_a_path_keeps_external_data_lazy_and_remembers_where_it_came_from(builders, tmp_path):
    path = builders.save_external(builders.mlp(), tmp_path)
    model = load_model(path)
    assert isinstance(model.graph.initializers["w1"].const_value, ir.ExternalTensor)
    assert source_path(model) == path
    assert file_size(path) == file_size(model) == sum(f.stat().st_size for f in tmp_path.iterdir())
    expected = numpy_helper.to_array(builders.mlp().graph.initializer[0])
    np.testing.assert_array_equal(model.graph.initializers["w1"].const_value.numpy(), expected)


@linux_only
def test_a_3_gb_model_opens_in_well_under_200_mb(builders, tmp_path):
    rows, columns, layers = 16384, 4096, 12  # 12 x 256 MB
    size = rows * columns * 4
    proto = builders.build(
        [helper.make_node("Identity", ["w0"], ["y"])], [], [builders.info("y")], {}
    )
    for layer in range(layers):
        tensor = proto.graph.initializer.add(name=f"w{layer}", data_type=1, dims=[rows, columns])
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (
            ("location", "w.data"),
            ("offset", str(layer * size)),
            ("length", str(size)),
        ):
            tensor.external_data.add(key=key, value=value)
    path = tmp_path / "big.onnx"
    path.write_bytes(proto.SerializeToString())
    with (tmp_path / "w.data").open("wb") as file:
        file.truncate(layers * size)  # sparse: takes no disk
    script = textwrap.dedent(
        """
        import sys
        def peak_kb():  # of this process image; ru_maxrss would count the parent's
            status = open("/proc/self/status").read()
            return int(status.split("VmHWM:")[1].split()[0])
        from bitwright.graph import load_model, infer_shapes, check_model, clone_model, normalize
        imported = peak_kb()
        model = load_model(sys.argv[1])
        infer_shapes(model); check_model(model); clone_model(load_model(model)); normalize(model)
        peak = peak_kb()
        print((peak - imported) / 1024, peak / 1024)
        """
    )
    result = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True
    )
    grown, peak = map(float, result.stdout.split())
    assert grown < 50 and peak < 200, (grown, peak)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"this is not a model at all", "is not an ONNX model"),
        (b"\x89PNG\r\n\x1a\n" + bytes(200), "is not an ONNX model"),
        (b"\x08\x0a", "holds no graph"),
    ],
)
def test_a_file_that_is_no_model_is_refused_in_a_sentence(tmp_path, content, words):
    path = tmp_path / "bad.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=words) as caught:
        load_model(path)
    assert "bad.onnx" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("part", [0.2, 0.5, 0.9, 0.99])
def test_a_cut_off_file_is_refused(builders, tmp_path, part):
    data = builders.mlp().SerializeToString()
    path = tmp_path / "cut.onnx"
    path.write_bytes(data[: int(len(data) * part)])
    with pytest.raises(ModelError, match=r"cut\.onnx' is (cut off|not an ONNX)"):
        load_model(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(ModelError, match="there is no file"):
        load_model(tmp_path / "none.onnx")
    with pytest.raises(ModelError, match="is a folder"):
        load_model(tmp_path)
    with pytest.raises(ModelError, match="not list"):
        load_model([1, 2])


def test_a_model_without_opset_is_refused(builders):
    proto = builders.mlp()
    del proto.opset_import[:]
    with pytest.raises(ModelError, match="which opset"):
        load_model(proto)


def test_missing_and_short_external_data_name_the_tensor_and_the_file(builders, tmp_path):
    path = builders.save_external(builders.mlp(), tmp_path)
    data = tmp_path / "model.data"
    content = data.read_bytes()
    data.write_bytes(content[:-10])
    with pytest.raises(ModelError, match=r"'w2' needs bytes .* of 'model\.data'.*cut off"):
        load_model(path)
    data.unlink()
    with pytest.raises(
        ModelError, match=r"'w1' needs the data file 'model\.data', which is missing"
    ):
        load_model(path)


def test_external_data_given_without_a_folder_is_refused(builders, tmp_path):
    path = builders.save_external(builders.mlp(), tmp_path)
    with pytest.raises(ModelError, match="without its folder"):
        load_model(onnx.load(path, load_external_data=False))


@pytest.mark.parametrize("kind", ["absolute", "parent", "hidden parent", "symlink", "drive"])
def test_external_data_outside_the_folder_is_refused(builders, tmp_path, kind):
    folder = tmp_path / "inside"
    folder.mkdir()
    path = builders.save_external(builders.mlp(), folder)
    secret = tmp_path / "secret.data"
    secret.write_bytes((folder / "model.data").read_bytes())
    location = {
        "absolute": str(secret),
        "parent": "../secret.data",
        "hidden parent": "sub/../../secret.data",
        "symlink": "link.data",
        "drive": "C:\\secret.data",
    }[kind]
    if kind == "symlink":
        (folder / "link.data").symlink_to(secret)
    proto = onnx.load(path, load_external_data=False)
    for tensor in proto.graph.initializer:
        tensor.external_data[0].value = location
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ModelError, match="outside the model's folder") as error:
        load_model(path)
    assert ("links followed (cp -rL)" in str(error.value)) == (kind == "symlink")


def test_links_within_the_folder_are_read(builders, tmp_path):
    path = builders.save_external(builders.mlp(), tmp_path)
    weights = load_model(path).graph.initializers["w1"].const_value.numpy()
    (tmp_path / "model.data").rename(tmp_path / "real.data")
    (tmp_path / "model.data").symlink_to("real.data")
    assert np.array_equal(load_model(path).graph.initializers["w1"].const_value.numpy(), weights)
    (tmp_path / "model.data").unlink()
    (tmp_path / "model.data").hardlink_to(tmp_path / "real.data")
    again = load_model(path)
    assert np.array_equal(again.graph.initializers["w1"].const_value.numpy(), weights)
    (tmp_path / "real.data").write_bytes((tmp_path / "real.data").read_bytes()[:-1])
    with pytest.raises(ModelError, match="cut off"):
        load_model(path)


def make_snapshot(path, cache):
    """Move a model's folder into a download's cache, where its files are links to blobs."""
    blobs, snapshot = cache / "blobs", cache / "snapshots" / "1f2e" / "onnx"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted(path.parent.iterdir())):
        (blobs / f"hash{number}").write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(f"../../../blobs/hash{number}")
    return snapshot / path.name


def test_a_snapshot_of_a_download_is_read_through_its_links(builders, tmp_path):
    (tmp_path / "plain").mkdir()
    path = builders.save_external(builders.mlp(), tmp_path / "plain")
    weights = load_model(path).graph.initializers["w1"].const_value.numpy()
    linked = make_snapshot(path, tmp_path / "models--some--model")
    found = load_model(linked).graph.initializers["w1"].const_value
    assert np.array_equal(found.numpy(), weights)
    # Out of its own blobs no link is followed.
    other = tmp_path / "models--other" / "blobs"
    other.mkdir(parents=True)
    (other / "secret").write_bytes((linked.parent / "model.data").read_bytes())
    (linked.parent / "model.data").unlink()
    (linked.parent / "model.data").symlink_to(other / "secret")
    with pytest.raises(ModelError, match="outside the model's folder"):
        load_model(linked)
    (linked.parent / "model.data").unlink()
    (linked.parent / "model.data").symlink_to("../../../../models--other/blobs/secret")
    with pytest.raises(ModelError, match="outside the model's folder"):
        load_model(linked)


def test_sparse_initializers_are_refused(builders):
    proto = builders.mlp()
    sparse = proto.graph.sparse_initializer.add()
    sparse.values.name = "thin"
    with pytest.raises(ModelError, match="'thin' is stored as a sparse tensor"):
        load_model(proto)


@pytest.mark.parametrize("in_sequence", [True, False])
def test_a_map_is_refused_by_its_name_and_not_called_damaged(builders, in_sequence):
    proto = builders.mlp()
    value = proto.graph.output.add(name="probabilities")
    kind = value.type.sequence_type.elem_type if in_sequence else value.type
    kind.map_type.key_type = onnx.TensorProto.INT64
    kind.map_type.value_type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    with pytest.raises(ModelError, match=r"'probabilities' is a map.*zipmap"):
        load_model(proto)


def test_configurations_of_several_devices_are_kept_or_refused(builders):
    proto = builders.mlp()
    proto.ir_version = 11  # the first with configurations
    proto.configuration.add(name="two", num_devices=2)
    if hasattr(ir.Model, "device_configurations"):
        assert to_message(load_model(proto)).configuration[0].name == "two"
    else:
        with pytest.raises(ModelError, match=r"several devices .configuration 'two'.*one device"):
            load_model(proto)


def test_the_long_name_of_the_default_domain_is_understood(builders):
    proto = builders.mlp()
    proto.opset_import[0].domain = "ai.onnx"
    assert load_model(proto).graph.opset_imports == {"": 17}


def test_weights_in_bodies_and_constants_are_slots_too(builders):
    model = load_model(builders.branches())
    assert [slot.name for slot in tensor_slots(model)] == ["w"]


@pytest.mark.slow
def test_a_message_in_memory_may_be_above_what_a_file_holds(builders):
    proto = builders.mlp()
    size = 2**31 + 4
    large = proto.graph.initializer.add(name="large", data_type=onnx.TensorProto.FLOAT)
    large.dims.append(size // 4)
    large.raw_data = bytes(size)
    assert file_size(proto) == pytest.approx(size, rel=1e-3)


@pytest.mark.parametrize("convert", [lambda proto: proto, ir.from_proto])
def test_a_tensor_that_nobody_provides_is_named(builders, convert):
    proto = builders.mlp()
    missing = proto.graph.initializer[0].name
    del proto.graph.initializer[0]
    with pytest.raises(ModelError, match=f"reads '{missing}', which no node makes"):
        load_model(convert(proto))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_rows_are_read_from_the_data_file(tmp_path, dtype):
    array = np.arange(12).reshape(4, 3).astype(dtype)
    (tmp_path / "w.data").write_bytes(b"\0" * 8 + array.tobytes())
    kind = ir.DataType.from_numpy(array.dtype)
    tensor = ir.ExternalTensor(
        "w.data", 8, array.nbytes, kind, shape=ir.Shape((4, 3)), name="w", base_dir=tmp_path
    )
    np.testing.assert_array_equal(row_reader(tensor)(1, 3), array[1:3])
    np.testing.assert_array_equal(row_reader(ir.tensor(array))(0, 4), array)
    (tmp_path / "w.data").write_bytes(b"\0" * 12)
    with pytest.raises(OSError, match="cut off"):
        row_reader(tensor)(0, 4)


def test_a_size_that_no_tensor_has_is_not_known(builders):
    proto = builders.mlp()
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -(2**63)
    model = load_model(proto)
    assert model.graph.inputs[0].shape[0] == ir.SymbolicDim(None)
    assert infer_shapes(model) is None
