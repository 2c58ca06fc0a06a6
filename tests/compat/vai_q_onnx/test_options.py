"""The table of the Vitis AI quantizer's `extra_options`: all keys are there, and how they are read.

What each key changes in the model written is tested in `options/`, by subject.
"""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from support.models import (
    make_mlp,
    make_samples,
)
from support.vai_q_onnx import (
    TESTED,
    option,
)

from bitwright.compat import vai_q_onnx
from bitwright.compat.vai_q_onnx.options import OLD_NAMES, OPTIONS, REFUSED, read_options
from bitwright.errors import RecipeError


@option("FastFinetune")
def test_fine_tuning_reaches_the_recipe():
    # Its keys, and what each of them changes, have a file of tests of their own.
    asked = read_options({"FastFinetune": {"NumIterations": 7}}).fine_tune
    assert asked["asked"].method.iterations == 7


@option("BiasCorrection")
def test_bias_correction_reaches_the_recipe():
    # What it does has a file of tests of its own.
    assert read_options({"BiasCorrection": True}).recipe["bias_correction"] == "sequential"


@option("IgnoreWarnings")
def test_ignoring_warnings_is_a_switch():
    # What it does is tested with the configurations that have it.
    assert read_options({"IgnoreWarnings": True}) == read_options({})


def test_an_unknown_key_is_ignored_with_a_suggestion():
    with pytest.warns(UserWarning, match="Did you mean 'ActivationSymmetric'"):
        assert read_options({"ActivationSymetric": True}) == read_options({})


def test_every_key_has_its_test():
    for path in (Path(__file__).parent / "options").glob("test_*.py"):
        runpy.run_path(str(path))  # `option` notes the keys of each test
    assert {*OPTIONS, *OLD_NAMES} == TESTED


@pytest.mark.parametrize("key", REFUSED)
def test_keys_without_a_counterpart_are_refused_with_a_reason(key):
    with pytest.raises(RecipeError, match=f"'{key}' is not supported: .+"):
        read_options({key: {"any": 1}})
    read_options(
        {
            key: None,
        }
    )


def test_the_guide_names_every_key():
    docs = Path(__file__).parents[3] / "docs"
    pages = (docs / "reference" / "options.md", docs / "from-vitis-ai.md")
    guide = "".join(page.read_text(encoding="utf-8") for page in pages)
    missing = [key for key in (*OPTIONS, *OLD_NAMES, *REFUSED) if f"`{key}`" not in guide]
    assert not missing


def test_the_keys_of_the_documentation_are_all_here():
    documented = """
    ActivationSymmetric WeightSymmetric UseUnsignedReLU QuantizeBias RemoveInputInit EnableSubgraph
    ForceQuantizeNoInputCheck MatMulConstBOnly AddQDQPairToWeight DedicatedQDQPair MinMSEMode
    OpTypesToExcludeOutputQuantization QDQOpTypePerChannelSupportToAxis UseQDQVitisCustomOps
    CalibTensorRangeSymmetric CalibMovingAverage CalibMovingAverageConstant Int16Scale
    RandomDataReaderInputDataRange ConvertBNToConv ConvertReduceMeanToGlobalAvgPool
    SplitLargeKernelPool ConvertSplitToSlice FuseInstanceNorm FuseL2Norm ConvertClipToRelu
    SimulateDPU ConvertLeakyReluToDPUVersion ConvertSigmoidToHardSigmoid
    ConvertHardSigmoidToDPUVersion ConvertAvgPoolToDPUVersion ConvertReduceMeanToDPUVersion
    ConvertSoftmaxToDPUVersion IPULimitationCheck AdjustShiftCut AdjustShiftBias AdjustShiftRead
    AdjustShiftWrite AdjustHardSigmoid AdjustShiftSwish AlignConcat AlignPool ReplaceClip6Relu
    CLESteps CLETotalLayerDiffThreshold CLEScaleAppendBias RemoveQDQConvLeakyRelu
    RemoveQDQConvPRelu
    """.split()
    assert set(documented) <= {*OPTIONS, *OLD_NAMES}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("MinMSEMode", ["All"]),
        ("RemoveQDQBetweenOps", 1),
        ("Int32Bias", "yes"),
        ("AlignTranspose", 1.5),
        ("CLESteps", 1.5),
        ("CalibDataSize", float("inf")),
    ],
)
def test_a_value_of_the_wrong_kind_is_one_sentence(key, value):
    with pytest.raises(RecipeError, match=key):
        read_options({key: value})


@pytest.mark.parametrize(
    "key",
    ["OpTypesToExcludeOutputQuantization", "QDQOpTypePerChannelSupportToAxis", "UseMatMulNBits"],
)
def test_none_leaves_an_option_where_it_is(key):
    assert read_options({key: None}).place == {}


def test_extra_options_are_a_dict_of_names():
    for wrong in (["AlignConcat"], "AlignConcat", {1: True}):
        with pytest.raises(RecipeError, match="extra_options is a dict of option names"):
            read_options(wrong)


@pytest.mark.parametrize(
    "arguments",
    [
        {"nodes_to_exclude": "conv"},
        {"input_nodes": [None]},
        {"op_types_to_quantize": 1},
        {"per_channel": "no"},
        {"enable_dpu": "IPU"},
        {"quant_format": ["QDQ"]},
        {"weight_type": {}},
    ],
)
def test_an_argument_of_the_wrong_kind_is_one_sentence(arguments):
    with pytest.raises(RecipeError):
        vai_q_onnx.quantize_static(make_mlp(), None, make_samples(make_mlp()), **arguments)


@pytest.mark.parametrize(("value", "mode"), [(True, "sequential"), (False, None), (None, None)])
def test_the_option_asks_for_the_correction_that_compares_outputs(value, mode):
    assert read_options({"BiasCorrection": value}).recipe.get("bias_correction") == mode


def test_a_bias_correction_is_on_or_off():
    with pytest.raises(RecipeError, match="'BiasCorrection' is True or False, not 'fast'"):
        read_options({"BiasCorrection": "fast"})
