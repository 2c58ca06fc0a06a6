"""Move a model to a newer opset."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from bitwright.errors import ModelError
from bitwright.graph.checking import check_model
from bitwright.graph.cloning import StrippedModel, strip_weights
from bitwright.graph.constants import constant_of, input_at
from bitwright.graph.names import NameScope
from bitwright.graph.runtime_ops import bring_back, move_apart
from bitwright.graph.shapes import infer_shapes
from bitwright.graph.subgraphs import iter_graphs, owner_nodes
from bitwright.graph.versions import minimum_ir_version, opset_of, runtime_limits
from bitwright.support.wording import reason_of


def convert_opset(model: ir.Model, version: int) -> ir.Model:
    """Return the model at opset `version` (or as it is, if it is already there or newer).

    ONNX's C++ converter adapts each operator, and the result is checked. That it still computes the
    same shows when it runs: `bitwright.run.upgrade_opset` compares.
    """
    current = opset_of(model)
    if current >= version or current == 0:
        return model
    if version > runtime_limits().opset:
        raise ModelError(
            f"opset {version} is newer than the installed onnxruntime reads "
            f"(up to {runtime_limits().opset}); upgrade onnxruntime or choose a lower opset."
        )
    upgraded = _convert(model, current, version)
    try:
        _check_upgraded(upgraded)
    except ModelError as error:
        raise ModelError(
            f"the model cannot be moved from opset {current} to {version}: {error} "
            "Export it again with a newer opset."
        ) from error
    return upgraded


def _check_upgraded(model: ir.Model) -> None:
    """Check a model; where only what it says of its tensors contradicts it, infer that anew."""
    try:
        check_model(model)
    except ModelError:
        # Exporters write outputs of a wrong rank, and a Dropout's mask was a float once; runtimes
        # warn of such claims at most, and the converter leaves them as they are.
        values = [value for node in model.graph.all_nodes() for value in node.outputs]
        claimed = [value.type for value in values]
        for value in values:
            value.shape, value.type = None, None
        infer_shapes(model)
        for value, kind in zip(values, claimed, strict=True):
            value.type = value.type or kind
        check_model(model)


def _convert(model: ir.Model, current: int, version: int) -> ir.Model:
    # onnxscript's convert_version without fallback=True stamps the new opset on an unadapted graph,
    # and with it swallows the converter's errors; so the C++ converter is called here directly.
    # The converter drops the axis of a Scan of opset 8, with a wrong rank.
    if current < 9 <= version and any(n.op_type == "Scan" for n in model.graph.all_nodes()):
        raise ModelError(
            f"the model cannot be moved from opset {current} to {version} (its Scan has a batch "
            "axis, which later ones lack); export it again with a newer opset."
        )
    stripped = strip_weights(model)
    move_apart(stripped.proto)
    try:
        proto = onnx.version_converter.convert_version(stripped.proto, version)
        upgraded = ir.from_proto(proto)
    except Exception as error:
        raise ModelError(
            f"the model cannot be moved from opset {current} to {version} "
            f"({reason_of(error, last=True)}); export it again with a newer opset."
        ) from error
    bring_back(upgraded)
    _restore_tensors(upgraded, model, stripped)
    if current <= 10 < version:
        _pin_old_resize(upgraded)
    _restore_identity(upgraded, model, version)
    return upgraded


def _restore_tensors(upgraded: ir.Model, model: ir.Model, stripped: StrippedModel) -> None:
    graph = upgraded.graph
    owners = owner_nodes(upgraded)
    main = set(model.graph.initializers.values())
    own_inputs = [value.name for value in model.graph.inputs]
    placeholders = [value for value in graph.inputs if value.name in stripped.placeholders]
    kept = {value.name: value for value in graph.inputs if value.name in set(own_inputs)}
    graph.inputs.clear()
    graph.inputs.extend(kept[name] for name in own_inputs if name in kept)
    for value in placeholders:
        assert value.name is not None
        original = stripped.placeholders[value.name]
        home = graph if original in main else _common_graph(value, graph, owners)
        value.name = original.name
        value.const_value = original.const_value
        home.register_initializer(value)
    # Small tensors travelled as copies; put the originals back, for their names and storage.
    for old, new in _paired_graphs(model, upgraded):
        for name, value in new.initializers.items():
            if name in old.initializers and _same_tensor(old.initializers[name], value):
                value.const_value = old.initializers[name].const_value


def _paired_graphs(old: ir.Model, new: ir.Model) -> list[tuple[ir.Graph, ir.Graph]]:
    # By path: the converter puts a node's attributes (then_branch, else_branch) in another order.
    upgraded = dict(iter_graphs(new))
    return [(graph, upgraded[path]) for path, graph in iter_graphs(old) if path in upgraded]


def _same_tensor(old: ir.Value, new: ir.Value) -> bool:
    before, after = old.const_value, new.const_value
    return (
        before is not None
        and after is not None
        and before.dtype == after.dtype
        and before.nbytes == after.nbytes
        and before.tobytes() == after.tobytes()
    )


def _common_graph(value: ir.Value, main: ir.Graph, owners: dict[ir.Graph, ir.Node]) -> ir.Graph:
    """Return the innermost graph that holds all users of a value: where a body's tensor belongs."""
    chains = []
    for node in value.consumers():
        chain: list[ir.Graph] = []
        owner = node.graph
        while isinstance(owner, ir.Graph) and owner is not main:
            chain.append(owner)
            owner = owners[owner].graph
        chains.append(chain)
    innermost = chains[0] if chains else []
    return next((graph for graph in innermost if all(graph in c for c in chains)), main)


def _pin_old_resize(model: ir.Model) -> None:
    # Upsample and Resize-10 map coordinates by "asymmetric"; Resize-11 defaults to half_pixel, and
    # the converter (onnx 1.23) forgets to say so: linear upsampling comes out silently wrong.
    for node in model.graph.all_nodes():
        if node.op_type != "Resize" or node.domain:
            continue
        node.attributes.add(ir.AttrString("coordinate_transformation_mode", "asymmetric"))
        if node.attributes.get_string("mode", "nearest") == "nearest":
            rounding = "ceil" if _shrinks(node) else "floor"
            node.attributes.add(ir.AttrString("nearest_mode", rounding))


def _shrinks(node: ir.Node) -> bool:
    factors = constant_of(input_at(node, 2), defaults=True)
    return factors is not None and bool((factors <= 1).all() and (factors < 1).any())


def _restore_identity(upgraded: ir.Model, model: ir.Model, version: int) -> None:
    """Give back what the converter loses: the metadata of the model, its nodes and values."""
    for field in ("producer_name", "producer_version", "domain", "model_version", "doc_string"):
        setattr(upgraded, field, getattr(model, field))
    upgraded.ir_version = max(model.ir_version or 0, minimum_ir_version(version))
    upgraded.metadata_props.update(model.metadata_props)
    upgraded.meta.update(model.meta)
    upgraded.graph.metadata_props.update(model.graph.metadata_props)
    upgraded.graph.opset_imports.update(
        {
            domain: number
            for domain, number in model.graph.opset_imports.items()
            if domain not in {"", "ai.onnx"}
        }
    )
    for old, new in _paired_graphs(model, upgraded):
        nodes = {node.name: node for node in old if node.name}
        values = {value.name: value for node in old for value in node.outputs if value.name}
        for node in new:
            if node.name in nodes:
                node.metadata_props.update(nodes[node.name].metadata_props)
            for value in node.outputs:
                if value.name in values:
                    value.metadata_props.update(values[value.name].metadata_props)
    scope = NameScope(upgraded)
    known = {node.name for node in model.graph.all_nodes()}
    for _, graph in iter_graphs(upgraded):
        for node in graph:
            if not node.name and "" not in known and None not in known:
                node.name = scope.fresh(f"{node.op_type}_{node.outputs[0].name}")
