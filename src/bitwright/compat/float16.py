"""`onnxruntime.transformers.float16`: a model whose tensors are float16.

Names that are not here are those of the installed module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from bitwright.api import quantize
from bitwright.compat.model_wrapper import ONNXModel
from bitwright.compat.neural_compressor.inputs import source_of
from bitwright.compat.paths import hand_on_names
from bitwright.errors import NothingQuantizedError
from bitwright.graph import float_constant_of, load_model, normalize
from bitwright.recipe import Rewrites, named_recipe
from bitwright.support.wording import warn_user


def convert_float_to_float16(
    model: Any,
    min_positive_val: float = 5.96e-08,
    max_finite_val: float = 65504.0,
    keep_io_types: bool | Sequence[str] = False,
    disable_shape_infer: bool = False,  # shapes are inferred where types are not known
    op_block_list: Sequence[str] | None = None,
    node_block_list: Sequence[str] | None = None,
    force_fp16_initializers: bool = False,
    force_fp16_inputs: Any = None,
    use_bfloat16_as_blocked_nodes_dtype: bool = False,
) -> onnx.ModelProto:
    """Return a model that is computed in float16; the one that is given is not changed.

    Without an `op_block_list` what has no float16 kernel stays float32. Constants are moved into
    the range that the two numbers span.

    >>> import bitwright
    >>> half = convert_float_to_float16(bitwright.load_demo().model_path, keep_io_types=True)
    >>> [node.op_type for node in half.graph.node][0]
    'Cast'
    """
    others = {
        "force_fp16_initializers": force_fp16_initializers,
        "force_fp16_inputs": force_fp16_inputs,
        "use_bfloat16_as_blocked_nodes_dtype": use_bfloat16_as_blocked_nodes_dtype,
    }
    for name in (name for name, given in others.items() if given):
        warn_user(f"{name} is ignored: a node's tensors all have its type, or all float32.")
    work = _within(load_model(source_of(model)), min_positive_val, max_finite_val)
    types = {node.op_type for node in work.graph.all_nodes()}.intersection(op_block_list or ())
    recipe = named_recipe("float16").replace(
        float_io=keep_io_types if isinstance(keep_io_types, bool) else tuple(keep_io_types),
        optimize=False,
        rewrite=Rewrites(),
        select={
            "exclude_op_types": tuple(sorted(types)),
            "exclude": tuple(node_block_list or ()),
            "unknown_names": "warn",
        },
    )
    try:
        return ONNXModel(quantize(work, recipe=recipe, progress=False).model).model
    except NothingQuantizedError as error:
        warn_user(f"the model stays as it is: {error}")
        return ONNXModel(work).model


def _within(work: ir.Model, least: float, most: float) -> ir.Model:
    """Move constants into a range of magnitudes; zeros and what is not finite stay."""
    normalize(work)
    for value in work.graph.initializers.values():
        array = float_constant_of(value)
        if array is not None and array.dtype == np.float32:
            size = np.clip(np.abs(array), least, most)
            moved = np.where((array == 0) | ~np.isfinite(array), array, np.copysign(size, array))
            value.const_value = ir.tensor(moved.astype(array.dtype), name=value.name)
    return work


__getattr__ = hand_on_names("onnxruntime.transformers.float16")
