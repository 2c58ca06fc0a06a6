"""`MatMulNBitsQuantizer`: ONNX Runtime's arguments, values and command, without its holes."""

import inspect
import logging

import numpy as np
import onnx
import pytest
from onnx import helper
from support.models import (
    INT64,
    build,
    constants_of,
    info,
    make_mlp,
    node,
    normal,
    ops,
    run,
    weight,
)

import bitwright.compat.onnxruntime.matmul_nbits_quantizer as ours
from bitwright.compat.onnxruntime import QuantFormat
from bitwright.compat.onnxruntime.matmul_nbits_quantizer import (
    DefaultWeightOnlyQuantConfig,
    GPTQWeightOnlyQuantConfig,
    HQQWeightOnlyQuantConfig,
    KQuantWeightOnlyQuantConfig,
    MatMulNBitsQuantizer,
    NVAWQWeightOnlyQuantConfig,
    RTNWeightOnlyQuantConfig,
    main,
)
from bitwright.errors import DataError, RecipeError

peer = pytest.importorskip("onnxruntime.quantization.matmul_nbits_quantizer")


def two_layers(k=64, opset=21):
    constants = {"w1": weight(k, 96), "w2": weight(96, 32, seed=1)}
    nodes = [
        node("MatMul", ["x", "w1"], ["h"], name="fc1"),
        node("Relu", ["h"], ["r"], name="relu"),
        node("MatMul", ["r", "w2"], ["y"], name="fc2"),
    ]
    return build(nodes, {"x": ["m", k]}, {"y": ["m", 32]}, constants, opset=opset)


def process(model, **options):
    quantizer = MatMulNBitsQuantizer(model, **options)
    quantizer.process()
    return quantizer.model


def attributes(model):
    return {
        n.name: {a.name: helper.get_attribute_value(a) for a in n.attribute}
        for n in model.nodes()
        if n.op_type == "MatMulNBits"
    }


def closeness(model, found, x):
    wanted, got = run(model, {"x": x})[0], run(found.model, {"x": x})[0]
    return np.corrcoef(wanted.ravel(), got.ravel())[0, 1]


@pytest.mark.parametrize("name", [n for n in ours.__all__ if n != "main"])
def test_arguments_and_defaults_are_those_of_the_runtime(name):
    shown = []
    for module in (ours, peer):
        parameters = inspect.signature(getattr(module, name)).parameters.values()
        shown.append([(p.name, str(p.default)) for p in parameters])
    mine, theirs = shown
    assert mine[: len(theirs)] == theirs
    # What a function has beyond the runtime's need not be given.
    assert all(default == "None" for _, default in mine[len(theirs) :])


@pytest.mark.parametrize("algorithm", ["k_quant", "rtn"])
def test_rtn_quantize_takes_the_algorithm(algorithm):
    model = two_layers()
    first, second = [n.name for n in model.graph.node if n.op_type == "MatMul"][:2]
    found = ours.rtn_quantize(model, {first: "fp32"}, scheme="sym", algorithm=algorithm)
    assert [n.op_type for n in found.nodes() if n.name.startswith(first)] == ["MatMul"]
    packed = next(n for n in found.nodes() if n.name.startswith(second))
    assert packed.op_type == "MatMulNBits"
    # k-quants have zero points, whatever is asked for.
    assert (len(packed.input) > 3) == (algorithm == "k_quant")


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("k", [64, 70])
def test_the_default_gives_the_codes_and_scales_of_the_runtime(bits, symmetric, k):
    model, options = two_layers(k), {"bits": bits, "block_size": 32, "is_symmetric": symmetric}
    mine = constants_of(process(model, **options).model)
    twin = onnx.ModelProto()
    twin.CopyFrom(model)
    quantizer = peer.MatMulNBitsQuantizer(twin, **options)
    quantizer.process()
    other = constants_of(quantizer.model.model)
    for name in ("w1", "w2"):
        codes = next(a for key, a in other.items() if key.startswith(f"{name}_Q"))
        scales = next(a for key, a in other.items() if key.startswith(f"{name}_scale"))
        np.testing.assert_allclose(mine[f"{name}_scales"].ravel(), scales.ravel(), rtol=1e-5)
        # Ties are rounded to even here and away from zero there; what fills the last block differs.
        full = slice(-1 if k % 32 else None)
        assert (mine[f"{name}_Q{bits}"][:, full] == codes[:, full]).mean() > 0.99


@pytest.mark.parametrize(
    "config",
    [
        None,
        DefaultWeightOnlyQuantConfig(block_size=32),
        RTNWeightOnlyQuantConfig(),
        KQuantWeightOnlyQuantConfig(),
        HQQWeightOnlyQuantConfig(block_size=32),
        GPTQWeightOnlyQuantConfig([{"x": normal(32, 70, seed=s)} for s in range(4)]),
    ],
    ids=lambda config: "none" if config is None else config.algorithm,
)
@pytest.mark.parametrize("quant_format", [QuantFormat.QOperator, QuantFormat.QDQ])
def test_every_algorithm_runs_in_both_formats_with_odd_numbers_of_blocks(config, quant_format):
    model = two_layers(k=70, opset=17)
    if config is not None:
        config.quant_format = quant_format
    found = process(model, block_size=32, quant_format=quant_format, algo_config=config)
    kind = "MatMulNBits" if quant_format is QuantFormat.QOperator else "DequantizeLinear"
    assert ops(found.model)[kind] == 2
    assert closeness(model, found, normal(5, 70)) > 0.98
    if kind == "MatMulNBits":
        assert {a["block_size"] for a in attributes(found).values()} == {32}


def test_gptq_is_not_rounding_to_nearest():
    model = two_layers()
    mix = normal(64, 64, seed=3)
    data = [{"x": (normal(64, 64, seed=s) @ mix).astype(np.float32)} for s in range(6)]
    test = (normal(64, 64, seed=99) @ mix).astype(np.float32)
    errors = []
    for config in (RTNWeightOnlyQuantConfig(), GPTQWeightOnlyQuantConfig(data, actorder=True)):
        found = process(model, block_size=32, algo_config=config)
        wanted = run(model, {"x": test})[0]
        errors.append(((run(found.model, {"x": test})[0] - wanted) ** 2).sum())
    assert errors[1] < 0.7 * errors[0]
    with pytest.raises(DataError, match="calibration_data_reader"):
        process(model, algo_config=GPTQWeightOnlyQuantConfig())


def test_eight_bits_in_pairs():
    """There the node stayed float, and the run succeeded."""
    found = process(two_layers(), bits=8, block_size=32, quant_format=QuantFormat.QDQ)
    assert constants_of(found.model)["w1_DQ_Q8"].dtype == np.uint8
    assert closeness(two_layers(), found, normal(5, 64)) > 0.999


@pytest.mark.parametrize("quant_format", ["QOperator", "QDQ"])
@pytest.mark.parametrize("is_symmetric", [True, False])
def test_one_scale_for_each_output(quant_format, is_symmetric):
    model = two_layers()
    found = process(
        model,
        channel_wised_quantize=True,
        quant_format=quant_format,
        is_symmetric=is_symmetric,
    )
    scales = constants_of(found.model)["w1_scales"]
    assert len(np.unique(scales)) == 96
    assert closeness(model, found, normal(5, 64)) > 0.97


def test_nodes_are_included_and_excluded():
    assert list(attributes(process(two_layers(), nodes_to_include=["fc1"]))) == ["fc1_Q4"]
    assert list(attributes(process(two_layers(), nodes_to_exclude=["fc1"]))) == ["fc2_Q4"]
    for option in ("nodes_to_include", "nodes_to_exclude"):
        with pytest.warns(UserWarning, match="no node is called 'fc9'"):
            process(two_layers(), **{option: ["fc9"]})
        with pytest.raises(RecipeError, match="a list of names"):
            process(two_layers(), **{option: "fc1"})


def test_gemm_and_tables_are_quantized_where_they_are_asked_for():
    nodes = [
        node("Gather", ["table", "at"], ["e"], name="embed"),
        node("Gemm", ["e", "w", "b"], ["y"], name="fc", transB=1),
    ]
    constants = {"table": normal(40, 64), "w": weight(8, 64), "b": normal(8)}
    model = build(nodes, [info("at", ["m"], INT64)], [info("y", ["m", 8])], constants, opset=21)
    found = process(model, block_size=32, op_types_to_quantize=("Gemm", "Gather"))
    assert ops(found.model) == {"GatherBlockQuantized": 1, "MatMulNBits": 1}
    feeds = {"at": np.arange(9)}
    wanted, got = run(model, feeds)[0], run(found.model, feeds)[0]
    assert np.corrcoef(wanted.ravel(), got.ravel())[0, 1] > 0.98
    with pytest.raises(RecipeError, match=r"no n-bit form of 'Conv'"):
        process(model, op_types_to_quantize=("Conv",))


def test_settings_of_single_nodes_and_ratios():
    custom = {"fc1": {"bits": 8}}
    found = process(
        two_layers(),
        bits=4,
        block_size=32,
        algo_config=RTNWeightOnlyQuantConfig({"w2": 0.5}, customized_weight_config=custom),
    )
    assert {name: a["bits"] for name, a in attributes(found).items()} == {
        "fc1_Q8": 8,
        "fc2_Q4": 4,
    }
    plain = process(two_layers(), block_size=32, algo_config=RTNWeightOnlyQuantConfig())
    scales = [constants_of(m.model)["w2_scales"] for m in (found, plain)]
    np.testing.assert_allclose(scales[0], scales[1] / 2, rtol=1e-6)


def test_bits_of_the_quantizer_count_for_every_algorithm():
    """There RTN always had 4."""
    found = process(two_layers(), bits=8, block_size=64, algo_config=RTNWeightOnlyQuantConfig())
    assert {(a["bits"], a["block_size"]) for a in attributes(found).values()} == {(8, 64)}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MatMulNBitsQuantizer(two_layers(), bits=9), "2 to 8 bits"),
        (lambda: MatMulNBitsQuantizer(two_layers(), block_size=24), "power of two"),
        (lambda: MatMulNBitsQuantizer(two_layers(), quant_axes=(("MatMul", 1),)), "axis 0"),
        (lambda: MatMulNBitsQuantizer(two_layers(), accuracy_level=7), r"0\.\.4"),
        (lambda: HQQWeightOnlyQuantConfig(axis=0), "axis 1"),
        (lambda: KQuantWeightOnlyQuantConfig(ratios={"w": 0.5}), "leave ratios out"),
        (lambda: NVAWQWeightOnlyQuantConfig("folder"), "int4-awq"),
        (lambda: DefaultWeightOnlyQuantConfig(quant_format="QDG"), "Did you mean 'QDQ'"),
        (lambda: MatMulNBitsQuantizer(two_layers(), algo_config=object()), "configuration"),
    ],
)
def test_what_cannot_be_is_refused_at_once(make, message):
    with pytest.raises(RecipeError, match=message):
        make()


def test_the_given_model_is_not_changed():
    model = two_layers()
    before = model.SerializeToString()
    process(model)
    assert model.SerializeToString() == before


# The command ----------------------------------------------------------------------------------


def command(folder, *arguments):
    source, target = str(folder / "m.onnx"), str(folder / "o.onnx")
    return main(["--input_model", source, "--output_model", target, *arguments])


@pytest.mark.parametrize(
    ("arguments", "bits", "size", "zeros"),
    [
        ([], 4, 32, False),
        (["--symmetric", "False", "--bits", "8", "--block_size", "64"], 8, 64, True),
        (["--quant_method", "hqq"], 4, 32, True),
        (["--quant_method", "rtn", "--block_size", "16"], 4, 16, False),
        (["--quant_method", "k_quant", "--symmetric", "false"], 4, 32, True),
        (["--quant_method", "gptq", "--calibration_data", "data.npy"], 4, 32, False),
    ],
)
def test_the_command(tmp_path, monkeypatch, arguments, bits, size, zeros):
    monkeypatch.chdir(tmp_path)
    onnx.save(two_layers(), tmp_path / "m.onnx")
    np.save(tmp_path / "data.npy", normal(16, 64))
    assert command(tmp_path, *arguments, "--nodes_to_include", "fc1") == 0
    written = onnx.load(tmp_path / "o.onnx")
    onnx.checker.check_model(written)
    (product,) = [n for n in written.graph.node if n.op_type == "MatMulNBits"]
    shown = {a.name: helper.get_attribute_value(a) for a in product.attribute}
    assert (shown["bits"], shown["block_size"]) == (bits, size)
    assert (len(product.input) == 4) is zeros


def test_the_command_says_what_is_wrong(tmp_path, capsys):
    onnx.save(two_layers(), tmp_path / "m.onnx")
    assert command(tmp_path, "--quant_method", "gptq") == 1
    assert "calibration_data_reader" in capsys.readouterr().err
    assert command(tmp_path, "--quant_method", "nvidia_awq", "--tokenizer_dir", "t") == 1
    assert not (tmp_path / "o.onnx").exists()
    (tmp_path / "o.onnx").write_bytes(b"")
    assert command(tmp_path) == 1
    assert "exists already" in capsys.readouterr().err
    for wrong in (["--symmetric", "maybe"], ["--quant_axes", "MatMul"], ["--bits", "x"]):
        with pytest.raises(SystemExit):
            command(tmp_path, *wrong)


def test_the_command_logs_what_stays_float(tmp_path, caplog):
    onnx.save(make_mlp(), tmp_path / "m.onnx")
    with caplog.at_level(logging.DEBUG, logger=ours.__name__):
        assert command(tmp_path, "--verbose") == 0
    assert "stays float" in caplog.text


def test_small_functions_are_the_peers():
    packed = np.arange(24, dtype=np.uint8) * 9
    graph = make_mlp().graph
    for name, arguments in (
        ("is_divisible", (64, 32)),
        ("is_divisible", (65, 32)),
        ("ort_convert_str_to_bool", ("TRUE",)),
        ("ort_convert_str_to_bool", ("0",)),
        ("parse_key_value_pair", ("MatMul:0",)),
        ("get_initializer", (graph.initializer[0].name, [graph])),
        ("get_initializer", ("nowhere", [graph])),
    ):
        assert getattr(ours, name)(*arguments) == getattr(peer, name)(*arguments)
    np.testing.assert_array_equal(
        ours.transpose_packed_int4_matrix(packed, 6, 8),
        peer.transpose_packed_int4_matrix(packed, 6, 8),
    )


def test_int4_quant_algo_quantizes():
    quantizer = MatMulNBitsQuantizer(make_mlp(width=64), block_size=32)
    quantizer.int4_quant_algo()
    assert "MatMulNBits" in [node.op_type for node in quantizer.model.nodes()]


def test_a_model_with_nothing_to_quantize_stays_as_it_is():
    model = build(
        [node("MatMul", ["x", "w"], ["y"], name="batch")],
        {"x": [2, 4, 64]},
        {"y": [2, 4, 8]},
        {"w": normal(2, 64, 8)},
    )
    quantizer = MatMulNBitsQuantizer(model, nodes_to_exclude=["nothing"])
    with pytest.warns(UserWarning, match="stays as it is") as caught:
        quantizer.process()
    assert ops(quantizer.model.model) == {"MatMul": 1}
    assert any("no node is called 'nothing'" in str(item.message) for item in caught)
