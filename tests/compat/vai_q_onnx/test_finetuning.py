"""`FastFinetune`, key by key."""

from __future__ import annotations

import pytest
from support.fast_finetune import equal, quantized
from support.models import Reader, make_cnn, make_mlp, make_samples

from bitwright.compat import vai_q_onnx
from bitwright.compat.vai_q_onnx.finetuning import read_fast_finetune
from bitwright.compat.vai_q_onnx.options import read_options
from bitwright.errors import MissingPackageError, RecipeError
from bitwright.recipe import AdaQuant, AdaRound, LearningDetails

# The loss of so few steps goes up and down.
NOISY = {"OptimAlgorithm": "adaquant", "LearningRate": 0.05, "NumIterations": 40}


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
@pytest.mark.sampled(7)
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
    monkeypatch.setattr("bitwright.jobs.fine_tuning.workers.MAX_WORKERS", 1)
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
    assert (asked.device, asked.notes) == ("cpu", ())


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
    assert asked.notes == ()
    assert asked.method == AdaRound(
        scope="layer",
        batch_size=2,
        iterations=500,
        learning_rate=0.2,
        sequential=False,
        workers=None,
    )
    assert asked.details == LearningDetails(
        seed=3,
        samples=100,
        patience=7,
        early_stop=True,
        learning_rate_above=(1.0, 0.3),
        op_types=("Conv", "Gemm"),
        selective=False,
        holdout_fraction=0.0,
        output_pairs=True,
        drop_ratio=0.5,
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
        ({"BatchSize": "two"}, "is a whole number, not 'two'"),
        ({"EarlyStop": "yes"}, "True or False, not 'yes'"),
        ({"BetaRange": 5}, "a pair of numbers, not 5"),
        ({"TargetOpType": "Conv"}, "a list of op types"),
        ({"TargetOpType": ["Cnv"]}, "weights of 'Cnv' in fine_tune cannot learn. Did you mean"),
        ({"DropRatio": 2}, "drop_ratio must lie in 0..1"),
        ({"MemOptLevel": 3}, "0, 1 or 2, not 3"),
        ({"OutputIndex": 1}, "each segment is judged by its own outputs"),
        ({"RefModelPath": "other.onnx"}, "compared with the float model that is given"),
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
    first, second = read_fast_finetune(quant).notes
    assert "'RegParam' of FastFinetune has no effect with adaquant" in first
    assert "'LogPeriod' of FastFinetune has no effect: progress shows each segment once" in second


def test_options_without_their_switch_are_told(monkeypatch):
    monkeypatch.setattr("bitwright.compat.vai_q_onnx.static._warned", set())
    model = make_mlp()
    with pytest.warns(UserWarning, match="'FastFinetune' has no effect without include_fast_ft"):
        vai_q_onnx.quantize_static(
            model,
            None,
            Reader(make_samples(model, 2)),
            extra_options={"FastFinetune": {"NumIterations": 5}},
        )
