"""Models of many kinds, quantized for a target, keep its rules and compute what the float one does.

Quick ones here; every model for every target is in the slow tests below.
"""

import pytest
from support.models import make_samples
from support.target_models import MODELS

import bitwright

TARGETS = (
    "x86-avx2",
    "x86-vnni",
    "arm-cpu",
    "cpu-any",
    "qualcomm-htp:v66",
    "qualcomm-htp:v68",
    "qualcomm-htp",
    "nvidia-tensorrt",
    "intel-openvino:cpu",
    "intel-openvino:gpu",
    "intel-openvino:npu",
    "directml",
)
# The recipe's own error on these models with random weights: a MobileNet with uneven channels
# loses most.
LEAST_SQNR = 12.0


def check(name, target):
    model = MODELS[name]()
    made = bitwright.quantize(
        model, data=make_samples(model, 4), target=target, effort="low", holdout=False
    )
    found = bitwright.verify(made.model, target)
    assert not found.errors
    # Small products are better left float on a GPU, which the rule says, and CPUs have no integer
    # ConvTranspose: only its weights are stored in 8 bits.
    warned = {(finding.rule, finding.values.get("op")) for finding in found.warnings}
    assert warned <= {("small_products", None), ("unfused", "ConvTranspose")}
    assert min(output.sqnr for output in made.outputs) > LEAST_SQNR
    assert found.residence.resident_ops == found.residence.ops
    assert found.residence.partitions == 1


def test_a_transformer_for_a_cpu_keeps_its_rules():
    check("transformer", "x86-vnni")


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", MODELS)
def test_every_model_for_every_target_verifies_clean_and_runs(name, target):
    check(name, target)
