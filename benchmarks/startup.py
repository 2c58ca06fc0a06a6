"""How long it takes to import the package, to show help, and to choose ranges.

python benchmarks/startup.py
"""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np

COMMANDS = {
    "python, nothing imported": ["-c", "pass"],
    "import bitwright": ["-c", "import bitwright"],
    "import onnxruntime.quantization": ["-c", "import onnxruntime.quantization"],
    "bitwright --help": ["-m", "bitwright", "--help"],
    "bitwright quantize --help": ["-m", "bitwright", "quantize", "--help"],
}
RUNS = 5


def main() -> None:
    for name, words in COMMANDS.items():
        seconds = []
        for _ in range(RUNS):
            started = time.perf_counter()
            subprocess.run([sys.executable, *words], check=True, capture_output=True)
            seconds.append(time.perf_counter() - started)
        print(f"{name:34}{min(seconds):7.3f} s, the best of {RUNS}")
    choose_ranges()


def choose_ranges() -> None:
    """Print what it costs to try another range method once the pass over the data is done."""
    from bitwright import MSE, Entropy, MinMax, Percentile
    from bitwright.decide.ranges.methods import choose_range
    from bitwright.numerics.types import UINT8
    from bitwright.observe import TensorSketch

    random = np.random.default_rng(0)
    sketch = TensorSketch.of(random.standard_normal(200_000).astype(np.float32))
    for method in (MinMax(), Percentile(), Entropy(), MSE()):
        choose_range(sketch, method, UINT8)
        started = time.perf_counter()
        for _ in range(10):
            choose_range(sketch, method, UINT8)
        each = (time.perf_counter() - started) / 10
        print(f"one tensor, {type(method).__name__:22}{1e3 * each:7.3f} ms")


if __name__ == "__main__":
    main()
