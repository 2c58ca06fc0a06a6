"""AWQ in steps, by Neural Compressor's names: scales first, then one clip ratio for each weight."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from bitwright.compat.model_wrapper import ONNXModel
from bitwright.compat.neural_compressor.inputs import ModelSource, source_of
from bitwright.compat.neural_compressor.settings import NodeSettings, node_settings
from bitwright.compat.neural_compressor.tensors import is_symmetric
from bitwright.equalize.awq import awq_scales, awq_shrink
from bitwright.equalize.smoothquant import apply_smoothing
from bitwright.errors import ModelError, RecipeError, did_you_mean
from bitwright.graph import load_model, weight_of
from bitwright.numerics import BlockFormat, SecondMoment
from bitwright.plan import Smoothing
from bitwright.support.array_types import Array

Outputs = Mapping[str, Sequence[Array]]

_RATIOS = tuple(1 - step / 100 for step in range(10))


def apply_awq_scale(
    model: ModelSource,
    weight_config: Mapping[str, Any],
    absorb_pairs: Mapping[str, Sequence[onnx.NodeProto]],
    output_dicts: Outputs,
    num_bits: int,
    group_size: int,
    scheme: str,
) -> tuple[ONNXModel, dict[str, Any]]:
    """Return the model with salient weights scaled up, and what its products then read.

    `absorb_pairs` has the MatMul nodes behind each parent, `output_dicts` the arrays that each
    tensor held. Neither they nor the model are changed. Siblings share what is chosen, also where
    not scaling is the best choice; the division goes into what computes the tensor where it can.
    """
    work = load_model(source_of(model))
    outputs: dict[str, Any] = dict(output_dicts)
    nodes = {node.name or "": node for node in work.graph}
    smoothing: dict[str, Smoothing] = {}
    for source, group in _groups(nodes, absorb_pairs, outputs):
        moment = _moment(outputs[source])
        form = _format(group[0], weight_config, num_bits, group_size, scheme)
        factors = awq_scales(
            [_rows(node) for node in group], moment.mean_magnitudes(), moment.matrix(), form
        )
        if np.any(factors != 1):
            stored = factors.astype(np.float32).astype(np.float64)
            names = tuple(node.name or "" for node in group)
            smoothing[source] = Smoothing(nodes=names, factors=tuple(stored.tolist()))
    apply_smoothing(work, smoothing, folding=True)
    for source, planned in smoothing.items():
        reads = nodes[planned.nodes[0]].inputs[0]
        assert reads is not None and reads.name is not None
        over = np.array(planned.factors)
        outputs[reads.name] = [(x / over).astype(x.dtype) for x in output_dicts[source]]
    return ONNXModel(work), outputs


def apply_awq_clip(
    model: ModelSource,
    weight_config: Mapping[str, Any],
    absorb_pairs: Mapping[str, Sequence[onnx.NodeProto]],
    output_dicts: Outputs,
    num_bits: int,
    group_size: int,
    scheme: str,
) -> dict[str, float]:
    """Return the part of its range that each weight does best with, by the weight's name.

    The ratios from 1 down to 0.91 are tried in the groups in which the weight will be stored; hand
    them to `rtn_quantize`. (`awq_quantize` itself chooses for each group.)
    """
    work = load_model(source_of(model))
    nodes = {node.name or "": node for node in work.graph}
    ratios: dict[str, float] = {}
    for source, group in _groups(nodes, absorb_pairs, output_dicts):
        moment = _moment(output_dicts[source]).matrix()
        for node in group:
            form = _format(node, weight_config, num_bits, group_size, scheme)
            weight = weight_of(node)
            assert weight is not None and weight.value.name is not None
            ratios[weight.value.name] = awq_shrink(_rows(node), moment, form, shrinks=_RATIOS)
    return ratios


def _groups(
    nodes: Mapping[str, ir.Node],
    absorb_pairs: Mapping[str, Sequence[onnx.NodeProto]],
    outputs: Mapping[str, Any],
) -> Iterable[tuple[str, list[ir.Node]]]:
    """Yield each tensor that was observed, with the products that read it now."""
    found: dict[str, list[ir.Node]] = {}
    for siblings in absorb_pairs.values():
        for proto in siblings:
            if proto.name not in nodes:
                raise ModelError(
                    f"the model has no node {proto.name!r}.{did_you_mean(proto.name, nodes)}"
                )
            node = nodes[proto.name]
            source = node.inputs[0]
            if weight_of(node) is None or source is None or source.name is None:
                raise ModelError(f"node {proto.name!r} multiplies by no constant weight.")
            if source.name in outputs:
                found.setdefault(source.name, []).append(node)
            else:
                warnings.warn(
                    f"node {proto.name!r} is left out: output_dicts has no {source.name!r}.",
                    UserWarning,
                    stacklevel=3,
                )
    yield from found.items()


def _moment(arrays: Sequence[Array]) -> SecondMoment:
    first = np.asarray(arrays[0]) if len(arrays) else np.empty(0)
    if not first.ndim:
        raise RecipeError("output_dicts has a list of arrays for each tensor.")
    moment = SecondMoment(first.shape[-1])
    for array in arrays:
        moment.update(array)
    return moment


def _rows(node: ir.Node) -> Array:
    weight = weight_of(node)
    assert weight is not None and weight.value.const_value is not None
    array = weight.value.const_value.numpy()
    return array.T if weight.transposed else array


def _format(
    node: ir.Node, weight_config: Mapping[str, Any], num_bits: int, group_size: int, scheme: str
) -> BlockFormat:
    """Return the form that one node's weight is stored in."""
    given = node_settings(weight_config).get(node.name or "", NodeSettings())
    return BlockFormat(
        bits=num_bits if given.bits is None else given.bits,
        block_size=group_size if given.group_size is None else given.group_size,
        symmetric=is_symmetric(scheme) if given.symmetric is None else given.symmetric,
    )
