import math
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitwright.assess.bench.profile import NodeTime, Profile
from bitwright.decide.placement.kernels import KERNELS
from bitwright.jobs.cost_table import (
    Timing,
    fast_runs,
    fit_costs,
    make_table,
    measure_costs,
    measure_times,
    times_of,
)
from bitwright.jobs.micro_nets import micro_nets
from bitwright.run.optimized import optimize_model
from bitwright.targets.costs import Cost, Work, read_costs, write_costs

PRICES = st.floats(0.1, 50)


@pytest.fixture(scope="module")
def nets():
    return list(micro_nets())


@given(costs=st.lists(st.tuples(*[PRICES | st.just(0.0)] * 4), min_size=1, max_size=3))
@settings(max_examples=50, deadline=None)
def test_planted_costs_are_found_again(costs):
    rng = np.random.default_rng(0)
    planted = {f"k{i}": Cost(*prices) for i, prices in enumerate(costs)}
    timings = []
    for name, cost in planted.items():
        for macs, read, written in 10 ** rng.uniform(2, 6, (12, 3)):
            work = Work(name, 100 * macs, read, written)
            timings.append(Timing(work, cost.of(work)))
    found = fit_costs(timings)
    for work, us in timings:
        assert found[work.kernel].of(work) == pytest.approx(us, rel=0.15, abs=0.5)


def test_noise_does_not_make_a_cost_negative():
    rng = np.random.default_rng(1)
    works = [Work("k", 0, n, n) for n in rng.integers(1000, 100_000, 20)]
    timings = [Timing(work, 5 + work.read / 500 * rng.uniform(0.9, 1.1)) for work in works]
    cost = fit_costs(timings)["k"]
    assert min(cost.call, cost.macs, cost.read, cost.written) >= 0
    assert cost.read + cost.written == pytest.approx(2, rel=0.1)


def test_the_nets_measure_every_kernel(nets):
    counts = defaultdict(set)
    for net in nets:
        for work in net.works.values():
            counts[work.kernel].add(work)
    assert set(counts) - {"fused"} == set(KERNELS) - {"fused"}
    assert all(len(works) >= 2 for name, works in counts.items() if name != "fused")


MEASURED = {
    "Conv": "conv_blocked conv_pointwise conv_depthwise conv_grouped conv_few_channels "
    "conv_columns conv_columns_grouped qconv qconv_pointwise qconv_few_channels qconv_depthwise "
    "qconv_depthwise_plain qconv_columns qconv_columns_grouped",
    "ConvTranspose": "conv_transpose",
    "MatMul": "gemm gemm_row matmul qgemm qgemm_row qmatmul",
    "LSTM": "recurrent",
    "MaxPool": "pool pool_blocked qpool_max qpool_max_plain",
    "AveragePool": "pool pool_blocked pool_average_19 qpool_average",
    "GlobalAveragePool": "global_pool global_pool_blocked qpool_global",
    "Resize": "resize_nearest resize_nearest_blocked resize_linear resize_linear_blocked "
    "byte_resize_nearest",
    "Add": "add qadd qhard_sigmoid",
    "Mul": "add multiply_channels qmul qhard_swish",
    **dict.fromkeys(["Neg", "Relu", "HardSigmoid"], "activation_cheap"),
    **dict.fromkeys(["Tanh", "Exp"], "activation_dear"),
    **dict.fromkeys(["Erf", "Gelu"], "gelu"),
    "Sigmoid": "activation_dear qtable",
    "LeakyRelu": "qtable",
    "LayerNormalization": "normalization",
    "Softmax": "softmax softmax_axis qsoftmax qsoftmax_axis",
    "ReduceMean": "reduce reduce_last",
    "Concat": "copy qconcat",
    "Slice": "copy byte_copy",
    "Gather": "gather byte_gather",
    "Transpose": "transpose byte_transpose",
    "Reshape": "view",
    "QuantizeLinear": "quantize quantize_image",
    "DequantizeLinear": "dequantize dequantize_image",
}


def test_the_nets_of_an_operator_measure_its_kernels(nets):
    found = defaultdict(set)
    for net in nets:
        for one in net.model.graph:
            if one.name in net.works:
                found[one.op_type].add(net.works[one.name].kernel)
    assert found == {op: set(kernels.split()) for op, kernels in MEASURED.items()}


@pytest.mark.parametrize(
    ("kernel", "op"),
    [
        ("qconv_pointwise", "QLinearConv"),
        ("qconv_columns_grouped", "QLinearConv"),
        ("qgemm", "QLinearMatMul"),
        ("qpool_max", "NhwcMaxPool"),
        ("qpool_average", "QLinearAveragePool"),
        ("qhard_swish", "QLinearMul"),
        ("qhard_sigmoid", "QLinearAdd"),
        ("qconcat", "QLinearConcat"),
        ("quantize_image", "QuantizeLinear"),
    ],
)
def test_the_runtime_computes_a_net_in_integers(nets, kernel, op):
    net = next(net for net in nets if kernel in {work.kernel for work in net.works.values()})
    found = optimize_model(net.model, level="all", providers=["CPUExecutionProvider"])
    ran = [node.op_type for node in found.model.graph]
    assert op in ran
    if not net.name.startswith("borders"):
        assert not {"QuantizeLinear", "DequantizeLinear"} & set(ran)


def profile_of(*nodes):
    return Profile(tuple(NodeTime(name, "op", kind, us / 1e3) for name, kind, us in nodes), 1)


def test_what_the_runtime_adds_counts_with_the_node_in_the_middle(nets):
    net = next(net for net in nets if "qhard_swish" in {w.kernel for w in net.works.values()})
    found = times_of(
        net,
        profile_of(
            ("reorder", "layout", 100),  # of the net's own input
            ("a", "integer", 10),
            ("t1", "layout", 1),
            ("b__gate", "integer", 20),
            ("b", "integer", 30),
            ("t2", "layout", 2),
            ("y", "integer", 40),
            ("t3", "layout", 100),
        ),
        overhead=0.5,
    )
    assert found == pytest.approx({"a": 10.5, "b": 55, "y": 40.5})


def test_a_border_has_what_is_between_it_and_its_neighbours(nets):
    net = next(net for net in nets if net.name.startswith("borders"))
    found = times_of(
        net,
        profile_of(
            ("a", "float", 10),
            ("r1", "layout", 1),
            ("a_Q", "quantizer", 5),
            ("t1", "layout", 2),
            ("b", "integer", 20),
            ("t2", "layout", 3),
            ("b_DQ", "quantizer", 6),
            ("y", "float", 10),
        ),
    )
    assert found == pytest.approx({"a": 10, "a_Q": 8, "b": 20, "b_DQ": 9, "y": 10})


def test_a_table_says_of_which_machine_it_is(tmp_path):
    table = make_table([Timing(Work("view"), 2.0), Timing(Work("view"), 2.0)])
    assert table.cpu == read_costs().cpu
    assert table.processor
    assert set(table.versions) == {"bitwright", "onnxruntime"}
    assert table.kernels == {"fused": Cost(), "view": Cost(call=2.0)}
    write_costs(table, tmp_path / "table.json")
    assert read_costs(tmp_path / "table.json") == table


@pytest.mark.slow
def test_a_few_nets_are_measured_for_real(nets):
    few = [net for net in nets if "MatMul(x, w)" in net.name and "x[128, " in net.name]
    timings = measure_times(few, seconds=0.3)
    assert len(timings) == len(few)
    times = {timing.work: timing.time for timing in timings}
    assert all(0 < us < math.inf for us in times.values())
    small, large = sorted((w for w in times if w.kernel == "gemm"), key=lambda w: w.macs)[
        :: len(few) // 2 - 1
    ]
    assert times[large] > 3 * times[small]


@pytest.mark.slow
def test_a_whole_table_is_measured(tmp_path):
    table = measure_costs(seconds=3)
    write_costs(table, tmp_path / "mine.json")
    read = read_costs(tmp_path / "mine.json")
    assert set(read.kernels) == set(KERNELS)
    big = Work("conv_pointwise", 1e8, 1e5, 1e5)
    assert 100 < read.time(big) < 100_000


def test_a_time_is_the_mean_of_the_fastest_third():
    assert fast_runs([3.0, 9.0, 2.0, 1.0, 8.0, 7.0]) == 1.5
