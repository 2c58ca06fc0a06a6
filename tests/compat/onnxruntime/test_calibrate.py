"""Calibrators, beside ONNX Runtime's own."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime.quantization.calibrate as peer
import pytest
from support.models import (
    FLOAT16,
    Reader,
    build,
    info,
    make_cnn,
    make_mlp,
    make_samples,
    make_transformer,
    node,
    retype,
    unchanged,
)
from support.peer_numbers import calibrate

import bitwright.compat.onnxruntime.calibrate as ours
from bitwright.compat.onnxruntime import create_calibrator
from bitwright.errors import DataError, RecipeError

MAKERS = [make_cnn, make_transformer, make_mlp]


def halves(samples):
    middle = len(samples) // 2
    return [samples[:middle], samples[middle:]]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("options", [{}, {"symmetric": True}, {"per_channel": True}])
def test_min_max_equals_the_peers_to_the_bit(tmp_path, make, options):
    model = make()
    samples = make_samples(model)
    theirs = calibrate(peer, tmp_path, model, "MinMax", [samples], **options)
    found = calibrate(ours, tmp_path, model, "MinMax", [samples], **options)
    assert found.keys() == theirs.keys()
    for name in theirs.keys():  # noqa: SIM118 (the peer's class has no other way)
        for mine, wanted in zip(found[name].range_value, theirs[name].range_value, strict=True):
            np.testing.assert_array_equal(mine, wanted, strict=True)


def test_min_max_of_float16(tmp_path):
    model = retype(make_mlp(), np.float16, FLOAT16)
    samples = make_samples(model)
    theirs = calibrate(peer, tmp_path, model, "MinMax", [samples])
    found = calibrate(ours, tmp_path, model, "MinMax", [samples])
    for name in found:
        np.testing.assert_array_equal(found[name].highest, theirs[name].highest, strict=True)


@pytest.mark.parametrize("symmetric", [False, True])
def test_several_collections_add_up(tmp_path, symmetric):
    model = make_cnn()
    samples = make_samples(model)
    theirs = calibrate(peer, tmp_path, model, "MinMax", halves(samples), symmetric=symmetric)
    found = calibrate(ours, tmp_path, model, "MinMax", halves(samples), symmetric=symmetric)
    for name in found:
        for mine, wanted in zip(found[name].range_value, theirs[name].range_value, strict=True):
            np.testing.assert_array_equal(mine, wanted)


@pytest.mark.parametrize("parts", [1, 2])
def test_a_moving_average_is_the_peers(tmp_path, parts):
    model = make_mlp()
    samples = make_samples(model, 6)
    cut = [samples] if parts == 1 else halves(samples)
    options = {"moving_average": True, "averaging_constant": 0.3}
    found = calibrate(ours, tmp_path, model, "MinMax", cut, **options)["x"]
    theirs = calibrate(peer, tmp_path, model, "MinMax", cut, **options)["x"]
    np.testing.assert_allclose(found.range_value, theirs.range_value, rtol=1e-6)


DISTRIBUTIONS = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "relu": lambda rng, n: np.maximum(rng.standard_normal(n), 0),
    "one side": lambda rng, n: rng.lognormal(size=n),
    "long tails": lambda rng, n: rng.standard_t(2, size=n),
    "far from zero": lambda rng, n: rng.standard_normal(n) + 30,
    "both far sides": lambda rng, n: rng.choice([-5, 6], n) + 0.1 * rng.standard_normal(n),
    "flat": lambda rng, n: rng.uniform(-2, 3, n),
    "hard swish": lambda rng, n: (lambda x: x * np.clip(x + 3, 0, 6) / 6)(
        rng.normal(scale=3, size=n)
    ),
    "few values": lambda rng, n: rng.integers(-3, 9, n),
    "zeros": lambda rng, n: np.zeros(n),
}


def make_relu():
    return build([node("Relu", ["x"], ["y"])], [info("x", ("n",))], [info("y", ("n",))])


def same_ranges(mine, theirs, bin_widths):
    assert mine.keys() == theirs.keys()
    for name, data in mine.items():
        for found, wanted in zip(data.range_value, theirs[name].range_value, strict=True):
            width = float(data.bins[1] - data.bins[0])
            assert float(found) == pytest.approx(float(wanted), abs=bin_widths * width), name
            assert found.dtype == wanted.dtype


@pytest.mark.parametrize("kind", DISTRIBUTIONS)
@pytest.mark.parametrize(
    ("method", "options"),
    [
        *(
            ("Entropy", {"num_bins": bins, "num_quantized_bins": levels, "symmetric": symmetric})
            for bins, levels, symmetric in (
                (128, 128, False), (256, 128, True), (256, 255, False), (512, 128, False),
                (512, 255, True), (301, 128, False),
            )
        ),
        *(
            ("Percentile", {"num_bins": bins, "percentile": part, "symmetric": symmetric})
            for bins in (128, 256, 512, 2048, 8001)
            for part in (90.0, 99.999)
            for symmetric in (False, True)
        ),
    ],
)  # fmt: skip
@pytest.mark.sampled(50)
def test_histogram_methods_give_the_peers_answer(tmp_path, kind, method, options):
    rng = np.random.default_rng([len(kind), len(options), options["num_bins"]])
    values = [DISTRIBUTIONS[kind](rng, 500).astype(np.float32) for _ in range(4)]
    samples = [{"x": value} for value in values]
    theirs = calibrate(peer, tmp_path, make_relu(), method, [samples], **options)
    found = calibrate(ours, tmp_path, make_relu(), method, [samples], **options)
    same_ranges(found, theirs, 0)


@pytest.mark.parametrize(("kind", "levels"), [("long tails", 255), ("hard swish", 128)])
@pytest.mark.slow
def test_entropy_of_2048_bins_gives_the_peers_answer(tmp_path, kind, levels):
    values = DISTRIBUTIONS[kind](np.random.default_rng(levels), 4000).astype(np.float32)
    options = {"num_bins": 2048, "num_quantized_bins": levels}
    theirs, found = (
        calibrate(module, tmp_path, make_relu(), "Entropy", [[{"x": values}]], **options)
        for module in (peer, ours)
    )
    same_ranges(found, theirs, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "levels"), [("relu", 128), ("long tails", 255), ("hard swish", 128), ("flat", 255)]
)
def test_entropy_of_8001_bins_gives_the_peers_answer(tmp_path, kind, levels):
    values = DISTRIBUTIONS[kind](np.random.default_rng(levels), 20_000).astype(np.float32)
    options = {"num_bins": 8001, "num_quantized_bins": levels}
    theirs, found = (
        calibrate(module, tmp_path, make_relu(), "Entropy", [[{"x": values}]], **options)
        for module in (peer, ours)
    )
    same_ranges(found, theirs, 0)


@pytest.mark.parametrize("kind", DISTRIBUTIONS)
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("Entropy", {"num_bins": 256}),
        ("Percentile", {"percentile": 98.0, "num_bins": 256}),
        ("Percentile", {"percentile": 98.0, "num_bins": 256, "symmetric": False}),
    ],
)
@pytest.mark.sampled(8)
def test_several_collections_stay_within_one_bin_of_the_peers(tmp_path, kind, method, options):
    rng = np.random.default_rng(1)
    values = [DISTRIBUTIONS[kind](rng, 1000).astype(np.float32) for _ in range(3)]
    parts = [[{"x": value}] for value in (values[0], 1.7 * values[1], 1.2 * values[2])]
    theirs = calibrate(peer, tmp_path, make_relu(), method, parts, **options)
    found = calibrate(ours, tmp_path, make_relu(), method, parts, **options)
    same_ranges(found, theirs, 1)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("Percentile", {}),
        ("Percentile", {"percentile": 99.0, "symmetric": False}),
        ("Distribution", {}),
        ("Distribution", {"scenario": "p3", "num_bins": 1024}),
        ("Entropy", {"num_bins": 160, "num_quantized_bins": 128}),
    ],
)
@pytest.mark.sampled(4)
def test_histogram_methods_give_the_peers_answer_for_whole_models(tmp_path, make, method, options):
    model = make()
    samples = make_samples(model, 16)
    theirs = calibrate(peer, tmp_path, model, method, [samples], **options)
    found = calibrate(ours, tmp_path, model, method, [samples], **options)
    if method != "Distribution":
        same_ranges(found, theirs, 0)
        return
    for name, data in found.items():
        np.testing.assert_array_equal(data.hist, theirs[name].hist)
        for mine, wanted in zip(data.range_value, theirs[name].range_value, strict=True):
            assert mine == wanted
        for mine, wanted in zip(data.avg_std, theirs[name].avg_std, strict=True):
            assert float(mine) == pytest.approx(float(wanted), abs=1e-4 * float(data.highest))


def test_the_histogram_counts_every_value(tmp_path):
    model = make_mlp()
    samples = make_samples(model)
    found = calibrate(ours, tmp_path, model, "Percentile", [samples], num_bins=64)["x"]
    assert found.hist.shape == (64,) and found.bins.shape == (65,)
    assert found.hist.sum() == sum(sample["x"].size for sample in samples)


def test_entropy_searches_where_bins_are_more_than_levels(tmp_path):
    model = make_mlp(width=64)
    samples = make_samples(model, 32, open_size=64)
    for sample in samples:
        sample["x"] = sample["x"] ** 3  # long tails
    wide = calibrate(ours, tmp_path, model, "MinMax", [samples])["x"]
    found = calibrate(ours, tmp_path, model, "Entropy", [samples])["x"]
    theirs = calibrate(peer, tmp_path, model, "Entropy", [samples])["x"]
    np.testing.assert_array_equal(found.range_value, theirs.range_value)
    found = calibrate(ours, tmp_path, model, "Entropy", [samples], num_bins=2048)["x"]
    assert wide.lowest < found.lowest < 0 < found.highest < wide.highest


def test_only_the_tensors_of_the_named_types(tmp_path):
    model = make_cnn()
    samples = make_samples(model)
    theirs = calibrate(peer, tmp_path, model, "MinMax", [samples], ["Gemm"])
    found = calibrate(ours, tmp_path, model, "MinMax", [samples], ["Gemm"])
    assert found.keys() == theirs.keys() == {"f", "y"}


def test_samples_of_different_sizes_and_any_data(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(make_mlp(), path)
    calibrator = create_calibrator(path, calibrate_method="Percentile")
    calibrator.collect_data([{"x": np.ones((n, 16), np.float32)} for n in (1, 5, 2)])
    assert float(calibrator.compute_data()["x"].highest) == 1.0


def test_a_calibrator_writes_nothing_until_asked(tmp_path, monkeypatch):
    onnx.save(make_mlp(), tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    with unchanged(tmp_path):
        calibrator = create_calibrator("model.onnx")
        calibrator.collect_data(Reader(make_samples(make_mlp())))
        assert "x" in calibrator.compute_data()
    calibrator.augment_graph()
    augmented = onnx.load(tmp_path / "augmented_model.onnx")
    assert {value.name for value in augmented.graph.output} == {"y", "h", "a", "r"}
    assert {o.name for o in calibrator.infer_session.get_outputs()} == {"y", "h", "a", "r"}


def test_the_old_ways_in(tmp_path):
    onnx.save(make_mlp(), tmp_path / "model.onnx")
    calibrator = ours.MinMaxCalibrater(str(tmp_path / "model.onnx"), ["MatMul"], symmetric=True)
    calibrator.set_execution_providers(["CPUExecutionProvider"])
    tensors, infos = calibrator.select_tensors_to_calibrate(calibrator.model)
    assert tensors == {"x", "h", "r", "y"} <= infos.keys()
    calibrator.collect_data(Reader(make_samples(make_mlp())))
    lowest, highest = calibrator.compute_data()["h"].range_value
    assert lowest == -highest


@pytest.mark.parametrize("method", ["MinMax", "Entropy", "Percentile"])
def test_op_types_that_no_node_has_give_no_ranges(tmp_path, method):
    onnx.save(make_mlp(), tmp_path / "model.onnx")
    calibrator = create_calibrator(
        tmp_path / "model.onnx", ["Conv"], calibrate_method=ours.CalibrationMethod[method]
    )
    calibrator.collect_data(Reader(make_samples(make_mlp())))
    assert not calibrator.compute_data().keys()


def test_nothing_collected_is_an_error(tmp_path):
    onnx.save(make_mlp(), tmp_path / "model.onnx")
    calibrator = create_calibrator(tmp_path / "model.onnx")
    with pytest.raises(DataError, match="No data is collected"):
        calibrator.compute_data()
    with pytest.raises(DataError, match="has no samples"):
        calibrator.collect_data(Reader([]))


@pytest.mark.parametrize(
    ("method", "options", "said"),
    [
        ("MinMax", {"moving_average": True, "averaging_constant": 2}, "averaging_constant"),
        ("MinMax", {"moving_average": True, "per_channel": True}, "per_channel"),
        ("Percentile", {"percentile": 101}, "percentile lies in"),
        ("Distribution", {"scenario": "p4"}, "unknown scenario"),
        ("Distribution", {"num_bins": 128}, "512 bins"),
        ("Minmax", {}, "Did you mean 'MinMax'"),
    ],
)
def test_bad_options_are_refused_in_a_sentence(tmp_path, method, options, said):
    onnx.save(make_mlp(), tmp_path / "model.onnx")
    with pytest.raises(RecipeError, match=said):
        create_calibrator(tmp_path / "model.onnx", calibrate_method=method, extra_options=options)


def collected(module, method, symmetric, parts):
    collector = module.HistogramCollector(method, symmetric, 2048, 128, 99.0, "same")
    for values in parts:
        collector.collect({"x": values})
    return collector.compute_collection_result()["x"]


@pytest.mark.parametrize("method", ["percentile", "entropy", "distribution"])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.sampled(2)
def test_a_collector_of_arrays_finds_the_peers_range(method, symmetric, capsys):
    values = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    mine, theirs = (collected(module, method, symmetric, [values]) for module in (ours, peer))
    if method == "distribution":
        mine, theirs = ((*t.range_value, t.hist, *t.avg_std) for t in (mine, theirs))
    if method == "percentile":  # there, the first two counts stand for counts and edges
        assert mine[2].sum() == values.size and mine[3].size == mine[2].size + 1
        mine, theirs = mine[:2], theirs[:2]
    for found, wanted in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


def test_a_collector_takes_more_arrays_lists_of_them_and_needs_some():
    values = np.linspace(-1, 1, 513, dtype=np.float32)
    found = collected(ours, "percentile", False, [values, [values * 2, values * 3]])
    assert found[2].sum() == 3 * 513
    assert found[1] > 2
    with pytest.raises(ValueError, match="not been collected"):
        collected(ours, "percentile", False, [])
    with pytest.raises(ValueError, match="Only 'entropy', 'percentile' or 'distribution'"):
        collected(ours, "percentil", False, [values])


@pytest.mark.parametrize("options", [{}, {"moving_average": True, "averaging_constant": 0.25}])
@pytest.mark.parametrize("old", [None, {"x": (np.float32(-2), np.float32(1))}])
def test_ranges_merge_as_the_peers(options, old, tmp_path):
    onnx.save(make_mlp(), tmp_path / "m.onnx")
    merged = []
    for module in (ours, peer):
        calibrater = module.MinMaxCalibrater(str(tmp_path / "m.onnx"), **options)
        new = {"x": (np.float32(-1), np.float32(3))}
        merged.append(calibrater.merge_range(old, new)["x"])
    assert merged[0] == merged[1]


@pytest.mark.parametrize("method", ["MinMax", "Percentile"])
def test_what_is_cleared_is_forgotten(method):
    model = make_mlp()
    calibrator = create_calibrator(model, calibrate_method=method)
    calibrator.collect_data(Reader(make_samples(model)))
    calibrator.clear_collected_data()
    with pytest.raises(DataError, match=r"(?i)no data is collected"):
        calibrator.compute_data()


@pytest.mark.parametrize(
    ("method", "options", "said"),
    [
        ("MinMax", {"num_bins": 3}, "'num_bins' of MinMaxCalibrater is unknown and ignored"),
        ("Percentile", {"percentil": 3}, "Did you mean 'percentile'"),
    ],
)
def test_options_of_other_methods_are_ignored(tmp_path, method, options, said):
    onnx.save(make_mlp(), tmp_path / "model.onnx")
    with pytest.warns(UserWarning, match=said):
        create_calibrator(tmp_path / "model.onnx", calibrate_method=method, extra_options=options)
