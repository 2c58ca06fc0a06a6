"""4-bit weights by nearest rounding beside ONNX Runtime's default quantizer: whole processes.

Writes a float32 language model with external data, quantizes it with both tools, each in a process
of its own from its start to its end, and checks the same product of both results. Ours also opens
and runs what it made up to 1 GB, and searches the range of each block.

    python benchmarks/nearest.py                    1 GB
    python benchmarks/nearest.py --gigabytes 0.2 --runs 3
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from large_model import error_of_first_product, write_model
from measure import print_table

OURS = """
import sys, bitwright
bitwright.quantize(*sys.argv[1:], recipe="int4-rtn", external_data=True, progress=False)
"""
PEER = """
import logging, sys, onnx
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
logging.disable()
quantizer = MatMulNBitsQuantizer(onnx.load(sys.argv[1]), bits=4, block_size=32, is_symmetric=False)
quantizer.process()
quantizer.model.save_model_to_file(sys.argv[2], True)
"""


class Cost(NamedTuple):
    wall: float
    cpu: float
    peak: float
    """MB."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--runs", type=int, default=3, help="of each tool; the best one counts")
    parser.add_argument("--folder", type=Path, help="where there is room; the temporary folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bitwright-nearest-", dir=options.folder) as folder:
        model = Path(folder) / "model.onnx"
        size = write_model(model, int(options.gigabytes * 1e9), options.width)
        tools = {"bitwright int4-rtn": OURS, "ONNX Runtime, default": PEER}
        best: dict[str, Cost] = {}
        errors = {}
        for _ in range(options.runs):
            for name, code in tools.items():
                output = Path(folder) / "small.onnx"
                cost = run(code, model, output)
                best[name] = Cost(*map(min, zip(best.get(name, cost), cost, strict=True)))
                errors[name] = error_of_first_product(model, output)
                for file in Path(folder).glob("small*"):
                    file.unlink()
    ours, peer = best.values()
    rows = [
        (name, f"{c.wall:.1f}", f"{c.cpu:.1f}", f"{c.peak:.0f}", f"{errors[name]:.4f}")
        for name, c in best.items()
    ]
    ratios = [f"{mine / theirs:.2f}" for mine, theirs in zip(ours, peer, strict=True)]
    first, second = errors.values()
    print(f"{size / 1e9:.2f} GB of float32, the best of {options.runs} runs")
    print_table(
        ("tool", "wall s", "CPU s", "peak MB", "error of a product"),
        [*rows, ("ratio", *ratios, f"{first / second:.3f}")],
    )


def run(code: str, *arguments: Path) -> Cost:
    """Return what a whole process costs."""
    # An installed package comes compiled; from a clone, only the first run may have to do it.
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], env=kept)
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    if status:
        sys.exit(f"a tool failed with status {os.waitstatus_to_exitcode(status)}")
    return Cost(wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


if __name__ == "__main__":
    main()
