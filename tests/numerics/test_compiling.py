import os
import subprocess
import sys

import pytest

from bitwright.numerics.compiling import compiled, default_engine


def _total(values):
    total = 0.0
    for i in range(values.size):
        total += values[i]
    return total


@pytest.mark.parametrize("reorder", [True, False])
def test_a_compiled_function_gives_what_the_plain_one_gives(reorder):
    np = pytest.importorskip("numpy")
    pytest.importorskip("numba")
    values = np.arange(1000.0)
    assert compiled(_total, reorder=reorder)(values) == _total(values)
    assert compiled(_total, reorder=reorder) is compiled(_total, reorder=reorder)


def test_numba_can_be_switched_off(monkeypatch):
    monkeypatch.setenv("BITWRIGHT_NUMBA", "0")
    assert default_engine() == "numpy"


def test_ranges_without_numba_never_load_it():
    code = (
        "import sys, numpy as np\n"
        "from bitwright.decide.ranges.methods import choose_range\n"
        "from bitwright.numerics.types import UINT8\n"
        "from bitwright.observe import TensorSketch\n"
        "from bitwright.recipe import MSE\n"
        "choose_range(TensorSketch.of(np.linspace(-1, 2, 99)), MSE(), UINT8)\n"
        "assert 'numba' not in sys.modules\n"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "BITWRIGHT_NUMBA": "0"}
    )
