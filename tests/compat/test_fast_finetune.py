"""`FastFinetune` and Quark's steps that fine-tune: what each key changes, or why it is refused."""

from __future__ import annotations

import dataclasses
import warnings
from functools import cache

import numpy as np
import pytest
from support.models import Reader, constants_of, make_cnn, make_mlp, make_samples

from bitwright.compat import vai_q_onnx
from bitwright.compat.quark import (
    AdaQuantConfig,
    AdaRoundConfig,
    CLEConfig,
    Int8Spec,
    ModelQuantizer,
    QConfig,
    QLayerConfig,
    UInt8Spec,
    get_default_config,
)
from bitwright.compat.vai_q_onnx import QuantType
from bitwright.compat.vai_q_onnx.finetuning import _CHECKED, _FIELDS, read_fast_finetune
from bitwright.compat.vai_q_onnx.options import read_options
from bitwright.errors import MissingPackageError, RecipeError
from bitwright.recipe import AdaQuant, AdaRound, load_recipe

# The loss of so few steps goes up and down.
NOISY = {"OptimAlgorithm": "adaquant", "LearningRate": 0.05, "NumIterations": 40}
BASE = {"NumIterations": 200, "BatchSize": 4, "SelectiveUpdate": False}


@cache
def _quantized(items, fine_tune=True, make=make_mlp):
    model = make(opset=21, ir_version=10)
    made = vai_q_onnx.quantize_static(
        model,
        None,
        Reader(make_samples(model, 8)),
        calibrate_method="MinMax",
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt4,
        include_fast_ft=fine_tune,
        extra_options={"FastFinetune": dict(items)} if fine_tune else None,
    )
    found = constants_of(made)
    return {name: np.asarray(found[name], np.int64) for name in found if "_quantized" in name}


def quantized(fine_tune=True, make=make_mlp, **options):
    """Return the integers of weights and biases."""
    return _quantized(tuple({**BASE, **options}.items()), fine_tune, make)


def equal(first, second, part=""):
    names = [name for name in first if part in name]
    assert names
    return all(np.array_equal(first[name], second[name]) for name in names)


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="fine-tuning needs torch")


@pytest.mark.parametrize(
    ("key", "value", "beside"),
    [
        ("OptimAlgorithm", "adaquant", {"LearningRate": 0.01}),
        ("FixedSeed", 5, {}),
        ("DataSize", 2, {}),
        ("BatchSize", 1, {}),
        ("NumIterations", 3, {}),
        ("NumBatches", 2, {"EarlyStop": True, **NOISY}),
        ("LearningRate", 1.0, {}),
        ("EarlyStop", True, {"NumBatches": 2, **NOISY}),
        ("LRAdjust", (0.0, 1.0), {}),
        ("OutputQDQ", True, NOISY),
        ("DropRatio", 0.2, {}),
        ("RegParam", 10.0, {}),
        ("BetaRange", (3.0, 2.0), {"RegParam": 1.0}),
        ("WarmStart", 0.0, {"RegParam": 1.0}),
    ],
)
def test_a_key_changes_what_is_learned(torch, key, value, beside):
    assert not equal(quantized(**beside), quantized(**{**beside, key: value}))


def test_weights_that_learn_are_not_the_nearest(torch):
    assert not equal(quantized(fine_tune=False), quantized(), "w")


def test_a_rate_for_large_errors_is_the_rate_where_errors_are_large(torch):
    assert equal(quantized(LRAdjust=(0.0, 0.7)), quantized(LearningRate=0.7))
    assert equal(quantized(LRAdjust=(1e9, 0.7)), quantized())


def test_a_choice_keeps_only_what_helps(torch):
    wild = {"LearningRate": 1000.0, "OptimAlgorithm": "adaquant"}
    assert not equal(quantized(**wild), quantized(fine_tune=False))
    assert equal(quantized(**{**wild, "SelectiveUpdate": True}), quantized(fine_tune=False))


def test_only_the_named_operators_learn(torch):
    assert equal(quantized(TargetOpType=("Conv",)), quantized(fine_tune=False))
    assert equal(quantized(TargetOpType=("MatMul", "Gemm")), quantized())


def test_biases_learn_where_they_are_asked_to(torch):
    learning = {"OptimAlgorithm": "adaquant", "LearningRate": 0.05, "make": make_cnn}
    plain = quantized(fine_tune=False, make=make_cnn)
    biases = [name for name in plain if name.startswith("b")]
    fixed, free = (quantized(**learning, UpdateBias=on) for on in (False, True))
    assert biases and equal(fixed, plain, "b") and not equal(free, plain, "b")


def test_layers_apart_learn_from_what_plain_ones_give(torch, monkeypatch):
    monkeypatch.setattr("bitwright.jobs.fine_tuning.workers._MOST", 1)
    apart = quantized(Parallel=True)
    assert equal(apart, quantized(), "w1") and not equal(apart, quantized(), "w2")


def test_learning_runs_where_it_is_asked_to(torch):
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(MissingPackageError, match="torch finds no CUDA device"):
        quantized(OptimDevice="cuda:0")


# Translation ------------------------------------------------------------------------------------


def test_the_defaults_are_those_of_the_option():
    assert read_fast_finetune(None).method == AdaRound(scope="layer", batch_size=1)
    asked = read_fast_finetune({"OptimAlgorithm": "adaquant"})
    assert asked.method == AdaQuant(scope="layer", batch_size=1, learn_scales=False)
    assert (asked.device, asked.sentences) == ("cpu", [])


def test_every_key_finds_its_field():
    asked = read_fast_finetune(
        {
            "OptimAlgorithm": "adaround",
            "OptimDevice": "hip:1",
            "InferDevice": "cpu",
            "FixedSeed": 3,
            "DataSize": 100,
            "BatchSize": 2,
            "NumBatches": 7,
            "NumIterations": 500,
            "LearningRate": 0.2,
            "EarlyStop": True,
            "OutputIndex": 0,
            "LRAdjust": [1.0, 0.3],
            "TargetOpType": ["Conv", "Gemm"],
            "SelectiveUpdate": False,
            "OutputQDQ": True,
            "DropRatio": 0.5,
            "MemOptLevel": 2,
            "CacheDir": None,
            "RefModelPath": None,
            "DynamicBatch": True,
            "Parallel": True,
            "RegParam": 0.02,
            "BetaRange": (10, 3),
            "WarmStart": 0.1,
            "NumWorkers": 1,
            "UseGDS": False,
        }
    )
    assert asked.device == "cuda:1"
    assert asked.sentences == []
    assert asked.method == AdaRound(
        scope="layer",
        seed=3,
        samples=100,
        batch_size=2,
        patience=7,
        iterations=500,
        learning_rate=0.2,
        early_stop=True,
        learning_rate_above=(1.0, 0.3),
        op_types=("Conv", "Gemm"),
        selective=False,
        holdout_fraction=0.0,
        output_pairs=True,
        drop_ratio=0.5,
        sequential=False,
        workers=None,
        regularization=20.0,
        beta=(10.0, 3.0),
        warm_start=0.1,
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"NumIteration": 5}, "unknown option 'NumIteration' in FastFinetune. Did you mean"),
        ({"OptimAlgorithm": "adam"}, "'adaround' or 'adaquant', not 'adam'"),
        ({"OptimDevice": "cuda:0,1"}, "one GPU such as 'cuda:0'"),
        ({"InferDevice": "cuda:0"}, "take execution_providers"),
        ({"NumIterations": 0}, "a whole number of at least 1, not 0"),
        ({"NumIterations": 1.5}, "a whole number of at least 1, not 1.5"),
        ({"BatchSize": "two"}, "is a number, not 'two'"),
        ({"EarlyStop": "yes"}, "True or False, not 'yes'"),
        ({"BetaRange": 5}, "a pair of numbers, not 5"),
        ({"TargetOpType": "Conv"}, "a list of op types"),
        ({"TargetOpType": ["Cnv"]}, "weights of 'Cnv' in fine_tune cannot learn. Did you mean"),
        ({"DropRatio": 2}, "drop_ratio must lie in 0..1"),
        ({"MemOptLevel": 3}, "0, 1 or 2, not 3"),
        ({"OutputIndex": 1}, "each segment is judged by its own outputs"),
        ({"RefModelPath": "other.onnx"}, "held against the float model that is given"),
        ({"CacheDir": "cache"}, "set TMPDIR"),
        ({"SelectMaxMemLayer": True}, "in the order of the graph"),
        ({"NumWorkers": 4}, "set Parallel"),
        ({"PinMemory": True}, "lie on the device"),
        ({"UseGDS": True}, "lie on the device"),
    ],
)
def test_what_makes_no_sense_here_is_refused(options, said):
    with pytest.raises(RecipeError) as caught:
        read_options({"FastFinetune": options})
    assert said in str(caught.value)


def test_what_has_no_effect_is_told():
    quant = {"OptimAlgorithm": "adaquant", "RegParam": 0.1, "LogPeriod": 50}
    first, second = read_fast_finetune(quant).sentences
    assert "'RegParam' of FastFinetune has no effect with adaquant" in first
    assert "'LogPeriod' of FastFinetune has no effect: each segment is told once" in second


def test_options_without_their_switch_are_told(monkeypatch):
    monkeypatch.setattr("bitwright.compat.vai_q_onnx.static._told", set())
    model = make_mlp()
    with pytest.warns(UserWarning, match="'FastFinetune' has no effect without include_fast_ft"):
        vai_q_onnx.quantize_static(
            model,
            None,
            Reader(make_samples(model, 2)),
            extra_options={"FastFinetune": {"NumIterations": 5}},
        )


# Quark's configurations -------------------------------------------------------------------------


def test_every_argument_of_a_step_is_passed_on():
    for kind in (AdaRoundConfig, AdaQuantConfig):
        options = kind(reg_param=0.1, beta_range=(5, 2), warm_start=0.3).options()["FastFinetune"]
        silent = {"LRAdjust", "SelectiveUpdate", "CacheDir", "LogPeriod", "RefModelPath"}
        known = {*_FIELDS, *_CHECKED, "OptimAlgorithm", "OptimDevice"}
        assert options.keys() | silent == known
        assert len(dataclasses.fields(kind)) == len(known) - 1  # its name is the algorithm
    assert read_fast_finetune(AdaRoundConfig().options()["FastFinetune"]).sentences == []
    assert read_fast_finetune(AdaQuantConfig().options()["FastFinetune"]).sentences == []


def test_a_step_changes_what_it_says():
    arguments = {
        "parallel": True,
        "reg_param": 0.005,
        "beta_range": (15, 2),
        "warm_start": 0.4,
        "selective_update": True,
        "num_iterations": 12,
    }
    method = read_fast_finetune(AdaRoundConfig(**arguments).options()["FastFinetune"]).method
    assert (method.sequential, method.selective, method.iterations) == (False, True, 12)
    assert (method.regularization, method.beta, method.warm_start) == (5.0, (15.0, 2.0), 0.4)
    method = read_fast_finetune(AdaQuantConfig().options()["FastFinetune"]).method
    assert (method.iterations, method.learning_rate, method.update_bias) == (3000, 1e-5, False)
    with pytest.raises(RecipeError, match="held against the float model that is given"):
        read_options(AdaRoundConfig(ref_model_path="other.onnx").options())


def test_a_configuration_with_a_step_that_fine_tunes(torch):
    model = make_mlp()
    samples = make_samples(model, 8)
    layer = QLayerConfig(input_tensors=UInt8Spec(), weight=Int8Spec())

    def made(*steps):
        quantizer = ModelQuantizer(QConfig(global_config=layer, algo_config=list(steps)))
        found = quantizer.quantize_model(model, calibration_data_reader=Reader(samples))
        return constants_of(found)["w1_quantized"]

    step = AdaRoundConfig(num_iterations=20, batch_size=4, selective_update=False)
    assert not np.array_equal(made(), made(step))
    with pytest.raises(RecipeError, match="two steps that fine-tune"):
        made(CLEConfig(), step, AdaQuantConfig())


@pytest.mark.parametrize("name", ["XINT8_ADAROUND", "A8W8_ADAQUANT"])
def test_a_preset_fine_tunes(torch, name):
    from bitwright.compat.quark import Config

    config = get_default_config(name)
    config.extra_options["FastFinetune"] |= {"NumIterations": 5, "SelectiveUpdate": False}
    if name == "A8W8_ADAQUANT":
        config.extra_options["FastFinetune"]["LearningRate"] = 0.01
    config.print_summary = False
    plain = get_default_config(name.partition("_")[0])
    plain.print_summary = False
    model = make_mlp()
    samples = make_samples(model, 8)
    found = [
        constants_of(
            ModelQuantizer(Config(global_quant_config=each)).quantize_model(
                model, calibration_data_reader=Reader(samples)
            )
        )["w1_quantized"]
        for each in (config, plain)
    ]
    assert not np.array_equal(*found)
    assert get_default_config(name).extra_options["FastFinetune"]["NumIterations"] == 1000


def test_any_recipe_fine_tunes_by_its_name():
    assert load_recipe("XINT8_ADAROUND").fine_tune == AdaRound()
    assert load_recipe("int8-per-channel-adaquant").fine_tune == AdaQuant()
    assert load_recipe("npu-cnn-adaround").replace(name="npu-cnn", fine_tune=None) == load_recipe(
        "npu-cnn"
    )
    assert load_recipe("INT8_TRANSFORMER_ACCURATE").select.op_types == ("Gemm", "MatMul")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, said in (
            ("bf16-adaquant", "only integer weights learn"),
            ("int8-dynamic-adaround", "no effect in dynamic mode"),
            ("int9-adaround", "only integer weights learn|unknown recipe"),
        ):
            with pytest.raises(RecipeError, match=said):
                load_recipe(name)
