"""Warnings name the line of the user's code."""

import pytest

from bitwright.compat.options import ignore_unknown


def test_a_warning_points_out_of_the_package():
    with pytest.warns(UserWarning, match="Did you mean 'percentile'") as caught:
        assert ignore_unknown({"percentil": 1}, ["percentile"]) == {}
    assert caught[0].filename == __file__
