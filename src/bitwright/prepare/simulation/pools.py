"""Averages as the NPU computes them: a sum, times a whole number, shifted right.

It has no division. Over R values it multiplies by k / 2^n, close to 1 / R, so what it gives is the
true mean times f = R k / 2^n. Five square windows have factors of their own in its library, wider
ones than 255 are computed exactly, and the others take the n below 7 + ceil(log2 R) that comes
closest.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from bitwright.decide.ops.matching import known_axes
from bitwright.graph.shapes import element_type
from bitwright.prepare.passes import Scope, rewrites
from bitwright.prepare.simulation.scaling import multiply_behind

# Side of a square window -> k / 2^n.
_TABLE = {3: 7 / 64, 5: 10 / 256, 6: 7 / 256, 7: 21 / 1024, 14: 21 / 4096}
_MAX_WINDOW = 255


def mean_factor(count: int) -> float:
    """Return how many times the true mean of this many values the NPU gives."""
    shifts = range(7 + math.ceil(math.log2(count)))
    powers = [2.0**n for n in shifts]
    best = min(powers, key=lambda power: abs(round(power / count) / power - 1 / count))
    return count * round(best / count) / best


def pool_factor(height: int, width: int) -> float:
    """Return how many times the true average of a square window the NPU gives."""
    if max(height, width) > _MAX_WINDOW:
        return 1.0
    if height == width and height in _TABLE:
        return height * width * _TABLE[height]
    return mean_factor(height * width)


@rewrites("AveragePool", "GlobalAveragePool", stays="pool {0.name!r} was not simulated")
def scale_average_pools(pool: ir.Node, names: Scope) -> bool | str:
    """Put the NPU's factor behind every average pool of a square window.

    Windows that reach over the edge have it too, as in the vendor's simulation. Rectangular ones
    and those of unknown size stay exact; the notes name them.
    """
    window = _window(pool)
    return window if isinstance(window, str) else multiply_behind(pool, pool_factor(*window), names)


def _window(pool: ir.Node) -> tuple[int, int] | str:
    """Return the window of a pool, or why there is no single one that the NPU has."""
    x = pool.inputs[0]
    if x is not None and element_type(x) not in (ir.DataType.FLOAT, None):
        return f"it computes in {element_type(x)}"
    if pool.op_type == "GlobalAveragePool":
        if x is None or x.shape is None:
            return "the shape of its input is not known"
        window = list(x.shape[2:])
    else:
        window = list(pool.attributes.get_ints("kernel_shape", []))
    if len(window) != 2:
        return f"it has {len(window)} dimensions in place of height and width"
    height, width = window
    if not isinstance(height, int) or not isinstance(width, int):
        return "height and width are not fixed"
    if height != width:
        return f"its window of {height}x{width} is not square"
    return height, width


@rewrites("ReduceMean", stays="mean {0.name!r} was not simulated")
def scale_means(mean: ir.Node, names: Scope) -> bool | str:
    """Put the NPU's factor behind every ReduceMean over a fixed number of values."""
    if element_type(mean.outputs[0]) not in (ir.DataType.FLOAT, None):
        return False
    count = _reduced(mean)
    if count is None:
        return "how much it covers varies"
    return count > 0 and multiply_behind(mean, mean_factor(count), names)


def _reduced(mean: ir.Node) -> int | None:
    """Return how many values each mean is of."""
    x = mean.inputs[0]
    if x is None or x.shape is None:
        return None
    axes = known_axes(mean)
    if axes is None:
        if len(mean.inputs) > 1 and mean.inputs[1] is not None:
            given = mean.inputs[1].const_value
            if given is None or given.size:
                return None  # computed at run time
        if mean.attributes.get_int("noop_with_empty_axes", 0):
            return 1
        axes = tuple(range(len(x.shape)))
    sizes = [x.shape[axis] for axis in axes]
    whole = [size for size in sizes if isinstance(size, int)]
    return math.prod(whole) if len(whole) == len(sizes) else None
