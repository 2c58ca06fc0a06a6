"""Errors of all tensors of two models, from one run over the samples, in constant memory."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from bitwright.assess.comparison.matching import may_have_same_shape
from bitwright.assess.comparison.merged_graph import MergedGraph, at_one_opset
from bitwright.assess.comparison.nodes import describe_nodes, weight_errors
from bitwright.assess.comparison.results import Comparison, TensorComparison
from bitwright.assess.comparison.saturation import EVERYWHERE, Saturation
from bitwright.assess.comparison.units import WEIGHTED, Cut, Units, cut_models, output_paths
from bitwright.assess.inspection import show_type
from bitwright.assess.outputs import OutputErrors
from bitwright.assess.sums import Codes, ErrorSums
from bitwright.data import read_samples
from bitwright.decide.ops import CONVOLUTIONS
from bitwright.errors import DataError, ModelError
from bitwright.graph import carried_model, carry_model, clone_model, infer_shapes, normalize
from bitwright.plan import QuantPlan
from bitwright.run import Part, PartRunner, Session
from bitwright.support import LOCAL, Array, Engine, without_collection

Sample = Mapping[str, Array]

_SaturationOf = Callable[[ir.Value], tuple[float, float]]

_MOST_NODES = 400
"""Nodes of both models in one graph: the runtime takes longer than linear time to open it."""


@without_collection()
def open_units(float_model: ir.Model, quantized: ir.Model) -> Units:
    """Bring two models to one form and cut them where they have tensors in common.

    The models that are given stay as they are.
    """
    both = [clone_model(model) for model in (float_model, quantized)]
    for model in both:
        normalize(model)
    _check_inputs(*both)
    both = list(at_one_opset(*both))
    for model in both:
        infer_shapes(model)
    return cut_models(*both)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRun:
    """Where two models run side by side, and in how much memory."""

    memory_budget: int
    """Bytes; tensors of one sample that do not fit are compared in groups."""
    providers: Sequence[str] | None = None
    engine: Engine = LOCAL


def compare_models(
    units: Units,
    samples: Iterable[Sample],
    run: PairRun,
    *,
    exact: ir.Model | None = None,
    plan: QuantPlan | None = None,
    saturation_of: _SaturationOf = lambda value: EVERYWHERE,
    on_progress: Callable[[int], None] = lambda done: None,
) -> Comparison:
    """Return how far a quantized model is from a float one, tensor by tensor.

    `exact` is what outputs are compared with where the float model itself is not: it imitates
    hardware, so that its tensors are those of the quantized model. `plan` tells why nodes are
    float, `saturation_of` between which values a tensor's readers tell them apart.
    """
    merged = _merge(units, saturation_of, with_exact=exact is not None)
    if not merged.tensors and not merged.outputs:
        raise ModelError(
            "the two models have no tensor in common, not even an output; check that the second "
            "was made from the first."
        )
    carried = merged._replace(model=carry_model(merged.model))
    sums = [(ErrorSums(), ErrorSums()) for _ in merged.tensors]
    judged = OutputErrors(units.float_model)
    done = 0
    shared = (carried, carry_model(exact), run.memory_budget, run.providers)
    with run.engine.open(_pair_runner, *shared) as workers:
        for found in workers.stream(samples):
            # Sums depend on their order, which is that of the samples on any engine.
            for place, (total, local) in found.tensors.items():
                sums[place][0].merge(total)
                sums[place][1].merge(local)
            found.add_answers(judged)
            done += 1
            on_progress(done)
    if not done:
        raise DataError("there is no sample to compare the models on; give at least one.")
    pairs = zip(merged.tensors, sums, strict=True)
    tensors = {each.name: each.finish(*pair) for each, pair in pairs if pair[0].count}
    outputs, judgement = judged.finish()
    return Comparison(
        outputs=outputs,
        tensors=tensors,
        nodes=describe_nodes(units, tensors, plan),
        samples=done,
        weights=weight_errors(units),
        judgement=judgement,
    )


class _TensorNames(NamedTuple):
    """A cut in the merged graph: the names of its three tensors, and how they are compared."""

    name: str
    """As the float model calls it."""
    expected: str
    actual: str
    local: str | None
    """With only the cut's own unit quantized, where anything in it is."""
    axis: int | None
    codes: Codes | None
    saturation: Saturation

    @property
    def bundle(self) -> tuple[str, ...]:
        """The tensors that must be computed together to be compared."""
        return tuple(dict.fromkeys(filter(None, (self.expected, self.actual, self.local))))

    def compare(self, values: Mapping[str, Array]) -> tuple[ErrorSums, ErrorSums] | None:
        """Return the errors of a sample, accumulated and of the unit alone."""
        # They may be in several groups, but are together in one.
        if self.expected not in values or any(name not in values for name in self.bundle):
            return None
        expected, actual = values[self.expected], values[self.actual]
        if actual.shape != expected.shape:
            return None  # matched by name, but it is something else
        total, local = ErrorSums(), ErrorSums()
        total.add(*self.saturation.cut(expected, actual, self.codes), codes=self.codes)
        if self.local is not None:
            pair = self.saturation.cut(expected, values[self.local], self.codes)
            local.add(*pair, codes=self.codes, axis=self.axis)
        return total, local

    def finish(self, total: ErrorSums, local: ErrorSums) -> TensorComparison:
        """Return what the sums over all samples say."""
        is_unit, codes = self.local is not None, self.codes
        saturated = used = None
        if codes is not None:
            saturated = total.clipped / total.count
            used = (total.high - total.low + 1) / (codes.highest - codes.lowest + 1)
        return TensorComparison(
            self.name,
            total.sqnr,
            total.cosine,
            total.largest,
            local_sqnr=local.sqnr if is_unit else None,
            channel_sqnr=local.channel_sqnr if is_unit else None,
            saturated=saturated,
            used=used,
        )


class _SampleErrors(NamedTuple):
    """What one sample gave: small, so that it travels."""

    tensors: dict[int, tuple[ErrorSums, ErrorSums]]
    """The errors of each tensor, by its place."""
    answers: dict[str, tuple[Array, Array]]
    """Outputs of both models."""
    fed: tuple[tuple[str, str, tuple[int, ...]], ...]
    """Name, type and shape of each input."""

    @classmethod
    def of(cls, sample: Sample) -> _SampleErrors:
        """Return what is known of a sample before anything is run."""
        return cls({}, {}, tuple((name, a.dtype.str, a.shape) for name, a in sample.items()))

    def add_answers(self, judged: OutputErrors) -> None:
        """Let the judge see the outputs: it looks at types and shapes of what was fed only."""
        expected, actual = (
            {name: pair[side] for name, pair in self.answers.items()} for side in (0, 1)
        )
        fed = {name: np.broadcast_to(np.zeros((), kind), shape) for name, kind, shape in self.fed}
        judged.add(fed, expected, actual)


class _Merged(NamedTuple):
    """Both models in one graph, and the names of the tensors that are compared."""

    model: Any
    parts: list[Part]
    tensors: list[_TensorNames]
    outputs: dict[str, tuple[str, str]]
    """Output of both models -> the float tensor and the quantized one."""
    places: dict[str, list[int]]
    """Float tensor -> the places of the cuts that it is compared for."""

    def open(self, memory_budget: int, providers: Sequence[str] | None) -> PartRunner:
        """Return a runner that gives all tensors which are compared with each other."""
        model: ir.Model = carried_model(self.model)
        made = {value.name for node in model.graph for value in node.outputs}
        bundles = [
            *(each.bundle for each in self.tensors),
            *(tuple(name for name in pair if name in made) for pair in self.outputs.values()),
        ]
        return PartRunner(
            model,
            self.parts,
            [name for bundle in bundles for name in bundle],
            # Two sets are alive at a time: one being compared, one being computed.
            group_bytes=max(memory_budget // 2, 1),
            providers=providers,
            bundles=bundles,
        )

    def compare(
        self, found: _SampleErrors, values: Mapping[str, Array], others: Mapping[str, Array]
    ) -> None:
        """Add the errors of what was computed of a sample; `others` are known beside it."""
        for place in chain.from_iterable(self.places.get(name, ()) for name in values):
            sums = self.tensors[place].compare(values)
            if sums is not None:
                found.tensors[place] = sums
        known = ChainMap(dict(values), dict(others))
        for name, (expected, actual) in self.outputs.items():
            if expected in known and actual in known:
                found.answers[name] = (known[expected], known[actual])


def _pair_runner(
    merged: _Merged, exact: Any, memory_budget: int, providers: Sequence[str] | None
) -> Callable[[Iterable[Sample]], Iterator[_SampleErrors]]:
    """Return a runner of both models, part by part."""
    reference = None
    if exact is not None:
        reference = Session(carried_model(exact), providers=providers)
    runner = merged.open(memory_budget, providers)

    def run(samples: Iterable[Sample]) -> Iterator[_SampleErrors]:
        pending: Future[None] | None = None
        done: list[_SampleErrors] = []
        with ThreadPoolExecutor(1, thread_name_prefix="bitwright-compare") as pool:
            for lot in runner.lots(read_samples(samples)):
                found = [_SampleErrors.of(sample) for sample in lot]
                answers = [{} if reference is None else reference.run(sample) for sample in lot]
                for place, values in runner.sweep(lot):
                    if pending is not None:
                        pending.result()
                    yield from done
                    done = []
                    exact = {_exact_name(name): array for name, array in answers[place].items()}
                    others = {**lot[place], **exact}
                    pending = pool.submit(merged.compare, found[place], values, others)
                yield from done  # nothing of this lot was run
                done = found
            if pending is not None:
                pending.result()
            yield from done

    return run


def _exact_name(output: str) -> str:
    """Return what an output of the exact model is called beside the merged graph's tensors."""
    return f"{output}#exact"


@without_collection()
def _merge(units: Units, saturation_of: _SaturationOf, *, with_exact: bool = False) -> _Merged:
    """Put the float model, the quantized one and each quantized unit on its own into one graph."""
    graph = MergedGraph(units, _MOST_NODES)
    tensors: list[_TensorNames] = []
    outputs: dict[str, tuple[str, str]] = {}
    wanted: list[ir.Value] = []
    for place, paths in enumerate(output_paths(units)):
        tensors += [_add_cut(graph, cut, saturation_of) for cut in units.cuts[place : place + 1]]
        for path in paths:
            graph.add(path.float_nodes, graph.floats)
            graph.add(path.nodes, graph.quantized)
            if path.float_value not in graph.floats or path.value not in graph.quantized:
                continue  # a constant
            answer = graph.readable(graph.quantized[path.value])
            wanted.append(answer)
            truth = _exact_name(path.name)
            if not with_exact:
                wanted.append(graph.readable(graph.floats[path.float_value]))
                truth = wanted[-1].name or ""
            outputs[path.name] = truth, answer.name or ""
    places: dict[str, list[int]] = {}
    for place, names in enumerate(tensors):
        places.setdefault(names.expected, []).append(place)
    return _Merged(*graph.finish(wanted), tensors, outputs, places)


def _add_cut(graph: MergedGraph, cut: Cut, saturation_of: _SaturationOf) -> _TensorNames:
    """Add the tensors of a cut that are compared."""
    graph.begin(cut)
    expected = graph.readable(graph.add_float(cut)).name or ""
    actual = graph.readable(graph.add_quantized(cut)).name or ""
    local = None
    if cut.is_quantized:
        local = graph.readable(graph.add_unit(cut, graph.stand_ins(cut))).name
    saturation = Saturation(*saturation_of(cut.float_value))
    axis = _channel_axis(cut)
    return _TensorNames(cut.name, expected, actual, local, axis, cut.codes, saturation)


def _channel_axis(cut: Cut) -> int | None:
    """Return where the channels of a tensor are: second in pictures, last in rows of tokens."""
    main = cut.float_main
    rank = None if cut.float_value.shape is None else len(cut.float_value.shape)
    if rank is None or rank < 2:
        return None
    if main is not None and main.op_type in WEIGHTED - CONVOLUTIONS:
        return -1
    pictures = rank >= 4 or (main is not None and main.op_type in CONVOLUTIONS)
    return 1 if pictures else -1


def _check_inputs(float_model: ir.Model, quantized: ir.Model) -> None:
    """Refuse two models that cannot be fed with the same samples."""
    wanted, given = (
        {v.name or "": v for v in model.graph.inputs if not v.is_initializer()}
        for model in (float_model, quantized)
    )
    for name in dict.fromkeys([*wanted, *given]):
        if name not in wanted or name not in given:
            missing = "float" if name not in wanted else "quantized"
            raise ModelError(
                f"the {missing} model has no input {name!r}, which the other has; both must take "
                "the same samples, so compare the quantized model with the one it was made from."
            )
        one, other = wanted[name], given[name]
        if one.dtype != other.dtype or not may_have_same_shape(one, other):
            raise ModelError(
                f"input {name!r} is {show_type(one)} in the float model and {show_type(other)} in "
                "the quantized one; both must take the same samples, so compare with the float "
                "model in the same layout and type."
            )
