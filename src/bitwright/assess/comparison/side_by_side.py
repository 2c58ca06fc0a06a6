"""Two models run side by side over the samples, once, in constant memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt
import onnx_ir as ir

from bitwright.assess.comparison.merged_graph import Known, MergedGraph, at_one_opset
from bitwright.assess.comparison.nodes import describe_nodes
from bitwright.assess.comparison.results import Comparison, TensorComparison
from bitwright.assess.comparison.streaming import Behind
from bitwright.assess.comparison.units import WEIGHTED, Cut, Units, cut_models
from bitwright.assess.comparison.weights import weight_errors
from bitwright.assess.outputs import OutputSums
from bitwright.assess.sums import ErrorSums
from bitwright.decide.ops import CONVOLUTIONS
from bitwright.errors import DataError, ModelError
from bitwright.graph import (
    SessionRunner,
    clone_model,
    infer_shapes,
    normalize,
    open_session,
    run_session,
)
from bitwright.plan import QuantPlan

__all__ = ["compare_models", "open_units"]

Array = npt.NDArray[Any]
Sample = Mapping[str, Array]


def open_units(plain: ir.Model, quantized: ir.Model) -> Units:
    """Bring two models to one form and cut them where they have tensors in common.

    The models that are given stay as they are.
    """
    both = []
    for model in (plain, quantized):
        copy = clone_model(model)
        normalize(copy)
        both.append(copy)
    _check_inputs(*both)
    both = list(at_one_opset(*both))
    for model in both:
        infer_shapes(model)
    return cut_models(*both)


def compare_models(
    plain: ir.Model,
    quantized: ir.Model,
    samples: Iterable[Sample],
    *,
    exact: ir.Model | None = None,
    plan: QuantPlan | None = None,
    memory_budget: int,
    providers: Sequence[str] | None = None,
    report: Callable[[int], None] = lambda done: None,
) -> Comparison:
    """Return how far the quantized model is from the float one, tensor by tensor.

    Tensors of one sample that do not fit the memory budget are looked at in groups. `exact` is
    what outputs are held against where `plain` itself is not: it imitates hardware, so that its
    tensors are those of the quantized model. `plan` tells why nodes are float.
    """
    units = open_units(plain, quantized)
    merged = _merge(units, with_exact=exact is not None)
    truth = None if exact is None else open_session(exact, providers=providers)
    if not merged.outputs and not merged.tensors:
        raise ModelError(
            "the two models have no tensor in common, not even an output; check that the second "
            "was made from the first."
        )
    runner = SessionRunner(
        merged.model,
        [name for bundle in merged.bundles for name in bundle],
        # Two sets are alive at a time: one being looked at, one being computed.
        group_bytes=max(memory_budget // 2, 1),
        providers=providers,
        bundles=merged.bundles,
    )
    done = 0
    with Behind(merged.look) as behind:
        for sample in samples:
            given = {} if truth is None else run_session(truth, sample)
            answers = {_exactly(name): array for name, array in given.items()}
            for group in runner.groups(sample):
                behind.push({**runner.run(group, sample), **answers})
            done += 1
            report(done)
    if not done:
        raise DataError("there is no sample to compare the models on; give at least one.")
    tensors = {spot.cut.name: spot.finish() for spot in merged.tensors if spot.total.count}
    return Comparison(
        outputs=[sums.finish(name) for name, (_, _, sums) in merged.outputs.items() if sums.count],
        tensors=tensors,
        nodes=describe_nodes(units, tensors, plan),
        samples=done,
        weights=weight_errors(units),
    )


@dataclass(slots=True)
class _Spot:
    """A cut in the merged graph: the names of its three tensors, and what was seen of them."""

    cut: Cut
    plain: str
    actual: str
    local: str | None
    axis: int | None
    total: ErrorSums = field(default_factory=ErrorSums)
    alone: ErrorSums = field(default_factory=ErrorSums)

    def look(self, values: Mapping[str, Array]) -> None:
        if self.plain not in values:
            return
        expected = values[self.plain]
        if values[self.actual].shape != expected.shape:
            return  # matched by name, but it is something else
        self.total.add(expected, values[self.actual], codes=self.cut.codes)
        if self.local is not None:
            self.alone.add(expected, values[self.local], codes=self.cut.codes, axis=self.axis)

    def finish(self) -> TensorComparison:
        total, alone, codes = self.total, self.alone, self.cut.codes
        return TensorComparison(
            self.cut.name,
            total.sqnr,
            total.cosine,
            total.largest,
            local_sqnr=None if self.local is None else alone.sqnr,
            channel_sqnr=None if self.local is None else alone.channel_sqnr,
            saturated=None if codes is None else total.cut / total.count,
            used=None
            if codes is None
            else (total.high - total.low + 1) / (codes.highest - codes.lowest + 1),
        )


@dataclass(slots=True)
class _Merged:
    model: ir.Model
    tensors: list[_Spot]
    outputs: dict[str, tuple[str, str, OutputSums]]

    @property
    def bundles(self) -> list[tuple[str, ...]]:
        found = [
            tuple(dict.fromkeys(filter(None, (spot.plain, spot.actual, spot.local))))
            for spot in self.tensors
        ]
        pairs = [(one, other) for one, other, _ in self.outputs.values()]
        known = {value.name for value in self.model.graph.outputs}
        return [*found, *(tuple(name for name in pair if name in known) for pair in pairs)]

    def look(self, values: Mapping[str, Array]) -> None:
        for spot in self.tensors:
            spot.look(values)
        for one, other, sums in self.outputs.values():
            if one not in values or other not in values:
                continue
            if values[one].shape == values[other].shape:
                sums.add(values[one], values[other])


def _exactly(output: str) -> str:
    """Return what an output of the exact model is called beside the merged graph's tensors."""
    return f"{output}#exact"


def _merge(units: Units, *, with_exact: bool = False) -> _Merged:
    """Put the float model, the quantized one and each quantized unit on its own into one graph."""
    merged = MergedGraph(units)
    plain, quantized = merged.start(units.plain), merged.start(units.quantized)
    merged.add(units.plain.graph, plain)
    merged.add(units.quantized.graph, quantized)
    shared = merged.start(units.quantized)
    for cut in units.cuts:
        shared[cut.value] = float_in_place(merged, cut, plain[cut.plain], shared)
    spots = []
    for cut in units.cuts:
        local = None
        if cut.is_quantized:
            known: Known = dict(shared)
            del known[cut.value]
            merged.add(cut.nodes, known)
            local = merged.measured(cut, known)
        spots.append(
            _Spot(
                cut,
                merged.readable(plain[cut.plain]).name or "",
                merged.readable(quantized[cut.measured]).name or "",
                None if local is None else merged.readable(local).name,
                _channel_axis(cut),
            )
        )
    outputs = {}
    given = {value.name: value for value in units.quantized.graph.outputs}
    wanted: list[ir.Value] = []
    for value in units.plain.graph.outputs:
        other = given.get(value.name)
        if other is None or not _is_float(value) or value not in plain or other not in quantized:
            continue
        name, answer = value.name or "", merged.readable(quantized[other])
        wanted.append(answer)
        if with_exact:
            outputs[name] = _exactly(name), answer.name or "", OutputSums()
            continue
        expected = merged.readable(plain[value])
        wanted.append(expected)
        outputs[name] = expected.name or "", answer.name or "", OutputSums()
    return _Merged(merged.finish(wanted), spots, outputs)


def float_in_place(merged: MergedGraph, cut: Cut, value: ir.Value, known: Known) -> ir.Value:
    """Return a float tensor in the form that the quantized model's readers of a cut take."""
    if cut.is_integer:
        return merged.quantize(cut, value, known)
    return merged.cast(value, cut.value.dtype)


def _is_float(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_floating_point()


def _channel_axis(cut: Cut) -> int | None:
    """Return where the channels of a tensor are: second in pictures, last in rows of tokens."""
    main = cut.plain_main
    rank = None if cut.plain.shape is None else len(cut.plain.shape)
    if rank is None or rank < 2:
        return None
    if main is not None and main.op_type in WEIGHTED - CONVOLUTIONS:
        return -1
    pictures = rank >= 4 or (main is not None and main.op_type in CONVOLUTIONS)
    return 1 if pictures else -1


def _check_inputs(plain: ir.Model, quantized: ir.Model) -> None:
    """Refuse two models that cannot be fed with the same samples."""
    wanted, given = (_inputs(model) for model in (plain, quantized))
    for name in dict.fromkeys([*wanted, *given]):
        if name not in wanted or name not in given:
            missing = "float" if name not in wanted else "quantized"
            raise ModelError(
                f"the {missing} model has no input {name!r}, which the other has; both must take "
                "the same samples, so compare the quantized model with the one it was made from."
            )
        one, other = wanted[name], given[name]
        if one.dtype != other.dtype or not _fits(one.shape, other.shape):
            raise ModelError(
                f"input {name!r} is {_describe(one)} in the float model and {_describe(other)} in "
                "the quantized one; both must take the same samples, so compare with the float "
                "model in the same layout and type."
            )


def _inputs(model: ir.Model) -> dict[str, ir.Value]:
    return {v.name or "": v for v in model.graph.inputs if not v.is_initializer()}


def _fits(one: ir.Shape | None, other: ir.Shape | None) -> bool:
    if one is None or other is None:
        return True
    return len(one) == len(other) and all(
        a == b or not isinstance(a, int) or not isinstance(b, int)
        for a, b in zip(one, other, strict=True)
    )


def _describe(value: ir.Value) -> str:
    dtype = "?" if value.dtype is None else value.dtype.name.lower()
    dims = "…" if value.shape is None else ",".join(str(dim) for dim in value.shape)
    return f"{dtype}[{dims}]"
