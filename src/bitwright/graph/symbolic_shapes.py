"""Shapes with open sizes as formulas of the inputs', by ONNX Runtime's symbolic inference."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from bitwright.errors import MissingPackageError, ModelError
from bitwright.graph.cloning import strip_weights
from bitwright.graph.constants import input_at
from bitwright.graph.shapes import take_over_shapes
from bitwright.graph.subgraphs import iter_messages, owner_nodes, reach, subgraphs_of
from bitwright.graph.versions import opset_of
from bitwright.support.wording import reason_of

_LOGGER = "onnxruntime.tools.symbolic_shape_infer"


def infer_symbolic_shapes(
    model: ir.Model,
    *,
    auto_merge: bool = False,
    int_max: int = 2**31 - 1,
    guess_output_rank: bool = False,
    verbose: int = 0,
) -> None:
    """Fill in shapes in place, open dimensions as formulas of the input's.

    `auto_merge` lets two names that meet be one, `int_max` is the integer that means "to the end"
    in a Slice, `guess_output_rank` takes unknown ops to keep their first input's rank. What could
    be inferred before a failure is kept; the failure is a ModelError.
    """
    if opset_of(model) < 7:
        raise ModelError("symbolic shape inference reads opset 7 and above.")
    inference = _open_inference(int_max, auto_merge, guess_output_rank, verbose)
    complete = False
    problem: Exception | None = None
    with _logging_at(verbose):
        try:
            # Its one public function writes a file into the working directory when it fails, and
            # throws away what it had found.
            inference._preprocess(strip_weights(model).proto)
            while inference.run_:
                complete = inference._infer_impl()
            inference._update_output_from_vi()
        except Exception as error:  # noqa: BLE001 (asserts, KeyErrors and sympy's own kinds)
            problem = error
    found: Any = getattr(inference, "out_mp_", None)
    if found is not None:
        _forget_guessed_ranks(model, found.graph)
        take_over_shapes(model, found)
    if problem is not None:
        raise ModelError(f"symbolic shape inference gave up: {reason_of(problem)}.") from problem
    if not complete:
        raise ModelError(
            "symbolic shape inference is incomplete: some op's output shape is not known; "
            "auto_merge or guess_output_rank may help."
        )


def _open_inference(*options: Any) -> Any:
    """Return the runtime's inference, which here also takes sizes that other nodes compute."""
    try:
        from onnxruntime.tools.symbolic_shape_infer import SymbolicShapeInference
    except ImportError as error:
        raise MissingPackageError(
            "symbolic shape inference needs sympy; install it with "
            "`pip install 'bitwright[shapes]'`."
        ) from error
    inference = SymbolicShapeInference(*options)
    for op_type in ("Split", "Squeeze"):
        known = inference.dispatcher_[op_type]
        inference.dispatcher_[op_type] = partial(_infer_by_computed_input, inference, known)
    return inference


def _forget_guessed_ranks(model: ir.Model, inferred: onnx.GraphProto) -> None:
    """Leave out what was found behind a Squeeze that drops each size of 1, where sizes are open.

    The inference takes an open size for more than 1, and many such nodes are meant for a batch
    of 1.
    """
    infos = [
        info
        for _, graph in iter_messages("", inferred)
        for info in (*graph.input, *graph.value_info, *graph.output)
        if info.type.HasField("tensor_type")
    ]
    settled = {info.name for info in infos if _is_static(info.type.tensor_type)}
    guessed = [
        node.outputs[0]
        for node in model.graph.all_nodes()
        if (value := _squeezed_anywhere(node)) is not None and value.name not in settled
    ]
    unknown = {value.name for value in _values_behind(guessed, owner_nodes(model))}
    for info in infos:
        if info.name in unknown:
            info.type.tensor_type.ClearField("shape")


def _squeezed_anywhere(node: ir.Node) -> ir.Value | None:
    """Return the input of a Squeeze that names no axes."""
    is_squeeze = node.op_type == "Squeeze" and not node.domain
    names_axes = "axes" in node.attributes or input_at(node, 1) is not None
    return node.inputs[0] if is_squeeze and not names_axes else None


def _is_static(tensor: onnx.TypeProto.Tensor) -> bool:
    return tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim)


def _values_behind(
    values: Iterable[ir.Value], owners: Mapping[ir.Graph, ir.Node]
) -> Iterable[ir.Value]:
    """Return values and all that is computed from them, into bodies and out of them."""

    def behind(value: ir.Value) -> Iterator[ir.Value]:
        for node, _ in value.uses():
            yield from node.outputs
            yield from (given for _, body in subgraphs_of(node) for given in body.inputs)
        if value.is_graph_output() and value.graph is not None and value.graph in owners:
            yield from owners[value.graph].outputs

    return reach(values, behind)


def _infer_by_computed_input(
    inference: Any, known: Callable[[onnx.NodeProto], None], node: onnx.NodeProto
) -> None:
    """Infer a Split or Squeeze whose lengths or axes are computed.

    The inference takes a second input that is no constant for one that is not there: equal parts,
    every dimension of 1. It also takes the parts of `num_outputs` to be equal.
    """
    name = node.input[1] if len(node.input) > 1 else ""
    if name and inference._try_get_value(node, 1) is None:
        computed = inference.sympy_data_.get(name)
        if not isinstance(computed, list) or not all(_is_whole(value) for value in computed):
            _leave_open(inference, node)
            return
        values = np.array([int(value) for value in computed], np.int64)
        inference.initializers_[name] = onnx.numpy_helper.from_array(values, name)
    if any(attribute.name == "num_outputs" for attribute in node.attribute):
        inference._onnx_infer_single_node(node)
        return
    known(node)


def _leave_open(inference: Any, node: onnx.NodeProto) -> None:
    """Give outputs the rank that they have, and names to the dimensions that are computed."""
    shape = list(inference._get_shape(node, 0))
    axis: int | None = None
    if node.op_type == "Split":
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0) % len(shape)
    else:
        shape = shape[inference._get_shape(node, 1)[0] :]
    for index, output in enumerate(node.output):
        dims = [
            str(inference._new_symbolic_dim_from_output(node, index, position))
            if axis in {None, position}
            else dim
            for position, dim in enumerate(shape)
        ]
        dtype = inference.known_vi_[node.input[0]].type.tensor_type.elem_type
        info = onnx.helper.make_tensor_value_info(output, dtype, dims)
        inference.known_vi_[output].CopyFrom(info)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) or getattr(value, "is_Integer", False)


@contextmanager
def _logging_at(verbose: int) -> Iterator[None]:
    """Show as much of the inference's own log as was asked for, and no more."""
    logger = logging.getLogger(_LOGGER)
    before = logger.level
    level = logging.CRITICAL if verbose <= 0 else logging.WARNING if verbose < 3 else logging.DEBUG
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)
