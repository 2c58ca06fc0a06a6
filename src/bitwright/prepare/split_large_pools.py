"""Split a global average over more values than hardware can sum into two pools.

The mean of the means of equal windows is the mean of all: an AveragePool of d_h x d_w goes before
the GlobalAveragePool, with d the largest divisor of a side that is not above its square root.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from bitwright.prepare.passes import Builder, Scope, rewrites

_MAX_POOLED_VALUES = 512
"""How many values a pool of the NPU adds up."""


@rewrites("GlobalAveragePool")
def split_large_pools(pool: ir.Node, names: Scope) -> bool | str:
    """Put an AveragePool before every GlobalAveragePool over more than 512 values.

    Why a large pool stays, or one of unknown size, is in the notes.
    """
    x = pool.inputs[0]
    if x is None or x.shape is None or len(x.shape) != 4:
        return f"pool {pool.name!r} was not split: its input is not known to be 4-dimensional"
    height, width = x.shape[2], x.shape[3]
    if not isinstance(height, int) or not isinstance(width, int):
        return f"pool {pool.name!r} was not split: height and width are not fixed"
    if height * width <= _MAX_POOLED_VALUES:
        return False
    first = _smaller_factor(height), _smaller_factor(width)
    left = height // first[0], width // first[1]
    if math.prod(first) > _MAX_POOLED_VALUES or math.prod(left) > _MAX_POOLED_VALUES:
        return (
            f"pool {pool.name!r} over {height}x{width} values was not split: "
            f"no two pools of at most {_MAX_POOLED_VALUES} values make it up"
        )
    name, shape = f"{pool.outputs[0].name}_part", ir.Shape([x.shape[0], x.shape[1], *left])
    settings = {"kernel_shape": list(first), "strides": list(first)}
    averaged = Builder(pool, names).add("AveragePool", [x], name, settings, shape=shape)
    pool.replace_input_with(0, averaged)
    return True


def _smaller_factor(number: int) -> int:
    """Return the largest divisor that is not above the square root; 1 for a prime."""
    return next(d for d in range(math.isqrt(number), 0, -1) if number % d == 0)
