"""Options about equalization: what each changes in the model written."""

from __future__ import annotations

import numpy as np
from support.models import (
    make_mlp,
    make_samples,
    node,
    normal,
    weight,
)
from support.vai_q_onnx import (
    conv,
    image_model,
    option,
    quantize_vai,
    scale,
)


def uneven_chain():
    sizes = np.float32([100, 1, 0.01, 10]).reshape(4, 1, 1, 1)
    constants = {
        "w1": weight(4, 3, 1, 1, seed=1) * sizes,
        "b1": normal(4, seed=2, size=500),
        "w2": weight(4, 4, 1, 1, seed=3),
        "w3": weight(4, 4, 1, 1, seed=4) * sizes,
    }
    return image_model(
        conv(["x", "w1", "b1"], "c1", "one"),
        node("Relu", ["c1"], ["r1"], name="relu1"),
        conv(["r1", "w2"], "c2", "two"),
        node("Relu", ["c2"], ["r2"], name="relu2"),
        conv(["r2", "w3"], "y", "three"),
        constants=constants,
    )


def equalized(**options):
    made = quantize_vai(uneven_chain(), options, include_cle=True)
    return [float(scale(made, name)) for name in ("w1", "w2", "w3")]


@option("CLESteps", "CLETotalLayerDiffThreshold")
def test_sweeps_of_equalization():
    once = equalized()
    assert once == equalized(CLESteps=1)
    thrice = equalized(CLESteps=3)
    until_still = equalized(CLESteps=-1)
    assert once != thrice != until_still
    assert equalized(CLESteps=-1, CLETotalLayerDiffThreshold=1e9) == once
    plain = quantize_vai(uneven_chain())
    assert scale(plain, "w1") > 2 * once[0]


@option("CLEScaleAppendBias")
def test_the_bias_counts_as_a_weight():
    assert equalized(CLEScaleAppendBias=False) != equalized(CLEScaleAppendBias=True)


@option("CLEWeightThreshold", "CLEScaleUseThreshold")
def test_small_channels_are_left_alone():
    plain = quantize_vai(uneven_chain())
    unmoved = [float(scale(plain, name)) for name in ("w1", "w2", "w3")]
    assert equalized(CLEWeightThreshold=1e9) == unmoved
    free = equalized(CLEScaleUseThreshold=False)
    assert free != unmoved
    assert free == equalized(CLEScaleUseThreshold=False, CLEWeightThreshold=1e9)


@option("SmoothAlpha")
def test_how_much_of_the_outliers_moves():
    samples = make_samples(make_mlp())
    for sample in samples:
        sample["x"][:, 3] *= 100
    made = [
        quantize_vai(make_mlp(), {"SmoothAlpha": alpha}, samples=samples, include_sq=True)
        for alpha in (0.2, 0.8)
    ]
    assert scale(made[0], "w1") < scale(made[1], "w1")
