"""Float in, float out: passes that make a model easier to quantize and leave what it computes."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from bitwright.prepare.fold_batch_norm import fold_batch_norm
from bitwright.prepare.fold_constants import fold_constants
from bitwright.prepare.fold_gemm_scalars import fold_gemm_scalars

__all__ = ["fold_batch_norm", "fold_constants", "fold_gemm_scalars", "prepare"]

# Pass, whether it is an optimization (the others are needed for right numbers), and what it did.
# Constants come first: a folded weight is what the passes after it look for.
_PASSES: tuple[tuple[Callable[[ir.Model], int], bool, str], ...] = (
    (fold_constants, True, "removed {} constant, idle or repeated node"),
    (fold_batch_norm, True, "folded {} batch norm"),
    (fold_gemm_scalars, False, "folded the scalars of {} Gemm node"),
)


def prepare(model: ir.Model, *, optimize: bool = True) -> list[str]:
    """Run the passes in place and return a sentence for each one that changed something.

    >>> graph = ir.Graph([], [], nodes=[], opset_imports={"": 21})
    >>> prepare(ir.Model(graph, ir_version=10))
    []
    """
    done: list[str] = []
    for change, is_optimization, sentence in _PASSES:
        if is_optimization and not optimize:
            continue
        count = change(model)
        if count:
            done.append(sentence.format(count) + ("" if count == 1 else "s"))
    return done
