"""One measurement of `gptq.py`: WHO PROBLEM BLOCK_SIZE. Also for a peer's own interpreter."""

from __future__ import annotations

import sys
import time

import numpy as np
from measure import report


def ours(weights, hessian, block_size, where="numpy"):
    from bitwright.numerics.arrays import arrays_on
    from bitwright.numerics.blocks import BlockFormat
    from bitwright.rounding.gptq import factor_hessian, gptq

    xp, form = arrays_on(where), BlockFormat(block_size=block_size)

    def work():
        return gptq(weights, factor_hessian(hessian, xp=xp), form)

    if where != "numpy":
        work()  # the first call loads kernels
    return work, lambda found: found.dequantize(np.float32)


def refined(weights, hessian, block_size):
    from bitwright.numerics.blocks import BlockFormat
    from bitwright.rounding.gptq import factor_hessian, gptq
    from bitwright.rounding.refinement import refine

    form = BlockFormat(block_size=block_size)

    def work():
        return refine(weights, gptq(weights, factor_hessian(hessian), form), hessian)

    return work, lambda found: found.dequantize(np.float32)


def nearest(weights, hessian, block_size):
    from bitwright.numerics.blocks import BlockFormat, quantize_in_blocks

    form = BlockFormat(block_size=block_size)
    return lambda: quantize_in_blocks(weights, form), lambda found: found.dequantize(np.float32)


def plain(weights, hessian, block_size):
    """The published loop in numpy: an inverse, its Cholesky factor, lazy batches of 128 rows."""

    def work():
        rows, columns = weights.shape
        damped = hessian + 0.01 * np.diag(hessian).mean() * np.eye(rows)
        upper = np.linalg.cholesky(np.linalg.inv(damped)).T.astype(np.float32)
        left, result = weights.copy(), np.empty_like(weights)
        for start in range(0, rows, 128):
            stop = min(start + 128, rows)
            errors = np.empty((stop - start, columns), np.float32)
            for row in range(start, stop):
                if row % block_size == 0:
                    group = left[row : row + block_size]
                    low, high = (np.minimum(group.min(0), 0), np.maximum(group.max(0), 0))
                    scale = np.where(high > low, (high - low) / 15, 1).astype(np.float32)
                    zero = np.rint(-low / scale)
                codes = np.clip(np.rint(left[row] / scale) + zero, 0, 15)
                result[row] = (codes - zero) * scale
                errors[row - start] = (left[row] - result[row]) / upper[row, row]
                left[row:stop] -= np.outer(upper[row, row:stop], errors[row - start])
            left[stop:] -= upper[start:stop, stop:].T @ errors
        return result

    return work, lambda found: found


def onnxruntime_copy(weights, hessian, block_size):
    from onnxruntime.quantization.neural_compressor.weight_only import gptq

    given = weights.copy(), hessian.copy()
    return lambda: gptq(*given, group_size=block_size), lambda found: found


def neural_compressor(weights, hessian, block_size):
    from neural_compressor.adaptor.ox_utils.weight_only import gptq

    given = weights.copy(), hessian.copy()
    return lambda: gptq(*given, group_size=block_size), lambda found: found


CONTENDERS = {
    "nearest": nearest,
    "bitwright": ours,
    "bitwright, refined": refined,
    "bitwright on torch": lambda *problem: ours(*problem, where="torch"),
    "bitwright on cuda": lambda *problem: ours(*problem, where="cuda"),
    "plain numpy": plain,
    "onnxruntime": onnxruntime_copy,
    "neural-compressor": neural_compressor,
}


def main() -> None:
    who, path, block_size = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with np.load(path) as problem:
        weights, hessian = problem["weights"], problem["hessian"].astype(np.float64)
    work, read = CONTENDERS[who](weights, hessian, block_size)
    wall, used = time.perf_counter(), time.process_time()
    found = work()
    wall, used = time.perf_counter() - wall, time.process_time() - used
    change = np.asarray(read(found), np.float32) - weights
    error = float(((hessian.astype(np.float32) @ change) * change).sum())
    report(used, wall=wall, error=error)


if __name__ == "__main__":
    main()
