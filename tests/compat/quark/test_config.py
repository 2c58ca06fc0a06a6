"""Quark's configurations: presets by name, steps, and the options that they stand for."""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import pytest
from support.models import (
    Reader,
    constants_of,
    make_mlp,
    make_samples,
    ops,
)
from support.quark_configs import quantize_config

from bitwright import load_recipe
from bitwright.compat import quark
from bitwright.compat.quark import (
    AdaQuantConfig,
    AdaRoundConfig,
    CLEConfig,
    Config,
    Int8Spec,
    ModelQuantizer,
    QConfig,
    QLayerConfig,
    UInt8Spec,
    get_default_config,
)
from bitwright.compat.vai_q_onnx.finetuning import OPTIONS, read_fast_finetune
from bitwright.compat.vai_q_onnx.options import read_options
from bitwright.errors import RecipeError
from bitwright.recipe import AdaQuant, AdaRound


def test_a_preset_may_be_changed_and_the_next_one_is_as_it_was():
    config = quark.get_default_config("XINT8")
    config.extra_options["AlignConcat"] = False
    assert "AlignConcat" not in quark.get_default_config("XINT8").extra_options
    assert ops(quantize_config(Config(global_quant_config=config)))["QuantizeLinear"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("BF16_ADAQUANT", "only integer weights learn"),
        ("MX9_ADAQUANT", "only integer weights learn"),
        ("BF16_MIXED_BFP16", "overrides"),
        ("XINT9", "Did you mean 'XINT8'?"),
    ],
)
def test_presets_that_do_not_exist(name, said):
    with pytest.raises(RecipeError) as caught:
        QConfig.get_default_config(name)
    assert said in str(caught.value)


def test_every_argument_of_a_step_is_passed_on():
    for kind in (AdaRoundConfig, AdaQuantConfig):
        options = kind(reg_param=0.1, beta_range=(5, 2), warm_start=0.3).options()["FastFinetune"]
        silent = {"LRAdjust", "SelectiveUpdate", "CacheDir", "LogPeriod", "RefModelPath"}
        known = set(OPTIONS)
        assert options.keys() | silent == known
        assert len(dataclasses.fields(kind)) == len(known) - 1  # its name is the algorithm
    assert read_fast_finetune(AdaRoundConfig().options()["FastFinetune"]).notes == ()
    assert read_fast_finetune(AdaQuantConfig().options()["FastFinetune"]).notes == ()


def test_a_step_changes_what_it_says():
    arguments = {
        "parallel": True,
        "reg_param": 0.005,
        "beta_range": (15, 2),
        "warm_start": 0.4,
        "selective_update": True,
        "num_iterations": 12,
    }
    asked = read_fast_finetune(AdaRoundConfig(**arguments).options()["FastFinetune"])
    details = asked.details
    assert (asked.method.sequential, asked.method.iterations) == (False, 12)
    assert details.selective
    assert (details.regularization, details.beta, details.warm_start) == (5.0, (15.0, 2.0), 0.4)
    asked = read_fast_finetune(AdaQuantConfig().options()["FastFinetune"])
    assert (asked.method.iterations, asked.method.learning_rate) == (3000, 1e-5)
    assert not asked.details.update_bias
    with pytest.raises(RecipeError, match="compared with the float model that is given"):
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


def test_none_stands_for_nothing():
    layer = QLayerConfig(input_tensors=UInt8Spec(), weight=Int8Spec())
    named = ("specific_layer_config", "layer_type_config", "exclude", "algo_config")
    empty = QConfig(global_config=layer, extra_options=None, **dict.fromkeys(named))
    assert empty == QConfig(global_config=layer)
