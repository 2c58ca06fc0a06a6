"""Constant folding, common subexpressions, and removal of nodes that nothing reads."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import onnx_ir as ir

from bitwright.errors import ModelError
from bitwright.graph import constant_tensor, forget_sizes, remove_unused_nodes
from bitwright.prepare.known_sizes import fold_with_sizes
from bitwright.prepare.passes import PassResult
from bitwright.support.wording import reason_of

# Elements, not bytes: a folded tensor may hold 256 MiB of float32, so that the transposed or cast
# weight of a large layer is still found constant, while a model of gigabytes stays on disk.
_MAX_FOLDED_ELEMENTS = 1 << 26
_MAX_FILLED_ELEMENTS = 64

# Small constants can become huge through these. A result larger than what it replaces is dropped
# by the folder anyway, but only after it was computed.
_GROWING = frozenset(
    {"ConstantOfShape", "Expand", "OneHot", "Pad", "Range", "Resize", "Tile", "Upsample"}
)

# The reference that folds gives other shapes than ONNX Runtime where the standard is silent: a
# window larger than its input, indices that are all batch dimensions, flags beyond 0 and 1. Of its
# global pools not all take three axes.
_POOLS = frozenset(
    "AveragePool GlobalAveragePool GlobalLpPool GlobalMaxPool LpPool MaxPool".split()
)
_FLAGS = frozenset(
    "align_corners allowzero antialias exclude_outside exclusive fmod inverse is_causal keepdims "
    "noop_with_empty_axes onesided periodic reverse select_last_index upper".split()
)

# What the optimizer may rewrite although not all inputs are constant. It also has rules for Abs,
# Add, Gather and Squeeze, which act on constants or on what came from a Shape.
_SIMPLIFIED = frozenset(
    "Cast CastLike Concat ConcatFromSequence Dropout Expand Identity If Reshape SequenceAt "
    "SequenceConstruct Shape Size SplitToSequence".split()
)


def fold_constants(model: ir.Model, *, keep: Callable[[ir.Node], bool] | None = None) -> PassResult:
    """Fold constant nodes, Identity, Dropout and repeated nodes; return how many nodes went.

    Graph inputs and outputs keep their names, and so does every tensor that is still computed.
    QuantizeLinear and DequantizeLinear of constants stay: they carry a quantization. Weights
    are not read unless a node between them and their reader is folded; nodes that `keep` names
    are not.
    """
    from onnx_ir.passes.common import (
        CommonSubexpressionEliminationPass,
        LiftConstantsToInitializersPass,
    )

    before = _count_nodes(model)
    forget_sizes(model, _is_unreliable)
    try:
        if _may_fold(model):
            _fold(model, keep)
        remove_unused_nodes(model)
        if not any("sparse_value" in node.attributes for node in model.graph.all_nodes()):
            LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
        CommonSubexpressionEliminationPass()(model)
        remove_unused_nodes(model)
    except Exception as error:
        # Third-party code met a model it did not expect; what it raises is of every kind.
        raise ModelError(
            f"folding constants failed ({reason_of(error.__cause__ or error)})",
            remedy="set optimize=False to go on without it",
            command="go on without it with --set optimize=false (preprocess: --no-optimize)",
        ) from error
    return PassResult(before - _count_nodes(model))


def _may_fold(model: ir.Model) -> bool:
    """Say whether the optimizer could find anything to do, a shape that it infers included."""
    if model.functions:
        return True
    for node in model.graph.all_nodes():
        if node.op_type == "Constant" and not node.domain:
            continue
        if node.op_type in _SIMPLIFIED or all(map(_is_constant, node.inputs)):
            return True
        if not all(_is_known(value.shape) for value in node.outputs if value.name):
            return True
    return False


def _is_constant(value: ir.Value | None) -> bool:
    return value is None or constant_tensor(value, defaults=True) is not None


def _is_known(shape: ir.Shape | None) -> bool:
    return shape is not None and all(isinstance(d, int) or d.value is not None for d in shape)


def _fold(model: ir.Model, keep: Callable[[ir.Node], bool] | None) -> None:
    # Loaded here: the optimizer takes as long to import as a small model to quantize.
    from onnxscript.optimizer import fold_constants_ir

    def should_fold(node: ir.Node) -> bool | None:
        return False if keep is not None and keep(node) else _should_fold(node)

    fold = partial(
        fold_constants_ir,
        model,
        onnx_shape_inference=True,
        input_size_limit=_MAX_FOLDED_ELEMENTS,
        should_fold=should_fold,
    )
    fold_with_sizes(model, fold)


def _should_fold(node: ir.Node) -> bool | None:
    """Refuse what could fill the memory or get another shape; None lets the optimizer choose."""
    if len(node.outputs) != 1 or _is_beyond_the_standard(node):
        return False
    shape = node.outputs[0].shape
    sizes = [v.const_value.size for v in node.inputs if v is not None and v.const_value is not None]
    known = shape is not None and shape.is_static()
    if shape is not None and known:
        sizes.append(math.prod(shape.numpy()))
    if max(sizes, default=0) > _MAX_FOLDED_ELEMENTS or (node.op_type in _GROWING and not known):
        return False
    # The optimizer would leave it; the few numbers of one are pads, mostly, which others wait for.
    if node.op_type == "ConstantOfShape" and max(sizes, default=0) <= _MAX_FILLED_ELEMENTS:
        return True
    return None


def _is_beyond_the_standard(node: ir.Node) -> bool:
    return (
        node.op_type in _POOLS
        or (node.op_type == "GatherND" and node.attributes.get_int("batch_dims", 0) > 0)
        or any(node.attributes.get_int(name, 0) not in (0, 1) for name in _FLAGS)
    )


def _is_unreliable(dim: int | ir.SymbolicDim) -> bool:
    """Whether a dimension stands for "any size".

    Some exporters write -1, which the optimizer would take for a size, or call several different
    dimensions "?", which it would take for one size.
    """
    return dim < 0 if isinstance(dim, int) else dim.value in ("?", "-1", "None", "")


def _count_nodes(model: ir.Model) -> int:
    """Count what computes: a Constant that becomes an initializer is no change."""
    return sum(node.op_type != "Constant" for node in model.graph.all_nodes())
