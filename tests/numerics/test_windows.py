import numpy as np
import pytest
from support.models import build, node, run, weight

from bitwright.numerics.windows import (
    transposed_window_coverage,
    unfold_windows,
    window_coverage,
)


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


@pytest.mark.parametrize(
    ("shape", "kernel", "strides", "dilations", "pads"),
    [
        ((2, 3, 7, 6), (3, 2), (1, 1), (1, 1), ((0, 0), (0, 0))),
        ((1, 2, 8, 9), (3, 3), (2, 1), (1, 2), ((1, 1), (2, 0))),
        ((1, 4, 11), (5,), (3,), (2,), ((4, 1),)),
    ],
)
def test_windows_times_weights_are_the_runtimes_convolution(
    shape, kernel, strides, dilations, pads
):
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    kernels = weight(5, shape[1], *kernel)
    step = node(
        "Conv",
        ["x", "w"],
        ["y"],
        strides=list(strides),
        dilations=list(dilations),
        pads=[before for before, _ in pads] + [after for _, after in pads],
    )
    model = build([step], {"x": list(shape)}, {"y": None}, {"w": kernels})
    wanted = np.moveaxis(run(model, {"x": x})[0], 1, -1).reshape(-1, 5)
    options = {"strides": strides, "dilations": dilations, "pads": pads}
    rows = unfold_windows(x, kernel, **options, most=10**6)
    np.testing.assert_allclose(rows @ kernels.reshape(5, -1).T, wanted, rtol=1e-4, atol=1e-5)
    few = unfold_windows(x, kernel, **options, most=3)
    assert len(few) == 3
    assert {row.tobytes() for row in few} <= {row.tobytes() for row in rows}
