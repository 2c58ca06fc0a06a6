"""GPTQ of one layer, ours and the peers': CPU time, wall time, peak memory and what error is left.

Each runs in a process of its own, one after the other, on the same random layer with correlated
inputs. The error is that of the layer's output on these inputs, over that of nearest rounding: 1.00
means that the method did nothing. neural-compressor wants an old numpy, so it gets its own
interpreter.

    python benchmarks/gptq.py                                           4096 x 4096, 4 bits, g128
    python benchmarks/gptq.py --size 1024 --block-size 32
    python benchmarks/gptq.py --neural-compressor venv/bin/python       the peer's interpreter
    python benchmarks/gptq.py --torch [--cuda]                          the same algorithm on torch
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
from measure import Measured, print_table, run_apart


def write_problem(path: Path, size: int) -> None:
    """A square layer, and inputs of which a few directions and a few channels are much larger."""
    rng = np.random.default_rng(0)
    mix = rng.standard_normal((size, size), np.float32) / np.float32(np.sqrt(size))
    channels = np.exp(rng.standard_normal(size)).astype(np.float32)
    inputs = rng.standard_normal((2 * size, size), np.float32) @ mix * channels
    weights = rng.standard_normal((size, size), np.float32) / np.float32(np.sqrt(size))
    np.savez(path, weights=weights, hessian=inputs.T @ inputs / np.float32(2 * size))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--block-size", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1, help="1: CPU time is work, not waiting")
    parser.add_argument("--neural-compressor", metavar="PYTHON", help="an interpreter that has it")
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--cuda", action="store_true")
    options = parser.parse_args()
    names = ["nearest", "bitwright", "bitwright, refined", "plain numpy", "onnxruntime"]
    names += ["bitwright on torch"] * options.torch + ["bitwright on cuda"] * options.cuda
    names += ["neural-compressor"] * bool(options.neural_compressor)
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = str(options.threads)
    rows = []
    with tempfile.TemporaryDirectory(prefix="bitwright-bench-") as folder:
        problem = Path(folder) / "layer.npz"
        write_problem(problem, options.size)
        base = None
        for name in names:
            python = options.neural_compressor if name == "neural-compressor" else sys.executable
            found = run_apart("gptq_worker.py", name, problem, options.block_size, python=python)
            if isinstance(found, Measured):
                base = base or found.extra["error"]
                rows.append(
                    (
                        name,
                        f"{found.seconds:.2f} s",
                        f"{found.extra['wall']:.2f} s",
                        f"{found.peak:.0f} MB",
                        f"{found.extra['error'] / base:.2f}",
                    )
                )
            else:
                rows.append((name, found, "", "", ""))
            print(" | ".join(rows[-1]), flush=True)
    print()
    print_table(("GPTQ", "CPU time", "wall", "peak", "error / nearest"), rows)


if __name__ == "__main__":
    main()
