from __future__ import annotations

import gc
import os
import re
import sys
import tempfile

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from bitwright import load_demo, quantize
from bitwright.errors import ModelError, TargetError
from bitwright.graph import load_model
from bitwright.run import Session, opening, runtime_reason
from bitwright.run import session as sessions
from bitwright.run.session import checked_providers, open_plainly

X = {"x": np.random.default_rng(0).standard_normal((2, 64)).astype(np.float32)}


def test_every_kind_of_model_opens_and_gives_the_same(builders, tmp_path):
    proto = builders.mlp()
    onnx.save(proto, tmp_path / "m.onnx")
    external = builders.save_external(proto, tmp_path, "e.onnx", "e.data")
    expected = Session(proto).run(X)["y"]
    for model in (
        str(tmp_path / "m.onnx"),
        external,
        load_model(proto),
        load_model(tmp_path / "m.onnx"),
        load_model(external),
        ir.from_proto(proto),
    ):
        np.testing.assert_array_equal(Session(model).run(X)["y"], expected)


@pytest.mark.skipif(sys.platform == "win32", reason="the runtime cannot write to its null device")
def test_a_graph_with_many_initializers_opens_otherwise_and_gives_the_same(monkeypatch):
    demo = load_demo()
    data = demo.calibration[:8]
    result = quantize(demo.model_path, data=data, purpose="size", progress=False)
    feeds = {"image": demo.calibration[:4]}
    expected = Session(result.model).run(feeds)
    monkeypatch.setattr(opening, "MANY_INITIALIZERS", 1)
    session = Session(result.model, float_weights=True)
    options = session.runtime.get_session_options()
    assert options.optimized_model_filepath == os.devnull
    without = {"WeightBiasQuantization", "ConstantSharing", "NhwcTransformer", "NchwcTransformer"}
    ops = {node.op_type for node in result.model.graph.all_nodes()}
    assert "Conv" in ops and not ops & {"Transpose", "Where"}
    assert without < _passes_left_out(session)
    assert {"TransposeOptimizer", "WhereDummyDq"} < _passes_left_out(session)
    for name, array in Session(result.model).run(feeds).items():
        np.testing.assert_array_equal(array, expected[name])


def test_a_pass_stays_where_the_graph_has_what_it_is_for(builders, monkeypatch):
    monkeypatch.setattr(opening, "MANY_INITIALIZERS", 1)
    left_out = _passes_left_out(Session(load_model(builders.mlp())))
    assert "TransposeOptimizer" in left_out and "MatMulAddFusion" not in left_out
    assert "NchwcTransformer" not in left_out


def _passes_left_out(session):
    entry = "optimization.disable_specified_optimizers"
    return set(session.runtime.get_session_options().get_session_config_entry(entry).split(";"))


def test_the_runtime_knows_each_pass_by_the_name_that_is_left_out(builders, capfd):
    options = ort.SessionOptions()
    options.log_severity_level = 0
    content = builders.mlp().SerializeToString()
    ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    told = set(re.findall(r"Applying graph transformer (\w+)", capfd.readouterr().err))
    passes = " ".join(opening._PASSES_OF_OPS.values()).split()
    assert {*opening._SLOW_PASSES, *passes} <= told
    # Which machines have a layout of their own for convolutions, the runtime knows.
    layouts = {name for name in told if name.lower().startswith("nchwc")}
    assert layouts <= {opening._PASS_OF_CONVOLUTIONS}


def test_many_initializers_do_not_take_the_place_of_the_optimized_graph(
    builders, tmp_path, monkeypatch
):
    monkeypatch.setattr(opening, "MANY_INITIALIZERS", 1)
    Session(load_model(builders.mlp()), optimized_to=tmp_path / "optimized.onnx")
    assert onnx.load(tmp_path / "optimized.onnx").graph.node


@pytest.mark.parametrize("level", ["disabled", "basic", "extended", "all"])
def test_levels_and_threads_are_passed_on(builders, level):
    session = Session(builders.mlp(), level=level, threads=1)
    options = session.runtime.get_session_options()
    assert options.graph_optimization_level == sessions._LEVELS[level]
    assert options.intra_op_num_threads == 1 and not options.enable_cpu_mem_arena


def test_a_model_above_the_message_limit_goes_through_a_folder_that_is_gone_afterwards(
    builders, tmp_path, monkeypatch
):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(opening, "IN_MEMORY_LIMIT", 1000)
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    left = scratch / "bitwright-session-of-a-killed-run"
    left.mkdir()
    (left / "owner.lock").touch()
    expected = Session(builders.mlp()).run(X)["y"]
    model = load_model(builders.save_external(builders.mlp(), tmp_path))
    second = builders.save_external(builders.mlp(), tmp_path, "s.onnx", "s.data")
    # one weight in memory, one in each of two files
    model.graph.initializers["w1"].const_value = ir.tensor(
        model.graph.initializers["w1"].const_value.numpy().copy(), name="w1"
    )
    model.graph.initializers["w2"].const_value = (
        load_model(second).graph.initializers["w2"].const_value
    )
    session = Session(model)
    assert list(scratch.iterdir()) == []
    assert (tmp_path / "model.data").stat().st_nlink == 1
    np.testing.assert_array_equal(session.run(X)["y"], expected)
    assert isinstance(model.graph.initializers["w2"].const_value, ir.ExternalTensor)


def test_files_on_another_file_system_are_copied(builders, tmp_path, monkeypatch):
    def refuse(self, target):
        raise OSError(18, "cross-device link")

    monkeypatch.setattr(opening, "IN_MEMORY_LIMIT", -1)
    monkeypatch.setattr(opening.Path, "hardlink_to", refuse)
    model = load_model(builders.save_external(builders.mlp(), tmp_path))
    expected = Session(builders.mlp()).run(X)["y"]
    np.testing.assert_array_equal(Session(model).run(X)["y"], expected)


def test_outputs_are_not_copied_and_outlive_the_session(builders):
    session = Session(builders.mlp())
    result = session.run(X)["y"]
    expected = session.runtime.run(None, X)[0]
    assert not result.flags.owndata
    del session
    gc.collect()
    np.testing.assert_array_equal(result, expected)


def test_non_contiguous_input_strings_and_chosen_outputs_work(builders):
    session = Session(builders.mlp())
    twisted = {"x": np.asfortranarray(X["x"])}
    np.testing.assert_array_equal(session.run(twisted)["y"], session.run(X)["y"])
    text = builders.build(
        [helper.make_node("Identity", ["s"], ["t"]), helper.make_node("Shape", ["s"], ["n"])],
        [builders.info("s", TensorProto.STRING, [2])],
        [builders.info("t", TensorProto.STRING), builders.info("n", TensorProto.INT64)],
    )
    feeds = {"s": np.array(["a", "b"], object)}
    result = Session(text).run(feeds, ["t"])
    assert list(result) == ["t"] and list(result["t"]) == ["a", "b"]


def test_a_scalar_is_fed_as_a_scalar(builders):
    model = builders.build(
        [helper.make_node("Shape", ["s"], ["n"])],
        [builders.info("s", TensorProto.INT64, None)],
        [builders.info("n", TensorProto.INT64)],
    )
    assert Session(model).run({"s": np.array(5)})["n"].tolist() == []


def test_a_large_constant_that_no_node_reads_is_not_handed_over(builders):
    """The runtime forgets such a constant, and would not find what it is given for it."""
    unused = np.zeros((128, 256), np.float32)
    model = builders.build(
        [helper.make_node("Relu", ["x"], ["y"])],
        [builders.info("x")],
        [builders.info("y")],
        {"unused": unused},
    )
    np.testing.assert_array_equal(Session(load_model(model)).run(X)["y"], np.maximum(X["x"], 0))


def test_a_refused_model_gives_the_runtimes_reason_in_one_sentence(builders, capfd):
    proto = builders.mlp()
    proto.graph.node[0].op_type = "Matmull"
    with pytest.raises(ModelError) as caught:
        Session(proto)
    assert "refuses the model: Matmull node 'first': No Op registered" in str(caught.value)
    assert "operators of your own" in str(caught.value)
    assert capfd.readouterr().err == ""


def test_a_failing_run_names_the_node_and_hides_c_plus_plus(builders):
    proto = builders.build(
        [helper.make_node("MatMul", ["a", "b"], ["y"], name="product")],
        [builders.info("a", 1, ["i", "j"]), builders.info("b", 1, ["k", "l"])],
        [builders.info("y")],
    )
    session = Session(proto)
    with pytest.raises(ModelError, match="MatMul node 'product'") as caught:
        session.run({"a": np.ones((2, 3), np.float32), "b": np.ones((2, 3), np.float32)})
    assert ".h:" not in str(caught.value) and ".cc:" not in str(caught.value)
    with pytest.raises(ModelError, match="Required inputs"):
        session.run({})


def test_reasons_lose_whole_signatures():
    error = ValueError(
        "[ONNXRuntimeError] : 1 : FAIL : Load model from m.onnx failed:/onnxruntime_src/core/"
        "model.cc:256 onnxruntime::Model::Model(onnx::ModelProto&&, const std::function<void()>&) "
        "Unsupported model IR version: 14, max supported IR version: 13\n"
    )
    assert runtime_reason(error) == (
        "Load model from m.onnx failed:Unsupported model IR version: 14, "
        "max supported IR version: 13."
    )


def test_the_reason_of_a_node_without_an_operator_comes_before_its_long_list_of_inputs():
    inputs = "".join(f'"a_rather_long_name_{number}": tensor(float),' for number in range(30))
    error = ValueError(
        f'In Node, ("mm", , "", -1) : ({inputs}) -> ("y",) , Error Field \'op_type\' is empty.'
    )
    assert runtime_reason(error) == "node 'mm': Field 'op_type' is empty."


def test_a_bad_path_gets_the_sentence_of_loading(tmp_path):
    with pytest.raises(ModelError, match="there is no file"):
        Session(tmp_path / "none.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"junk")
    with pytest.raises(ModelError, match="not an ONNX model"):
        Session(tmp_path / "bad.onnx")


def test_a_file_with_too_new_an_ir_version_opens(builders, tmp_path):
    path = builders.save_external(builders.mlp(ir_version=onnx.IR_VERSION), tmp_path)
    Session(path).run(X)


def test_unknown_providers_and_levels_are_refused(builders):
    with pytest.raises(TargetError, match="Did you mean 'CPUExecutionProvider'"):
        Session(builders.mlp(), providers=["CPUExecutionProvidr"])
    with pytest.raises(TargetError, match="unknown optimization level"):
        Session(builders.mlp(), level="most")


@pytest.mark.parametrize("given", ["CPUExecutionProvider", [("CPUExecutionProvider", {})]])
def test_providers_are_a_list_of_names(builders, given):
    with pytest.raises(TargetError, match="a list of names such as 'CPUExecutionProvider'"):
        Session(builders.mlp(), providers=given)


def test_a_provider_that_is_not_in_this_build_is_refused(builders, monkeypatch):
    monkeypatch.setattr(sessions.ort, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(TargetError, match="has no CUDAExecutionProvider"):
        Session(builders.mlp(), providers=["CUDAExecutionProvider"])


def test_threads_wait_in_a_loop_only_where_speed_is_what_counts(builders):
    spinning = "session.intra_op.allow_spinning"
    options = Session(builders.mlp()).runtime.get_session_options()
    assert options.get_session_config_entry(spinning) == "0"
    options = Session(builders.mlp(), memory_arena=True).runtime.get_session_options()
    with pytest.raises(RuntimeError):
        options.get_session_config_entry(spinning)  # as the runtime has it


def test_attention_with_a_ring_of_slots_runs_on_an_empty_cache(monkeypatch):
    """As onnxruntime-genai's builder writes layers with a sliding window (Gemma)."""
    cache = [helper.make_tensor_value_info(f"past_{n}", 1, [1, 1, "past", 16]) for n in "kv"]
    attention = helper.make_node(
        "GroupQueryAttention",
        ["q", "k", "v", "past_k", "past_v", "seqlens", "total"],
        ["y", "present_k", "present_v"],
        domain="com.microsoft",
        num_heads=1,
        kv_num_heads=1,
        local_window_size=8,
        sliding_window_cache=1,
    )
    graph = helper.make_graph(
        [attention],
        "ring",
        [helper.make_tensor_value_info(name, 1, [1, "n", 16]) for name in "qkv"]
        + cache
        + [helper.make_tensor_value_info("seqlens", 6, [1])]
        + [helper.make_tensor_value_info("total", 6, [])],
        [helper.make_tensor_value_info(name, 1, None) for name in ("y", "present_k", "present_v")],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = load_model(helper.make_model(graph, opset_imports=opsets, ir_version=10))
    tokens = {name: np.ones((1, 4, 16), np.float32) for name in "qkv"}
    empty = {f"past_{name}": np.zeros((1, 1, 0, 16), np.float32) for name in "kv"}
    sizes = {"seqlens": np.array([3], np.int32), "total": np.array(4, np.int32)}
    for limit in (opening.IN_MEMORY_LIMIT, -1):  # as a message, and through a file
        monkeypatch.setattr(opening, "IN_MEMORY_LIMIT", limit)
        found = Session(model).run({**tokens, **empty, **sizes})
        assert found["present_k"].shape == (1, 1, 4, 16)
        np.testing.assert_allclose(found["y"], 1)
    assert model.graph[0].attributes.get_int("sliding_window_cache") == 1


@pytest.mark.parametrize(("size", "memory_arena", "reuse"), [
    ("batch", False, False), ("batch", True, True), (2, False, True),
])  # fmt: skip
def test_buffers_are_shared_where_the_runtime_finds_them_soon(size, memory_arena, reuse):
    nodes = [helper.make_node("Sin", [f"t{n}"], [f"t{n + 1}"]) for n in range(opening._MANY_NODES)]
    info = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [size, 64])
        for name in ("t0", nodes[-1].output[0])
    ]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:])
    model = load_model(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    )
    session = Session(model, memory_arena=memory_arena)
    assert session.runtime.get_session_options().enable_mem_reuse is reuse
    expected = X["x"]
    for _ in nodes:
        expected = np.sin(expected)
    found = session.run({"t0": X["x"]})[nodes[-1].output[0]]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_without_providers_it_is_the_cpu():
    assert checked_providers(None) == ["CPUExecutionProvider"]


def test_a_model_whose_kernels_are_fused_ones_is_opened_with_fusions():
    sizes = numpy_helper.from_array(np.array([4]), "sizes")
    nodes = [
        helper.make_node("Cast", ["x"], ["half"], to=TensorProto.BFLOAT16),
        helper.make_node("Expand", ["half", "sizes"], ["same"]),  # no kernel, and taken away
        helper.make_node("Cast", ["same"], ["y"], to=TensorProto.FLOAT),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
    made = helper.make_graph(nodes, "g", [x], [y], [sizes])
    opset = [helper.make_opsetid("", 17)]
    model = load_model(helper.make_model(made, opset_imports=opset, ir_version=8))
    with pytest.raises(ModelError):
        Session(model, level="disabled")
    assert open_plainly(model).run({"x": np.ones(4, np.float32)})["y"].tolist() == [1, 1, 1, 1]
