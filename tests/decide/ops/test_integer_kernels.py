"""The shapes that x86 kernels for integers are fast at: those that were measured come out right."""

import pytest

from bitwright.decide.ops.integer_kernels import is_faster_dense, padded_channels


@pytest.mark.parametrize(
    ("group", "channels_in", "channels_out", "ratio"),
    [
        (16, 32, 32, 0.05),
        (2, 64, 64, 0.62),
        (8, 128, 128, 0.74),
        (2, 128, 128, 1.04),
        (32, 256, 256, 0.83),
        (16, 256, 256, 1.43),
        (26, 208, 208, 0.71),
        (55, 440, 440, 1.64),
        (256, 512, 512, 0.57),
        (128, 512, 512, 1.19),
        (32, 32, 64, 0.05),
        (8, 128, 64, 0.52),
        (1, 64, 64, 1.0),
        (64, 64, 64, 2.86),
    ],
)
def test_groups_are_dense_where_that_was_measured_faster(group, channels_in, channels_out, ratio):
    assert is_faster_dense(group, channels_in, channels_out) == (ratio < 1)


@pytest.mark.parametrize("depthwise", [False, True])
def test_padding_reaches_a_kernel_or_adds_nothing(depthwise):
    for channels in range(1, 600):
        padded = padded_channels(channels, depthwise=depthwise)
        assert channels <= padded <= 1.9 * channels
        assert padded == channels or padded % 4 == 0
        assert padded_channels(padded, depthwise=depthwise) == padded or padded < 16
        if depthwise and channels > 8:
            assert padded % 16 == 0
