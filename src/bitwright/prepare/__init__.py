"""Float in, float out: passes that make a model easier to quantize and leave what it computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import onnx_ir as ir

from bitwright.prepare.drop_no_ops import drop_no_ops
from bitwright.prepare.fold_batch_norm import fold_batch_norm
from bitwright.prepare.fold_constants import fold_constants
from bitwright.prepare.fold_gemm_scalars import fold_gemm_scalars
from bitwright.prepare.fold_scale_shift import fold_scale_shift
from bitwright.prepare.fuse_hard_swish import fuse_hard_swish
from bitwright.prepare.trained import Trained, read_trained
from bitwright.prepare.widen_half_floats import widen_half_floats

__all__ = [
    "Trained",
    "drop_no_ops",
    "fold_batch_norm",
    "fold_constants",
    "fold_gemm_scalars",
    "fold_scale_shift",
    "fuse_hard_swish",
    "prepare",
    "read_trained",
    "widen_half_floats",
]


class _Pass(NamedTuple):
    change: Callable[[ir.Model], int]
    sentence: str
    is_optimization: bool = True
    """The others are needed for right numbers."""
    is_repeated: bool = False
    """Whether another pass can open new places for it. Each removes nodes, so this ends."""


# Constants come first: a folded weight is what the passes after it look for. The hard swish comes
# before the scales and shifts, which would take its pieces away one by one.
_PASSES = (
    _Pass(widen_half_floats, "widened {} float16 tensor", is_optimization=False),
    _Pass(fold_constants, "removed {} constant, idle or repeated node"),
    _Pass(drop_no_ops, "dropped {} no-op", is_repeated=True),
    _Pass(fuse_hard_swish, "fused {} hard-swish pattern", is_repeated=True),
    _Pass(fold_batch_norm, "folded {} batch norm", is_repeated=True),
    _Pass(fold_scale_shift, "folded {} constant scale or shift node", is_repeated=True),
    _Pass(fold_gemm_scalars, "folded the scalars of {} Gemm node", is_optimization=False),
)


def prepare(model: ir.Model, *, optimize: bool = True) -> list[str]:
    """Run the passes in place and return a sentence for each one that changed something.

    >>> graph = ir.Graph([], [], nodes=[], opset_imports={"": 21})
    >>> prepare(ir.Model(graph, ir_version=10))
    []
    """
    wanted = [step for step in _PASSES if optimize or not step.is_optimization]
    counts = [step.change(model) for step in wanted]
    changed = any(counts)
    while changed:
        changed = False
        for index, step in enumerate(wanted):
            if step.is_repeated:
                more = step.change(model)
                counts[index] += more
                changed = changed or more > 0
    return [
        step.sentence.format(count) + ("" if count == 1 else "s")
        for step, count in zip(wanted, counts, strict=True)
        if count
    ]
