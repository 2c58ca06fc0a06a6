"""Inner tensors of a model: exposed as graph outputs, and computed in groups that fit in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnxruntime as ort

from bitwright.errors import ModelError, did_you_mean
from bitwright.graph.checking import is_in_order
from bitwright.graph.cloning import clone_model
from bitwright.graph.editing import (
    add_initializer,
    append_node,
    copy_node,
    remove_unused_nodes,
)
from bitwright.graph.loading import load_model
from bitwright.graph.names import NameScope
from bitwright.graph.sessions import Level, open_session, run_session
from bitwright.graph.shapes import element_type, infer_shapes, static_shape
from bitwright.graph.subgraphs import iter_values, owner_nodes, subgraphs_of

__all__ = ["Exposed", "SessionRunner", "expose"]


class Exposed(NamedTuple):
    """A model with extra outputs, and the output's name for each tensor that was asked for."""

    model: ir.Model
    outputs: dict[str, str]


def expose(model: ir.Model, tensor_names: Iterable[str], *, keep_outputs: bool = True) -> Exposed:
    """Return a clone (sharing tensor data) whose extra graph outputs are these tensors.

    Names are qualified names (see `bitwright.graph.subgraphs`). A tensor of the main graph is
    returned as it is. One from inside a body comes flattened to one dimension: all iterations of a
    Loop or Scan after each other, and of an If only what the branch that ran has made (else no
    elements). With keep_outputs=False the model's own outputs go, so that the runtime need not
    compute them.
    """
    clone = clone_model(model)
    if not keep_outputs:
        clone.graph.outputs.clear()
    lifter = _Lifter(clone)
    outputs: dict[str, str] = {}
    shown = set(clone.graph.outputs)
    for name in dict.fromkeys(tensor_names):
        visible = lifter.lift(name)
        assert visible.name is not None
        outputs[name] = visible.name
        if visible not in shown:
            shown.add(visible)
            clone.graph.outputs.append(visible)
    return Exposed(clone, outputs)


class _Lifter:
    """Carries tensors out of the bodies of one model, changing it in place."""

    def __init__(self, model: ir.Model) -> None:
        self.main = model.graph
        self.known = dict(iter_values(model))
        self.owners = owner_nodes(model)
        self.scope = NameScope(model)

    def lift(self, name: str) -> ir.Value:
        """Return a value of the main graph that holds this tensor."""
        if name not in self.known:
            raise ModelError(f"the model has no tensor {name!r}.{did_you_mean(name, self.known)}")
        value = self.known[name]
        graph = value.graph
        assert isinstance(graph, ir.Graph)
        if graph is self.main:
            if value.producer() is not None:
                return value
            # The runtime does not return an input or a weight as it is.
            output = self.scope.fresh(f"{name}_exposed")
            return self.append(graph, "Identity", [value], output, element_type(value))
        dtype = element_type(value)
        if dtype is None:
            raise ModelError(
                f"the type of tensor {name!r} is not known, so it cannot be observed; "
                "run infer_shapes on the model first."
            )
        shape = static_shape(value)
        size = int(np.prod(shape)) if shape is not None else None
        lifted = self.flatten(graph, value, dtype)
        while graph is not self.main:
            owner = self.owners[graph]
            outer = owner.graph
            assert isinstance(outer, ir.Graph)
            through = self.lift_through.get(owner.op_type) if not owner.domain else None
            if through is None:
                raise ModelError(
                    f"tensor {name!r} is inside a {owner.op_type} node, "
                    "whose body cannot be observed."
                )
            lifted = through(self, graph, lifted, dtype, size)
            size = None  # depends on the branch taken, or on the number of iterations
            graph = outer
        return lifted

    def through_if(
        self, branch: ir.Graph, flat: ir.Value, dtype: ir.DataType, size: int | None
    ) -> ir.Value:
        owner = self.owners[branch]
        for _, body in subgraphs_of(owner):
            if body is branch:
                body.outputs.append(flat)
            else:
                absent = self.empty(dtype, f"{flat.name}_absent")
                body.append(absent)
                body.outputs.append(absent.outputs[0])
        return self.new_output(owner, f"{flat.name}_if", dtype)

    def through_scan(
        self, body: ir.Graph, flat: ir.Value, dtype: ir.DataType, size: int | None
    ) -> ir.Value:
        owner = self.owners[body]
        body.outputs.append(flat)
        for name in ("scan_output_axes", "scan_output_directions"):
            if name in owner.attributes:
                owner.attributes[name] = ir.AttrInt64s(name, [*owner.attributes[name].as_ints(), 0])
        stacked = self.new_output(owner, f"{flat.name}_scan", dtype)
        assert isinstance(owner.graph, ir.Graph)
        return self.flatten(owner.graph, stacked, dtype)

    def through_loop(
        self, body: ir.Graph, flat: ir.Value, dtype: ir.DataType, size: int | None
    ) -> ir.Value:
        owner = self.owners[body]
        outer = owner.graph
        assert isinstance(outer, ir.Graph)
        if size is not None:
            body.outputs.append(flat)
            stacked = self.new_output(owner, f"{flat.name}_scan", dtype)
            return self.flatten(outer, stacked, dtype)
        # Scan outputs must have one shape in all iterations. This one may not, so it is carried
        # along as state: everything so far, with this iteration's elements behind it.
        start = self.empty(dtype, f"{flat.name}_start")
        outer.insert_before(owner, start)
        so_far = _vector(self.scope.fresh(f"{flat.name}_so_far"), dtype)
        longer = self.scope.fresh(f"{flat.name}_longer")
        joined = self.append(body, "Concat", [so_far, flat], longer, dtype, {"axis": 0})
        carried = len(body.inputs) - 2  # besides the iteration number and the condition
        body.inputs.append(so_far)
        body.outputs.insert(1 + carried, joined)
        result = _vector(self.scope.fresh(f"{flat.name}_loop"), dtype)
        self.rebuild(owner, start.outputs[0], result, carried)
        return result

    lift_through: ClassVar[dict[str, Callable[..., ir.Value]]] = {
        "If": through_if,
        "Loop": through_loop,
        "Scan": through_scan,
    }

    def rebuild(self, node: ir.Node, extra: ir.Value, result: ir.Value, position: int) -> None:
        """Make a node anew with one more input and output: a value's place is fixed at birth."""
        old = list(node.outputs)
        new = [
            ir.Value(
                name=value.name,
                type=value.type,
                shape=value.shape,
                metadata_props=dict(value.metadata_props),
            )
            for value in old
        ]
        outputs = [*new[:position], result, *new[position:]]
        replacement = copy_node(node, [*node.inputs, extra], outputs, node.name)
        graph = node.graph
        assert isinstance(graph, ir.Graph)
        ir.convenience.replace_nodes_and_values(graph, node, [node], [replacement], old, new)
        renewed = dict(zip(old, new, strict=True))
        self.known = {name: renewed.get(value, value) for name, value in self.known.items()}
        self.owners.update((body, replacement) for _, body in subgraphs_of(replacement))

    def append(
        self,
        graph: ir.Graph,
        op_type: str,
        inputs: list[ir.Value],
        output: str,
        dtype: ir.DataType | None,
        attributes: dict[str, int] | None = None,
    ) -> ir.Value:
        """Add a node at the end of a graph and return its output."""
        result = ir.Value(name=output, type=ir.TensorType(dtype) if dtype is not None else None)
        name = self.scope.fresh(f"{output}_{op_type}")
        return append_node(graph, op_type, inputs, result, name, attributes)

    def flatten(self, graph: ir.Graph, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Add a Reshape to one dimension."""
        name, sizes = f"{value.name}_flat_shape", np.array([-1], np.int64)
        shape = add_initializer(graph, self.scope, name, sizes)
        output = self.scope.fresh(f"{value.name}_flat")
        flat = self.append(graph, "Reshape", [value, shape], output, dtype)
        flat.shape = ir.Shape([None])
        return flat

    def empty(self, dtype: ir.DataType, name: str) -> ir.Node:
        """Make a tensor without elements; a node, because a body may not return an initializer."""
        fresh, kind = self.scope.fresh(name), ir.TensorType(dtype)
        result = ir.Value(name=fresh, type=kind, shape=ir.Shape([0]))
        tensor = ir.tensor(np.empty([0], dtype.numpy()), dtype=dtype, name=result.name)
        label = self.scope.fresh(f"{name}_Constant")
        return ir.node("Constant", [], {"value": tensor}, outputs=[result], name=label)

    def new_output(self, node: ir.Node, name: str, dtype: ir.DataType) -> ir.Value:
        """Give a node one more output, behind those it has."""
        node.resize_outputs(len(node.outputs) + 1)
        value = node.outputs[-1]
        value.name = self.scope.fresh(name)
        value.type = ir.TensorType(dtype)
        return value


def _vector(name: str, dtype: ir.DataType) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape([None]))


Feeds = Mapping[str, npt.NDArray[Any]]


class _OpenSession(NamedTuple):
    """A session over some tensors, and the output that each of them is found under."""

    session: ort.InferenceSession
    outputs: dict[str, str]

    def run(self, feeds: Feeds) -> dict[str, npt.NDArray[Any]]:
        inputs = {value.name for value in self.session.get_inputs()}
        wanted = {name: array for name, array in feeds.items() if name in inputs}
        found = run_session(self.session, wanted, list(self.outputs.values()))
        return {tensor: found[output] for tensor, output in self.outputs.items()}


class SessionRunner:
    """Runs a model so that the named tensors come out.

    The session is fully optimized, unless `level` says otherwise: only the observed tensors are
    outputs, so that what is fused between them stays fused. When the tensors of one sample need
    more than `group_bytes`, they are cut into groups with a session each. `bundles` are tensors
    that are looked at side by side: a group has all of a bundle, or nothing of it.
    """

    def __init__(
        self,
        model: Any,
        tensors: Sequence[str],
        *,
        group_bytes: int,
        providers: Sequence[str] | None = None,
        level: Level = "all",
        bundles: Sequence[Sequence[str]] = (),
    ) -> None:
        # It is only read, so that a model in order need not be copied.
        in_order = isinstance(model, ir.Model) and is_in_order(model)
        self._model: ir.Model = model if in_order else load_model(model)
        self._level = level
        self._providers = providers
        self._group_bytes = group_bytes
        values = dict(iter_values(self._model))
        for name in tensors:
            if name not in values:
                raise ModelError(f"the model has no tensor {name!r}.{did_you_mean(name, values)}")
        self._values = {name: values[name] for name in tensors}
        inputs = {value.name for value in self._model.graph.inputs}
        # What is fed needs no run: it is observed as it comes.
        self._fed = tuple(name for name in self._values if name in inputs)
        self._computed = tuple(name for name in self._values if name not in inputs)
        bundled = {name for bundle in bundles for name in bundle}
        self._bundles = [*bundles, *((name,) for name in self._computed if name not in bundled)]
        self._safe = -1  # bytes of input up to which the groups are known to fit
        self._groups: list[tuple[str, ...]] = []
        self._sessions: dict[tuple[str, ...], _OpenSession] = {}

    def groups(self, feeds: Feeds) -> Sequence[tuple[str, ...]]:
        """Return the groups for this sample; one much larger than those before cuts anew."""
        fed = sum(np.asarray(array).nbytes for array in feeds.values())
        if fed > self._safe:
            self._sessions.clear()  # before measuring, which takes a session of its own
            sizes = self._sizes(feeds)
            self._groups = self._cut(sizes)
            # Tensors grow with the square of their input at most (attention). Up to where even
            # this would fit, larger samples need no new measurement.
            largest = max(sum(sizes[n] for n in g if n in sizes) for g in self._groups)
            growth = self._group_bytes / max(largest, 1)
            self._safe = int(fed * max(growth, 1.0) ** 0.5)
        return self._groups

    def run(self, group: tuple[str, ...], feeds: Feeds) -> Mapping[str, npt.NDArray[Any]]:
        """Return the tensors of one group."""
        values = {
            name: np.asarray(feeds[name]) for name in group if name in self._fed and name in feeds
        }
        computed = [name for name in group if name not in self._fed]
        if computed:
            if group not in self._sessions:
                exposed = expose(self._model, computed, keep_outputs=False)
                # The runtime would compute what no output needs, for every group again.
                remove_unused_nodes(exposed.model)
                self._sessions[group] = self._open(exposed)
            values.update(self._sessions[group].run(feeds))
        return values

    def _cut(self, sizes: Mapping[str, int]) -> list[tuple[str, ...]]:
        groups: list[list[str]] = [list(self._fed)]
        filled = 0
        for bundle in self._bundles:  # in order: neighbours share the work that leads to them
            computed = [name for name in bundle if name not in self._fed]
            size = sum(sizes[name] for name in computed)
            if filled and filled + size > self._group_bytes:
                groups.append([])
                filled = 0
            groups[-1] += computed
            filled += size
        return [tuple(group) for group in groups]

    def _sizes(self, feeds: Feeds) -> dict[str, int]:
        """Return the bytes of each computed tensor for this sample."""
        counts = {
            name: math.prod(shape)
            for name, shape in self._shapes_for(feeds).items()
            if shape is not None and self._values[name].graph is self._model.graph
        }
        # What else there is depends on values, or on how often a body runs.
        unknown = [name for name in self._computed if name not in counts]
        if unknown:
            counts |= self._counted(unknown, feeds)
        return {name: count * _item_bytes(self._values[name]) for name, count in counts.items()}

    def _shapes_for(self, feeds: Feeds) -> dict[str, tuple[int, ...] | None]:
        """Infer shapes with this sample's sizes in place of symbols: far cheaper than a run."""
        shapes = {name: static_shape(self._values[name]) for name in self._computed}
        inputs = {value.name: value.shape for value in self._model.graph.inputs}
        as_fed = all(_may_be(inputs.get(name), array.shape) for name, array in feeds.items())
        if as_fed and None not in shapes.values():
            return shapes
        clone = clone_model(self._model)
        for value in clone.graph.inputs:
            if value.name is not None and value.name in feeds:
                value.shape = ir.Shape(feeds[value.name].shape)
        infer_shapes(clone)
        inferred = dict(iter_values(clone))
        return {name: static_shape(inferred[name]) for name in self._computed}

    def _counted(self, names: Sequence[str], feeds: Feeds) -> dict[str, int]:
        """Ask the runtime: one run in which only each tensor's number of elements comes out."""
        model, outputs = expose(self._model, names, keep_outputs=False)
        exposed = {value.name: value for value in model.graph.outputs}
        model.graph.outputs.clear()
        for index, (name, output) in enumerate(outputs.items()):
            size = ir.Value(name=f"bitwright/size/{index}", type=ir.TensorType(ir.DataType.INT64))
            append_node(model.graph, "Size", [exposed[output]], size, None)
            model.graph.outputs.append(size)
            outputs[name] = f"bitwright/size/{index}"
        sizes = self._open(Exposed(model, outputs)).run(feeds)
        return {name: int(size) for name, size in sizes.items()}

    def _open(self, exposed: Exposed) -> _OpenSession:
        try:
            session = open_session(exposed.model, level=self._level, providers=self._providers)
        except ModelError:
            # Its fusion of a tanh GELU takes away a product that is an output here as well.
            if self._level not in ("extended", "all"):
                raise
            session = open_session(exposed.model, level="basic", providers=self._providers)
        return _OpenSession(session, exposed.outputs)


def _may_be(shape: ir.Shape | None, fed: tuple[int, ...]) -> bool:
    """Return whether a shape says nothing else than what is fed."""
    if shape is None:
        return True
    same = len(shape) == len(fed)
    return same and all(a == b for a, b in zip(shape, fed, strict=True) if isinstance(a, int))


def _item_bytes(value: ir.Value) -> int:
    dtype = element_type(value)
    return math.ceil(dtype.itemsize) if dtype is not None else 4
