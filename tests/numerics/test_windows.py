import numpy as np
import pytest

from bitwright.numerics.windows import transposed_window_coverage, window_coverage


def test_padding_is_met_at_the_ends_of_a_kernel():
    assert window_coverage(7, 3, pads=(1, 1)).tolist() == [6 / 7, 1, 6 / 7]
    assert window_coverage(7, 3).tolist() == [1, 1, 1]


@pytest.mark.parametrize(("length", "pads"), [(None, (1, 1)), (1, (0, 0))])
def test_without_a_size_or_a_window_every_place_counts_in_full(length, pads):
    assert window_coverage(length, 3, pads=pads).tolist() == [1, 1, 1]


def test_a_transposed_convolution_spreads_each_value_over_its_stride():
    assert transposed_window_coverage(None, 4, stride=2).tolist() == [0.5] * 4
    # 4 values make 8 + 2 outputs, of which one is cut off at each end.
    shares = transposed_window_coverage(4, 4, stride=2, begin=1, outputs=8)
    np.testing.assert_allclose(shares, [3 / 8, 4 / 8, 4 / 8, 3 / 8])
