"""`quant_pre_process`, step by step."""

import importlib.util
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from support.models import (
    FLOAT,
    FLOAT16,
    INT64,
    build,
    constants_of,
    info,
    make_cnn,
    make_samples,
    make_transformer,
    node,
    normal,
    ops,
    retype,
    run,
    sqnr,
    unchanged,
    with_batch_norm,
)

import bitwright
from bitwright.compat.onnxruntime import quant_pre_process, shape_inference

ONLY = {"skip_optimization": True, "skip_onnx_shape": True, "skip_symbolic_shape": True}


def only(step):
    """Return arguments that skip all steps but one."""
    return {name: value for name, value in ONLY.items() if name != f"skip_{step}"}


def process(model, folder, **arguments):
    path = folder / "ready.onnx"
    quant_pre_process(model, path, **arguments)
    return onnx.load(path)


def shapes_of(model):
    stored = {tensor.name for tensor in model.graph.initializer}
    return {
        value.name: tuple(d.dim_value or d.dim_param for d in value.type.tensor_type.shape.dim)
        for value in model.graph.value_info
        if value.type.tensor_type.HasField("shape") and value.name not in stored
    }


def with_open_sizes():
    """Two inputs whose lengths have different names but are added."""
    nodes = [
        node("Concat", ["a", "a"], ["aa"], name="join", axis=0),
        node("Add", ["aa", "b"], ["s"], name="sum"),
        node("Relu", ["s"], ["y"], name="relu"),
    ]
    return build(nodes, {"a": ["n", 4], "b": ["m", 4]}, {"y": None}, opset=17)


# Steps ----------------------------------------------------------------------------------------


def test_optimization_folds_batch_norms_and_constants_and_keeps_names(tmp_path):
    model = with_batch_norm()
    ready = process(model, tmp_path)
    assert dict(ops(ready)) == {"Conv": 1, "Sigmoid": 1}
    assert {item.name for item in ready.graph.node} == {"conv", "last"}
    samples = make_samples(model)
    assert sqnr(run(model, samples), run(ready, samples)) > 100


def test_skip_optimization_leaves_the_nodes(tmp_path):
    model = with_batch_norm()
    assert ops(process(model, tmp_path, skip_optimization=True)) == ops(model)


def test_onnx_shape_inference_fills_in_shapes_and_can_be_skipped(tmp_path):
    model = make_cnn()
    assert not model.graph.value_info
    found = shapes_of(process(model, tmp_path, **only("onnx_shape")))
    assert found["p1"] == (1, 8, 6, 6) and found["f"] == (1, 8)
    # Shapes are the effect of nothing else here.
    assert not shapes_of(process(model, tmp_path, **ONLY))


def test_symbolic_shape_inference_keeps_formulas_and_can_be_skipped(tmp_path):
    model = with_open_sizes()
    with pytest.warns(UserWarning, match="without symbolic shape inference"):
        found = shapes_of(process(model, tmp_path, **only("symbolic_shape")))
    assert found["aa"] == ("2*n", 4)
    assert "aa" not in shapes_of(process(model, tmp_path, **ONLY))


def test_auto_merge_takes_two_names_for_one(tmp_path):
    model = with_open_sizes()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        merged = process(model, tmp_path, **only("symbolic_shape"), auto_merge=True)
    assert shapes_of(merged)["s"][1] == 4 and shapes_of(merged)["s"][0]
    with pytest.warns(UserWarning, match="auto_merge"):
        process(model, tmp_path, **only("symbolic_shape"))


def test_int_max_is_the_integer_that_means_to_the_end(tmp_path):
    nodes = [
        node("Slice", ["x", "start", "end", "axes"], ["s"], name="slice"),
        node("Relu", ["s"], ["y"], name="relu"),
    ]
    constants = {"start": np.array([0]), "end": np.array([1000]), "axes": np.array([0])}
    model = build(nodes, {"x": ["n", 4]}, {"y": None}, constants)
    plain = shapes_of(process(model, tmp_path, **only("symbolic_shape")))
    bounded = shapes_of(process(model, tmp_path, **only("symbolic_shape"), int_max=1000))
    assert bounded["s"] == ("n", 4)
    assert plain["s"] != bounded["s"]


def test_guess_output_rank_takes_unknown_ops_to_keep_the_rank(tmp_path):
    nodes = [
        node("Strange", ["x"], ["u"], name="odd", domain="some.where"),
        node("Relu", ["u"], ["y"], name="relu"),
    ]
    model = build(nodes, {"x": ["n", 4]}, {"y": None}, domains=("some.where",))
    guessed = process(model, tmp_path, **only("symbolic_shape"), guess_output_rank=True)
    assert len(shapes_of(guessed)["u"]) == 2
    with pytest.warns(UserWarning, match="guess_output_rank may help"):
        plain = process(model, tmp_path, **only("symbolic_shape"))
    assert "u" not in shapes_of(plain)


def test_verbose_lets_the_inference_log(tmp_path, caplog):
    model = make_transformer()
    process(model, tmp_path, **only("symbolic_shape"))
    assert not caplog.records
    process(model, tmp_path, **only("symbolic_shape"), verbose=3)
    assert any("symbolic_shape_infer" in record.name for record in caplog.records)


def test_optimization_gives_the_nodes_and_names_that_the_peer_gives(tmp_path):
    from onnxruntime.quantization.shape_inference import quant_pre_process as peer

    model = make_transformer()
    ready = process(model, tmp_path)
    peer(model, tmp_path / "peer.onnx")
    expected = onnx.load(tmp_path / "peer.onnx").graph.node
    assert {item.op_type for item in expected} >= {"Gemm"}
    assert [(n.name, n.op_type) for n in ready.graph.node] == [
        (n.name, n.op_type) for n in expected
    ]
    samples = make_samples(model)
    assert sqnr(run(model, samples), run(ready, samples)) > 100


@pytest.mark.filterwarnings("ignore:pre-processing went on without symbolic")
def test_a_step_that_cannot_run_is_named_and_the_others_run(tmp_path):
    nodes = [
        node("Relu", ["x"], ["r"], name="relu"),
        node("Strange", ["r"], ["y"], name="odd", domain="some.where"),
    ]
    model = build(nodes, {"x": ["n", 4]}, {"y": None}, domains=("some.where",))
    with pytest.warns(UserWarning, match="without optimization: .*[Ss]trange"):
        ready = process(model, tmp_path)
    assert ops(ready) == ops(model)
    assert shapes_of(ready)["r"] == ("n", 4)


def test_without_sympy_the_other_steps_run(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime.tools.symbolic_shape_infer", None)
    with pytest.warns(UserWarning, match=r"bitwright\[shapes\]"):
        ready = process(with_batch_norm(), tmp_path)
    assert "BatchNormalization" not in ops(ready)


def test_nothing_is_left_in_the_working_directory(tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    with pytest.warns(UserWarning):
        process(with_open_sizes(), tmp_path)
    assert not list(here.iterdir())


def test_old_opsets_are_raised_as_the_peer_does(tmp_path):
    nodes = [
        node("Upsample", ["x", "scales"], ["u"], name="up", mode="linear"),
        node("Relu", ["u"], ["y"], name="relu"),
    ]
    constants = {"scales": np.array([1, 1, 2, 2], np.float32)}
    model = build(nodes, {"x": [1, 3, 4, 4]}, {"y": [1, 3, 8, 8]}, constants, opset=9, ir_version=5)
    ready = process(model, tmp_path)
    assert next(o.version for o in ready.opset_import if not o.domain) == 11
    assert "Resize" in ops(ready)
    samples = make_samples(model)
    assert sqnr(run(model, samples), run(ready, samples)) > 100


def test_the_peer_recognises_the_result(tmp_path):
    from onnxruntime.quantization.quant_utils import model_has_pre_process_metadata

    assert model_has_pre_process_metadata(process(make_cnn(), tmp_path))
    assert not model_has_pre_process_metadata(make_cnn())


# Where it is written --------------------------------------------------------------------------


def files_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_external_data_goes_where_it_is_asked_to(tmp_path):
    model = make_cnn(channels=32)
    quant_pre_process(
        model,
        tmp_path / "ready.onnx",
        save_as_external_data=True,
        all_tensors_to_one_file=True,
        external_data_location="weights.bin",
    )
    assert files_in(tmp_path) == ["ready.onnx", "weights.bin"]
    samples = make_samples(model)
    assert sqnr(run(model, samples), run(tmp_path / "ready.onnx", samples)) > 100


def test_without_one_file_each_tensor_has_its_own(tmp_path):
    model = make_cnn(channels=32)
    quant_pre_process(model, tmp_path / "ready.onnx", save_as_external_data=True)
    assert files_in(tmp_path) == ["ready.onnx", "w1", "w2", "w3"]
    samples = make_samples(model)
    assert sqnr(run(model, samples), run(tmp_path / "ready.onnx", samples)) > 100
    (tmp_path / "parts").mkdir()
    quant_pre_process(
        model,
        tmp_path / "ready.onnx",
        save_as_external_data=True,
        external_data_location="parts",
    )
    assert files_in(tmp_path / "parts") == ["w1", "w2", "w3"]


def test_the_threshold_says_which_tensors_go_outside(tmp_path):
    model = make_cnn(channels=32)
    quant_pre_process(
        model,
        tmp_path / "ready.onnx",
        save_as_external_data=True,
        external_data_size_threshold=10_000,
    )
    assert files_in(tmp_path) == ["ready.onnx", "w2"]


def test_a_file_of_somebody_else_is_not_overwritten(tmp_path):
    (tmp_path / "w2").write_text("my notes")
    quant_pre_process(make_cnn(channels=32), tmp_path / "ready.onnx", save_as_external_data=True)
    assert (tmp_path / "w2").read_text() == "my notes"
    onnx.load(tmp_path / "ready.onnx")


@pytest.mark.parametrize("location", ["../outside.bin", "/tmp/outside.bin", "no/such/folder.bin"])
def test_data_outside_the_folder_is_refused(tmp_path, location):
    with pytest.raises(bitwright.OutputError, match="external data"):
        quant_pre_process(
            make_cnn(channels=32),
            tmp_path / "ready.onnx",
            save_as_external_data=True,
            all_tensors_to_one_file=True,
            external_data_location=location,
        )
    assert not list(tmp_path.iterdir())


def test_options_that_would_do_nothing_say_so(tmp_path):
    with pytest.warns(UserWarning, match="all_tensors_to_one_file has no effect without save_as"):
        process(make_cnn(), tmp_path, all_tensors_to_one_file=True)
    with pytest.warns(UserWarning, match="external_data_location 'a.bin' has no effect"):
        process(make_cnn(), tmp_path, save_as_external_data=True, external_data_location="a.bin")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        process(make_cnn(), tmp_path, external_data_location="./")


def test_the_input_is_never_touched(tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    onnx.save(make_cnn(channels=32), source / "m.onnx", save_as_external_data=True, location="d")
    with unchanged(source):
        quant_pre_process(source / "m.onnx", tmp_path / "ready.onnx")
        with pytest.raises(bitwright.OutputError, match="overwrite the input"):
            quant_pre_process(source / "m.onnx", source / "m.onnx")
    proto = make_cnn()
    before = proto.SerializeToString()
    process(proto, tmp_path)
    assert proto.SerializeToString() == before


# Bad calls ------------------------------------------------------------------------------------


def test_the_old_name_of_the_input_still_works_with_one_warning(tmp_path):
    onnx.save(make_cnn(), tmp_path / "in.onnx")
    with pytest.warns(DeprecationWarning, match="now called input_model") as seen:
        quant_pre_process(
            input_model_path=str(tmp_path / "in.onnx"), output_model_path=tmp_path / "out.onnx"
        )
    assert len(seen) == 1
    assert (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"external_data_size_threshold": -1}, "number of bytes"),
        ({"output_model_path": None}, "needs output_model_path"),
        ({"input_model": None}, "needs input_model"),
    ],
)
def test_bad_arguments_are_refused_before_any_work(tmp_path, arguments, message):
    given = {"input_model": make_cnn(), "output_model_path": tmp_path / "ready.onnx", **arguments}
    with pytest.raises(ValueError, match=message):
        quant_pre_process(**given)
    assert not list(tmp_path.iterdir())


def test_unknown_arguments_are_ignored_with_a_suggestion(tmp_path):
    with pytest.warns(UserWarning, match="Did you mean 'skip_optimization'"):
        process(make_cnn(), tmp_path, skip_optimisation=True)


@pytest.mark.parametrize("content", [None, b"", b"not a model"])
def test_bad_files_are_told_about(tmp_path, content):
    path = tmp_path / "bad.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(bitwright.ModelError, match=r"bad\.onnx"):
        quant_pre_process(path, tmp_path / "ready.onnx")
    with pytest.raises(bitwright.OutputError, match="no folder"):
        quant_pre_process(make_cnn(), tmp_path / "nowhere" / "ready.onnx")


def test_it_lives_where_the_peer_has_it():
    assert shape_inference.quant_pre_process is quant_pre_process


def test_the_bitwright_command_does_the_same(tmp_path, capsys):
    from bitwright.cli import main as bitwright_main

    onnx.save(with_batch_norm(), tmp_path / "in.onnx")
    words = ["preprocess", str(tmp_path / "in.onnx"), "-o", str(tmp_path / "out.onnx")]
    assert bitwright_main(words) == 0
    assert "folded 1 batch norm" in capsys.readouterr().out
    assert "BatchNormalization" not in ops(tmp_path / "out.onnx")
    assert bitwright_main([*words, "--no-optimize", "--quiet"]) == 0
    assert "BatchNormalization" in ops(tmp_path / "out.onnx")


def test_the_api_says_what_it_did():
    result = bitwright.preprocess(with_batch_norm())
    assert result.skipped == {} and result.path is None
    assert any("batch norm" in note for note in result.notes)


# Real and large models ------------------------------------------------------------------------


def ocr_models():
    found = importlib.util.find_spec("rapidocr_onnxruntime")
    if found is None or found.origin is None:
        return []
    return sorted((Path(found.origin).parent / "models").glob("*.onnx"))


@pytest.mark.slow
@pytest.mark.parametrize("path", ocr_models(), ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore:pre-processing went on without symbolic")
def test_real_models_compute_the_same(path, tmp_path):
    quant_pre_process(path, tmp_path / "ready.onnx", auto_merge=True)
    model, ready = onnx.load(path), onnx.load(tmp_path / "ready.onnx")
    sizes = (64, 192) if "det" in path.name else (48, 192)
    feeds = {model.graph.input[0].name: normal(1, 3, *sizes)}
    for expected, actual in zip(run(model, feeds), run(ready, feeds), strict=True):
        np.testing.assert_allclose(actual, expected, atol=1e-5)
    assert sum(ops(ready).values()) < sum(ops(model).values()) / 2
    assert len(shapes_of(ready)) > len(ready.graph.node) / 2


def make_huge(folder, gigabytes=2.4):
    """Write a model of Convs and MatMuls whose data file is a hole of zeros with a few numbers."""
    side = 8192
    count = int(gigabytes * 1e9 / (side * side * 4)) + 1
    nodes, tensors, before = [], [], "x"
    for index in range(count):
        tensor = onnx.TensorProto(name=f"w{index}", data_type=FLOAT, dims=[side, side])
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (
            ("location", "weights.bin"),
            ("offset", str(index * side * side * 4)),
            ("length", str(side * side * 4)),
        ):
            tensor.external_data.add(key=key, value=value)
        tensors.append(tensor)
        nodes.append(node("MatMul", [before, f"w{index}"], [f"m{index}"], name=f"mm{index}"))
        nodes.append(node("Identity", [f"m{index}"], [f"h{index}"], name=f"id{index}"))
        before = f"h{index}"
    shape = onnx.helper.make_tensor("shape", INT64, [2], [-1, side])
    nodes.append(node("Reshape", [before, "shape"], ["y"], name="last"))
    graph = onnx.helper.make_graph(
        nodes, "huge", [info("x", ["n", side])], [info("y", ["n", side])], [*tensors, shape]
    )
    imports = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=8)
    (folder / "huge.onnx").write_bytes(model.SerializeToString())
    with (folder / "weights.bin").open("wb") as file:
        file.truncate(count * side * side * 4)
    return folder / "huge.onnx", count * side * side * 4


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from /proc")
def test_a_model_over_2_gb_is_processed_in_bounded_memory(tmp_path):
    source, size = make_huge(tmp_path)
    script = """
import sys
from bitwright.compat.onnxruntime import quant_pre_process
quant_pre_process(sys.argv[1], sys.argv[2])
status = open("/proc/self/status").read()
print(int(status.split("VmHWM:")[1].split()[0]) // 1024)
"""
    command = [sys.executable, "-c", script, str(source), str(tmp_path / "ready.onnx")]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=280)
    assert size > 2**31
    assert int(done.stdout) < 1200, "MB at the peak"
    assert "went on without" not in done.stderr
    ready = onnx.load(tmp_path / "ready.onnx", load_external_data=False)
    assert "Identity" not in ops(ready)
    assert shapes_of(ready)["m0"] == ("n", 8192)
    assert (tmp_path / "ready.onnx.data").stat().st_size == size


def test_a_float16_model_stays_float16(tmp_path):
    model = retype(make_cnn(), np.float16, FLOAT16)
    onnx.save(model, tmp_path / "model.onnx")
    quant_pre_process(tmp_path / "model.onnx", tmp_path / "ready.onnx")
    ready = onnx.load(tmp_path / "ready.onnx")
    assert "Cast" not in {node.op_type for node in ready.graph.node}
    assert {array.dtype.name for array in constants_of(ready).values() if array.ndim > 1} == {
        "float16"
    }
