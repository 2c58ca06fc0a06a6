from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import textwrap

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from bitwright.errors import ModelError, OutputError
from bitwright.graph import (
    check_destination,
    load_model,
    model_bytes,
    save_model,
    saving,
    serialized_size,
    written_size,
)
from bitwright.run import Session

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

X = {"x": np.random.default_rng(0).standard_normal((2, 64)).astype(np.float32)}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).digest() for path in folder.iterdir()}


def check_runs(path, builders):
    expected = Session(builders.mlp()).run(X)["y"]
    np.testing.assert_array_equal(Session(path).run(X)["y"], expected)


@pytest.mark.parametrize("external", [False, True])
def test_a_saved_model_loads_runs_and_has_the_same_bytes_each_time(builders, tmp_path, external):
    first, second = tmp_path / "a", tmp_path / "b"
    for folder in (first, second):
        folder.mkdir()
        save_model(load_model(builders.mlp()), folder / "m.onnx", external_data=external)
        check_runs(folder / "m.onnx", builders)
    assert names(first) == (["m.onnx", "m.onnx.data"] if external else ["m.onnx"])
    assert digests(first) == digests(second)
    onnx.checker.check_model(first / "m.onnx", full_check=True)


def test_the_model_in_memory_is_not_changed_by_saving(builders, tmp_path):
    model = load_model(builders.mlp())
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    save_model(model, tmp_path / "m.onnx", external_data=True)
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("external", [False, True])
def test_nodes_out_of_order_are_not_written(builders, tmp_path, external):
    model = load_model(builders.mlp())
    first = model.graph[0]
    model.graph.remove(first)
    model.graph.append(first)
    with pytest.raises(ModelError, match="before any node makes it"):
        save_model(model, tmp_path / "m.onnx", external_data=external)
    assert not names(tmp_path)


def test_external_data_is_taken_over_in_both_directions(builders, tmp_path):
    model = load_model(builders.save_external(builders.mlp(), tmp_path))
    save_model(model, tmp_path / "inline.onnx")
    (tmp_path / "model.data").rename(tmp_path / "elsewhere")
    check_runs(tmp_path / "inline.onnx", builders)
    (tmp_path / "elsewhere").rename(tmp_path / "model.data")
    save_model(model, tmp_path / "pair.onnx", external_data=True)
    (tmp_path / "model.data").unlink()
    check_runs(tmp_path / "pair.onnx", builders)
    assert (tmp_path / "pair.onnx.data").stat().st_size == (64 * 64 + 64 * 4) * 4  # b1 is small


def test_weights_inside_bodies_go_outside_too(builders, tmp_path):
    save_model(load_model(builders.branches()), tmp_path / "m.onnx", external_data=True)
    assert (tmp_path / "m.onnx.data").stat().st_size == 24 * 24 * 4
    feeds = {"c": np.array(True), "x": np.ones((2, 24), np.float32)}
    expected = Session(builders.branches()).run(feeds)["y"]
    np.testing.assert_array_equal(
        Session(load_model(tmp_path / "m.onnx")).run(feeds)["y"], expected
    )


def test_external_data_begins_above_the_threshold(builders, tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "EXTERNAL_DATA_THRESHOLD", 10_000)
    model = load_model(builders.mlp())
    assert serialized_size(model) > 10_000
    save_model(model, tmp_path / "m.onnx")
    assert names(tmp_path) == ["m.onnx", "m.onnx.data"]
    with pytest.raises(OutputError, match="write it with external data"):
        save_model(model, tmp_path / "n.onnx", external_data=False)


@pytest.mark.parametrize("attributes", [True, False])
def test_tensors_of_attributes_go_outside_or_stay(attributes, tmp_path):
    value = onnx.numpy_helper.from_array(np.ones(512, np.float32), "value")
    nodes = [
        onnx.helper.make_node("Constant", [], ["c"], value=value),
        onnx.helper.make_node("Add", ["x", "c"], ["y"]),
    ]
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(nodes, "g", [info("x", 1, [512])], [info("y", 1, [512])])
    layout = saving.ExternalData(attributes=attributes)
    save_model(load_model(onnx.helper.make_model(graph)), tmp_path / "m.onnx", external_data=layout)
    assert ("m.onnx.data" in names(tmp_path)) is attributes


def test_small_types_and_strings_survive(builders, tmp_path):
    model = load_model(builders.mlp())
    array = np.arange(-8, 8).astype(ml_dtypes.int4).repeat(301)
    for name, tensor in {
        "int4": ir.tensor(array, name="int4"),
        "half": ir.tensor(np.ones(999, ml_dtypes.bfloat16), name="half"),
        "text": ir.tensor(["one", "two"], name="text"),
    }.items():
        model.graph.register_initializer(ir.Value(name=name, const_value=tensor))
    for name, external in (("in.onnx", False), ("out.onnx", True)):
        save_model(model, tmp_path / name, external_data=external)
        saved = load_model(tmp_path / name).graph.initializers
        np.testing.assert_array_equal(saved["int4"].const_value.numpy(), array)
        assert saved["half"].const_value.dtype == ir.DataType.BFLOAT16
        assert list(saved["text"].const_value.numpy()) == [b"one", b"two"]
    save_model(load_model(tmp_path / "out.onnx"), tmp_path / "back.onnx")
    assert (tmp_path / "back.onnx").read_bytes() != b""
    again = load_model(tmp_path / "back.onnx").graph.initializers["int4"]
    np.testing.assert_array_equal(again.const_value.numpy(), array)


def test_overwriting_keeps_the_old_pair_valid_until_the_new_model_is_there(
    builders, tmp_path, monkeypatch
):
    path = tmp_path / "m.onnx"
    save_model(load_model(builders.mlp()), path, external_data=True)
    old = digests(tmp_path)
    other = load_model(builders.mlp())
    other.graph.initializers["w1"].const_value = ir.tensor(np.zeros((64, 64), np.float32))
    other.graph.initializers["w1"].const_value.name = "w1"
    moves = []
    real = saving.replace_file

    def killed(temporary, target):
        moves.append(target.name)
        if target == path:
            raise KeyboardInterrupt  # the worst moment: data is in place, the model is not
        real(temporary, target)

    monkeypatch.setattr(saving, "replace_file", killed)
    with pytest.raises(KeyboardInterrupt):
        save_model(other, path, external_data=True)
    assert digests(tmp_path) == old and len(moves) == 2 and moves[0] != "m.onnx.data"
    check_runs(path, builders)
    monkeypatch.setattr(saving, "replace_file", real)
    save_model(other, path, external_data=True)
    assert len(names(tmp_path)) == 2 and "m.onnx.data" not in names(tmp_path)
    assert Session(path).run(X)["y"].shape == (2, 4)
    assert not load_model(path).graph.initializers["w1"].const_value.numpy().any()
    save_model(load_model(builders.mlp()), path, external_data=True)
    assert names(tmp_path) == ["m.onnx", "m.onnx.data"]
    check_runs(path, builders)


def test_only_data_of_the_replaced_model_is_removed(builders, tmp_path):
    path = tmp_path / "m.onnx"
    (tmp_path / "m.onnx.data").write_bytes(b"someone else's")
    save_model(load_model(builders.mlp()), path, external_data=True)
    assert len(names(tmp_path)) == 3
    assert (tmp_path / "m.onnx.data").read_bytes() == b"someone else's"
    check_runs(path, builders)
    save_model(load_model(builders.mlp()), path)
    assert names(tmp_path) == ["m.onnx", "m.onnx.data"]
    check_runs(path, builders)


def test_a_full_disk_leaves_the_old_file_and_nothing_else(builders, tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(b"old")
    script = textwrap.dedent(
        """
        import resource, signal, sys, onnx
        from bitwright.errors import ModelError, OutputError
        from bitwright.graph import load_model, save_model
        import numpy as np, onnx_ir as ir
        weight = ir.Value(name="w", const_value=ir.tensor(np.ones(100_000, np.float32), name="w"))
        graph = ir.Graph([], [weight], nodes=[], initializers=[weight], opset_imports={"": 17})
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        for external in (False, True):
            try:
                save_model(ir.Model(graph, ir_version=8), sys.argv[1], external_data=external)
            except OutputError as error:
                print(error)
        """
    )
    result = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True
    )
    lines = result.stdout.splitlines()
    assert len(lines) == 2 and all("was not written: the disk is full" in line for line in lines)
    assert names(tmp_path) == ["m.onnx"] and path.read_bytes() == b"old"


@pytest.mark.parametrize("when", ["write", "fsync", "rename"])
@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
@pytest.mark.parametrize("external", [False, True])
def test_a_failure_at_any_step_leaves_no_file(
    builders, tmp_path, monkeypatch, when, failure, external
):
    def fail(*arguments):
        raise failure

    target = {
        "write": (saving, "write_model"),
        "fsync": (saving.os, "fsync"),
        "rename": (saving, "replace_file"),
    }[when]
    model = load_model(builders.mlp())
    monkeypatch.setattr(*target, fail)
    with pytest.raises((OutputError, KeyboardInterrupt)):
        save_model(model, tmp_path / "m.onnx", external_data=external)
    assert names(tmp_path) == []


def test_a_destination_that_cannot_be_written_is_refused_before_any_work(tmp_path, monkeypatch):
    with pytest.raises(OutputError, match="there is no folder"):
        check_destination(tmp_path / "none" / "m.onnx")
    with pytest.raises(OutputError, match="is a folder"):
        check_destination(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="is a file, not a folder"):
        check_destination(tmp_path / "file" / "m.onnx")
    check_destination(tmp_path / "m.onnx")
    assert names(tmp_path) == ["file"]
    monkeypatch.setattr(saving.os, "access", lambda *arguments: False)
    with pytest.raises(OutputError, match="cannot be written to \\(no permission\\)"):
        check_destination(tmp_path / "m.onnx")
    monkeypatch.undo()

    def read_only(*arguments):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(saving.os, "open", read_only)
    with pytest.raises(OutputError, match="Read-only file system"):
        check_destination(tmp_path / "m.onnx")


def test_the_input_is_never_overwritten(builders, tmp_path, monkeypatch):
    path = builders.save_external(builders.mlp(), tmp_path)
    (tmp_path / "link.onnx").symlink_to(path)
    os.link(path, tmp_path / "hard.onnx")
    (tmp_path / "out.onnx.data").symlink_to("model.data")
    monkeypatch.chdir(tmp_path)
    for source in (path, "model.onnx", load_model(path)):
        for target in ("model.onnx", "link.onnx", "hard.onnx", "model.data", "out.onnx"):
            with pytest.raises(OutputError, match="would overwrite the input"):
                check_destination(target, source=source)
        check_destination("other.onnx", source=source)


def test_the_data_file_that_is_being_read_is_not_replaced(builders, tmp_path):
    path = builders.save_external(builders.mlp(), tmp_path, "m.onnx", "m.onnx.data")
    before = digests(tmp_path)
    with pytest.raises(OutputError, match="holds the weights of the model that is being written"):
        save_model(load_model(path), path, external_data=True)
    assert digests(tmp_path) == before


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("way", ["..", "absolute", "link"])
def test_data_files_outside_the_folder_of_the_output_stay(builders, tmp_path, way, external):
    folder, other = tmp_path / "out", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    (folder / "link").symlink_to(other)
    places = {"..": "../other", "absolute": str(other), "link": "link"}
    old = onnx.load(
        builders.save_external(builders.mlp(), other, "m.onnx", "m.onnx.data"),
        load_external_data=False,
    )
    for tensor in old.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = f"{places[way]}/m.onnx.data"
    (folder / "m.onnx").write_bytes(old.SerializeToString())
    before = digests(other)
    save_model(load_model(builders.mlp()), folder / "m.onnx", external_data=external)
    check_runs(folder / "m.onnx", builders)
    assert digests(other) == before


@linux_only
@pytest.mark.slow
def test_a_lazy_model_is_streamed_in_constant_memory(builders, tmp_path):
    size = 32 << 20
    proto = builders.build([], [], [], {})
    for number in range(12):
        tensor = proto.graph.initializer.add(name=f"w{number}", data_type=1, dims=[size // 4])
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", "w.data"), ("offset", str(number * size))):
            tensor.external_data.add(key=key, value=value)
    (tmp_path / "in.onnx").write_bytes(proto.SerializeToString())
    with (tmp_path / "w.data").open("wb") as file:
        file.truncate(12 * size)
    script = textwrap.dedent(
        """
        import sys
        def peak_kb():  # of this process image; ru_maxrss would count the parent's
            status = open("/proc/self/status").read()
            return int(status.split("VmHWM:")[1].split()[0])
        from bitwright.graph import load_model, save_model
        model = load_model(sys.argv[1])
        before = peak_kb()
        save_model(model, sys.argv[2], external_data=True)
        print((peak_kb() - before) / 1024)
        """
    )
    command = [sys.executable, "-c", script, str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx")]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(result.stdout) < 150  # of 384 MB
    assert (tmp_path / "out.onnx.data").stat().st_size == 12 * size
    (tmp_path / "out.onnx.data").unlink()


WRITER = """
import sys, time
from pathlib import Path
from bitwright.support.files import temporary_beside
with temporary_beside(Path(sys.argv[1])) as path:
    path.write_bytes(b"half of it")
    print("ready", flush=True)
    time.sleep(100)
"""


@pytest.fixture
def writer(tmp_path):
    """A process that writes data beside a model and never ends by itself."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "m.onnx.data")],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_what_a_killed_job_left_goes_when_the_model_is_written_again(tmp_path, builders, writer):
    (left,) = tmp_path.iterdir()
    writer.kill()
    writer.wait()
    assert left.read_bytes() == b"half of it"
    save_model(load_model(builders.mlp()), tmp_path / "m.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_what_another_job_is_writing_stays(tmp_path, builders, writer):
    (other,) = tmp_path.iterdir()
    save_model(load_model(builders.mlp()), tmp_path / "m.onnx")
    assert set(tmp_path.iterdir()) == {other, tmp_path / "m.onnx"}
    assert writer.poll() is None


@pytest.mark.parametrize("external", [False, True])
def test_the_size_of_the_file_is_known_before_it_is_written(builders, tmp_path, external):
    save_model(load_model(builders.mlp()), tmp_path / "a.onnx", external_data=external)
    model = load_model(tmp_path / "a.onnx")
    save_model(model, tmp_path / "b.onnx", external_data=False)
    assert written_size(model) == (tmp_path / "b.onnx").stat().st_size


def test_a_device_is_not_replaced_by_a_file():
    with pytest.raises(OutputError, match="is a pipe or a device; give the path of a regular file"):
        check_destination(os.devnull)


def test_a_disk_that_fails_while_more_is_written_is_told_and_nothing_is_left(tmp_path, monkeypatch):
    """What is on disk is synced meanwhile, and the system tells of a failure only once."""
    calls = []

    def fail_once(descriptor):
        calls.append(descriptor)
        if len(calls) == 1:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(model_bytes, "_SYNCED", 1 << 10)
    monkeypatch.setattr(saving.os, "fsync", fail_once)
    weights = [ir.tensor(np.full((64, 64), n, np.float32), name=f"w{n}") for n in range(4)]
    values = [ir.Value(name=w.name, const_value=w) for w in weights]
    graph = ir.Graph([], values, nodes=[], initializers=values, opset_imports={"": 21}, name="g")
    with pytest.raises(OutputError, match="Input/output error"):
        saving.save_model(ir.Model(graph, ir_version=10), tmp_path / "m.onnx", external_data=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_a_stream_is_not_renamed_over(path):
    with pytest.raises(OutputError, match="is a stream; give the path of a file"):
        check_destination(path)


@pytest.mark.parametrize("letters", [230, 300])
def test_a_name_without_room_for_temporary_ones_is_refused_before_any_work(tmp_path, letters):
    with pytest.raises(OutputError, match=r"File name too long|is longer than paths may be"):
        check_destination(tmp_path / ("x" * letters))
