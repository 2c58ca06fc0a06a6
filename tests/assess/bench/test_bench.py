"""What a benchmark holds and how it is made; never how long anything takes."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import onnx
import pytest
from support.models import build, make_cnn, make_mlp, make_samples, node, normal, weight
from support.pair_models import make_conv

import bitwright
from bitwright import graph
from bitwright.assess import BenchRequest, bench_models
from bitwright.assess.bench.profile import (
    Event,
    Facts,
    NodeTime,
    Profile,
    Ran,
    profile_models,
    read_events,
)
from bitwright.assess.bench.results import Benchmark, ModelBenchmark
from bitwright.assess.clock import FEWEST_ROUNDS, read_clock
from bitwright.data.specs import InputSpec
from bitwright.errors import BitwrightError, DataError, ModelError, TargetError


def time_models(models, **options):
    return bench_models(models, BenchRequest(profile=False, progress=False, **options))


@pytest.fixture(scope="module", autouse=True)
def clock():
    """Let no test wait for the clock, or depend on what it says."""
    with pytest.MonkeyPatch.context() as patch:
        given = []

        def time_fakes(models, samples, **options):
            given.append((models, samples, options))
            return [read_clock([(2.0, 1.0)] * 5) for _ in models[1:]]

        patch.setattr("bitwright.assess.bench.time_models", time_fakes)
        yield given


# A whole benchmark ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """A float model against one with a Conv that cannot be fused."""
    folder = tmp_path_factory.mktemp("bench")
    constants = {"w": normal(4, 3, 3, 3)}
    plain = build([node("Conv", ["x", "w"], ["conv"], name="conv")],
                  {"x": [1, 3, 8, 8]}, {"conv": [1, 4, 6, 6]}, constants)  # fmt: skip
    onnx.save(plain, folder / "float.onnx")
    onnx.save(make_conv(paired=False), folder / "unfused.onnx")
    paths = [folder / "float.onnx", folder / "unfused.onnx"]
    return bench_models(paths, BenchRequest(runs=12, progress=False))


def test_every_figure_is_there(found):
    for model in found.models:
        assert len(model.times) == 12
        assert 0 < min(model.times) <= model.median <= model.p90 <= max(model.times)
        assert min(model.times) <= model.mean <= max(model.times)
        assert math.isclose(model.throughput * model.mean, 1000)
        assert model.peak_memory > model.runtime_memory > 1_000_000
        assert model.memory_source in ("VmHWM", "ru_maxrss", "peak working set")
        assert model.open_seconds > 0
    assert found.models[0].size == graph.file_size(found.models[0].name)
    assert math.isclose(found.speedup(), found.models[0].median / found.models[1].median)
    assert math.isclose(found.shrinkage(), found.models[0].size / found.models[1].size)
    assert "12/12 interleaved runs" in found.detail


def test_a_node_that_fell_back_to_float_is_named_with_its_reason(found):
    (conv,) = found.float_nodes()
    assert (conv.name, conv.kind) == ("conv", "float")
    assert conv.reason == "its output 'conv' has no Q/DQ pair"
    assert found.float_nodes(0) == []


def test_what_the_runtime_added_stands_behind_a_node_of_the_model():
    """It computes HardSwish by two nodes of its own names."""
    model = build(
        [
            node("MatMul", ["x", "w"], ["y"], "product"),
            node("Transpose", ["y"], ["t"], "turn"),
            node("HardSwish", ["t"], ["z"], "swish"),
        ],
        {"x": (4, 8)},
        {"z": (6, 4)},
        {"w": weight(8, 6)},
    )
    [profile] = profile_models([graph.load_model(model)], [make_samples(model, 1)], seconds=0.01)
    behind = {each.op: each.behind or each.name for each in profile.nodes}
    assert len(behind) > 2
    assert set(behind.values()) <= {"product", "turn", "swish"}


def test_the_profile_tells_what_ran(found):
    plain, quantized = (model.profile for model in found.models)
    # On x86 the runtime computes a Conv in a layout of its own, and reorders the result.
    computed = [node for node in plain.nodes if node.kind != "layout"]
    assert [(n.name, n.kind, n.reason) for n in computed] == [("conv", "float", None)]
    quantizers = {node.op for node in quantized.nodes if node.kind == "quantizer"}
    assert quantizers == {"QuantizeLinear", "DequantizeLinear"}
    assert math.isclose(sum(row.share for row in quantized.by_op()), 1.0)
    assert quantized.runs >= 3


def test_it_comes_as_plain_data_and_as_tables(found):
    document = found.to_dict()
    first, second = document["models"]
    assert "speedup" not in first
    assert second["speedup"] == found.speedup()
    assert second["runs_in_float"][0]["name"] == "conv"
    assert second["profile"]["ops"][0]["share"] > 0
    assert "0.50 (0.48 to 0.52)" in found._repr_html_()


def test_each_model_is_timed_beside_the_first_on_one_thread_and_on_all_cores(found):
    first, second = found.models
    assert first.clocks == ()
    everywhere, alone = second.clocks
    assert everywhere.threads is None and everywhere.rounds == 10
    assert everywhere.low <= everywhere.ratio <= everywhere.high
    assert alone.ratio == 0.5
    assert [row["threads"] for row in found.to_dict()["models"][1]["beside_first"]] == [None, 1]
    assert alone.describe(found.yardstick) in found.summary()


def test_the_clock_has_the_time_and_the_samples_of_the_models(clock):
    clock.clear()
    time_models([make_mlp(), make_mlp()], runs=2, threads=1)
    time_models([make_mlp(), make_mlp()], seconds=0.05)
    (models, samples, options), (_, _, later) = clock
    assert len(models) == len(samples) == 2 and samples[0].keys() == {"x"}
    assert options["budget"] == 2.0 and later["budget"] == 0.1
    time_models([make_mlp()], runs=2)
    assert len(clock) == 2  # one model is beside nothing


def test_too_few_rounds_tell_no_ratio():
    found = time_models([make_mlp(), make_mlp()], runs=FEWEST_ROUNDS - 1)
    assert [one.threads for one in found.models[1].clocks] == [1]


def test_a_float_model_runs_as_it_is_prepared(clock):
    demo = bitwright.load_demo()
    quantized = bitwright.quantize(demo.model_path, recipe="int8-dynamic", force_dynamic=True).model
    options = {"runs": 2, "profile": False, "progress": False}
    for given, prepared in (
        ([demo.model_path, quantized], True),
        ([demo.model_path, quantized, False], False),
        ([quantized, quantized], False),
    ):
        clock.clear()
        prepare = given[2:] != [False]
        found = bitwright.bench(given[:2], prepare=prepare, **options)
        [(models, _, _)] = clock
        ops = {one.op_type for one in models[0].graph}
        assert found.prepared == prepared and ("BatchNormalization" in ops) != (
            prepared or given[0] is quantized
        )
        assert ("after our float passes" in found.detail) == prepared
    assert bitwright.bench(demo.model_path, **options).prepared is False
    found = bitwright.bench([demo.model_path, quantized], **options)
    assert found.models[0].name == str(demo.model_path)
    assert found.models[0].size == demo.model_path.stat().st_size


def test_integer_arithmetic_is_told_from_float(tmp_path):
    found = bench_models([make_conv(bias="int32")], BenchRequest(runs=2, progress=False))
    kinds = {node.name: node.kind for node in found.models[0].profile.nodes}
    assert kinds["conv"] == "integer"


def test_models_in_memory_have_numbers_for_names():
    found = time_models([make_mlp(), graph.load_model(make_mlp())], runs=2)
    assert [model.name for model in found.models] == ["model 1", "model 2"]
    assert [model.profile for model in found.models] == [None, None]


def test_nothing_stays_on_disk_and_no_process_stays(tmp_path, monkeypatch):
    psutil = pytest.importorskip("psutil")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    bench_models([make_mlp()], BenchRequest(runs=2, progress=False))
    assert not list(tmp_path.iterdir())
    words = [" ".join(child.cmdline()) for child in psutil.Process().children()]
    assert not [each for each in words if "answering.py" in each]


# What became slower ---------------------------------------------------------------------------


def figures(name, *nodes):
    profile = Profile(tuple(nodes), 5)
    return ModelBenchmark(
        name=name, size=1, times=(1.0,), items=1, open_seconds=0.0, peak_memory=None,
        runtime_memory=None, memory_source="", profile=profile,
    )  # fmt: skip


def test_slower_nodes_are_matched_by_name_and_explained():
    first = figures(
        "float",
        NodeTime("a", "FusedConv", "float", 10.0),
        NodeTime("b", "Gemm", "float", 5.0),
        NodeTime("c", "Softmax", "float", 1.0),
        NodeTime("d", "Relu", "float", 1.0),
        NodeTime("e", "Relu", "float", 0.001),
    )
    second = figures(
        "int8",
        NodeTime("a", "QLinearConv", "integer", 4.0),
        NodeTime("b", "Gemm", "float", 9.0, "its bias is float"),
        NodeTime("c", "QLinearSoftmax", "integer", 2.0),
        NodeTime("d", "Relu", "float", 1.05),
        NodeTime("e", "Relu", "float", 0.01),
        NodeTime("q", "QuantizeLinear", "quantizer", 7.0),
    )
    slower = Benchmark((first, second), "", None, ("CPUExecutionProvider",)).slower_nodes()
    assert [(node.name, node.before, node.after) for node in slower] == [
        ("b", 5.0, 9.0),
        ("c", 1.0, 2.0),
    ]
    assert slower[0].reason == "it runs in float: its bias is float"
    assert slower[1].reason == "the integer kernel QLinearSoftmax is slower here than Softmax"


# Data -----------------------------------------------------------------------------------------


def open_model():
    """A model with an open batch and an open length."""
    return build(
        [node("Relu", ["x"], ["y"], name="relu")],
        {"x": ["batch", "length", 4]},
        {"y": ["batch", "length", 4]},
    )


def test_open_dimensions_are_settled_and_batches_counted():
    found = time_models([open_model()], shapes={"length": 3}, batch=8, runs=2)
    assert found.models[0].items == 8
    data = [{"x": normal(1, 5, 4)}] * 3
    found = time_models([open_model()], data=data, batch=2, runs=2)
    assert found.models[0].items == 2
    assert found.data == "list of samples"


def test_data_that_can_be_read_once_serves_all_models():
    data = ({"x": normal(1, 5, 4)} for _ in range(3))
    assert len(time_models([open_model(), open_model()], data=data, runs=2).models) == 2


def mixed_lengths():
    return [{"x": normal(1, length, 4)} for length in (3, 5)]


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({}, DataError, "dimension 1 .'length'. of input 'x'"),
        ({"shapes": {"lenght": 3}}, DataError, "Did you mean 'length'"),
        ({"data": mixed_lengths(), "shapes": {"length": 3}}, DataError, "are for random data"),
        ({"data": mixed_lengths(), "batch": 2}, DataError, "cannot be put into one batch"),
        ({"shapes": {"length": 3}, "batch": 0}, DataError, "at least 1 sample"),
        ({"runs": 0}, TargetError, "runs must be at least 1"),
        ({"threads": 0}, TargetError, "threads must be at least 1"),
        ({"seconds": 0}, TargetError, "seconds must be above 0"),
        ({"providers": ["CPUExecutionProvder"]}, TargetError, "Did you mean 'CPU"),
    ],
)
def test_what_cannot_be_timed_is_told_in_a_sentence(options, error, said):
    with pytest.raises(error, match=said):
        time_models([open_model()], **options)


def test_a_batch_needs_an_open_dimension():
    with pytest.raises(DataError, match="fixed; a batch needs an open one"):
        time_models([make_cnn()], batch=4, runs=1)


def test_no_model_and_a_broken_model_are_errors(tmp_path):
    with pytest.raises(ModelError, match="give at least one"):
        time_models([])
    with pytest.raises(ModelError):
        time_models([tmp_path / "missing.onnx"], runs=1)
    odd = build([node("Unheard", ["x"], ["y"], domain="com.example")], {"x": [1]}, {"y": [1]},
                domains=["com.example"])  # fmt: skip
    with pytest.raises(BitwrightError, match="ONNX Runtime refuses 'model 1'"):
        time_models([odd], runs=1)


def test_a_run_that_fails_is_told_with_the_model():
    model = build(
        [node("Reshape", ["x", "to"], ["y"], name="shape")],
        {"x": ["n"]}, {"y": None}, {"to": np.array([7, 3])},
    )  # fmt: skip
    with pytest.raises(ModelError, match="cannot run 'model 1'"):
        time_models([model], runs=1)


def test_events_of_a_node_are_added_up_run_by_run():
    facts = Facts("Relu", [{"float": msgspec.Raw(b"[3]")}])
    events = [Event("model_run", "Session", ts, 10) for ts in (0, 20)]
    times = ((1, 9000), (21, 2000), (25, 1000))  # the first run is left out
    events += [Event("a_kernel_time", "Node", *when, facts) for when in times]
    assert read_events(events) == ({"a": 3.0}, {"a": Ran("Relu", "float")}, 1)


def test_a_batch_is_put_along_the_leading_dimension():
    spec = InputSpec("x", np.dtype("float32"), ("n", 3))
    samples, what = BenchRequest(batch=8).open_samples([spec])
    assert (samples[0]["x"].shape, what) == ((8, 3), "random data (seed 0)")
