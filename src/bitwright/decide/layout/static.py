"""Layout of a static model: which tensors are quantized, and which share parameters."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

import msgspec
import onnx_ir as ir

from bitwright.decide.checks import check_recipe, has_channelwise_activations
from bitwright.decide.layout.entries import Entry, Layout, plan_as_float, plan_node
from bitwright.decide.layout.fusion import (
    ends_in_product,
    enter_added_bias,
    fused_reader,
    stores_added_biases,
)
from bitwright.decide.layout.node_overrides import TypeMap, find_node_overrides, spread_types
from bitwright.decide.layout.refusals import Candidate, refuse
from bitwright.decide.layout.selection import Selector
from bitwright.decide.layout.tensors import TensorMarks, choose_shared_exponent_axes, is_float
from bitwright.decide.layout.uses import find_unread_nodes, mark_results
from bitwright.decide.ops import (
    CONVOLUTIONS,
    DEFAULT_OP_TYPES,
    PLACED_OP_TYPES,
    RULES,
    OpRule,
    Skip,
)
from bitwright.decide.ops.conventions import conventions_of, rule_for
from bitwright.decide.ops.linear import BiasSum, bias_sum_behind, bias_sum_of
from bitwright.decide.ops.residuals import find_skip_input
from bitwright.decide.ops.size_arithmetic import SIZE_ARITHMETIC, find_size_arithmetic
from bitwright.graph import is_constant, iter_values
from bitwright.numerics.types import QType
from bitwright.plan import NodePlan
from bitwright.recipe import Override, Recipe
from bitwright.support.collector import without_collection
from bitwright.targets.npu_operations import is_simulation


@without_collection()
def lay_out(
    model: ir.Model, recipe: Recipe, *, keep_float: Mapping[str, str] | None = None
) -> Layout:
    """Return which tensors of the model are quantized under the recipe, and the reasons.

    Nodes are visited in graph order: an op that only moves values is quantized when what feeds
    it already is. `keep_float` has the names of more nodes that read and write float, and why.
    """
    layout = _lay_out(model, recipe, keep_float or {})
    if recipe.select.sizes and not any(node.quantized for node in layout.nodes.values()):
        # Whoever asks for integers gets them, also where they gain no time.
        recipe = recipe.replace(select={"sizes": ()})
        layout = _lay_out(model, recipe, keep_float or {})
        layout.notes.append(
            "quantized products that are too small to be faster in integers on the target: the "
            "model has no others"
        )
    return layout


def _lay_out(model: ir.Model, recipe: Recipe, keep_float: Mapping[str, str]) -> Layout:
    builder = _Builder(model, recipe, keep_float)
    layout, unread = builder.build(), frozenset[str]()
    if not recipe.place.isolated:
        # What follows these nodes stays float with them, so once more is enough.
        unread = find_unread_nodes(layout, wanted=builder.ends)
    if unread:
        layout = builder.build(unread)
    # Types are for what is quantized, which is known only now; they change nothing about that.
    types = builder.spread_types(layout)
    return layout if types is None else builder.build(unread, types)


class _Builder:
    def __init__(self, model: ir.Model, recipe: Recipe, keep_float: Mapping[str, str]) -> None:
        self._model = model
        self._recipe, self._conventions = recipe, conventions_of(recipe)
        self._keep_float = keep_float
        self._opset = model.opset_imports.get("", 1)
        self._nodes = list(model.graph.all_nodes() if recipe.enters_bodies else model.graph)
        defaults = PLACED_OP_TYPES if recipe.is_placed_by_cost else DEFAULT_OP_TYPES
        self._selector = Selector(self._nodes, recipe.select, defaults)
        self._unquantized = self._selector.find(
            recipe.emulate.unquantized_nodes, "unquantized_nodes"
        )
        self._size_arithmetic = find_size_arithmetic(model)
        self._given = find_node_overrides(recipe, self._selector)
        self._channelwise_activations = has_channelwise_activations(recipe)
        self._names = {value: name for name, value in iter_values(model)}
        check_recipe(recipe, self._names)

    @property
    def ends(self) -> frozenset[str]:
        """The nodes that the user wants quantized last."""
        return self._selector.ends

    def spread_types(self, layout: Layout) -> TypeMap | None:
        """Return the types of activations that overrides of nodes ask for; None: of none."""
        asked = {name: o.activation for name, o in self._given.items() if o.activation is not None}
        return spread_types(layout, self._nodes, asked, self._recipe.activation) if asked else None

    def build(self, unread: frozenset[str] = frozenset(), types: TypeMap = TypeMap()) -> Layout:  # noqa: B008 (frozen)
        """Return the layout, without nodes whose integers nobody reads, and with these types."""
        self._unread, self._layout = unread, Layout()
        self._marks = TensorMarks(self._names, self._recipe, self._layout, self._given, types)
        # What stays inside a fused operation, and whether the result of that is quantized.
        self._fused: dict[ir.Value, bool] = {}
        float_by_name: set[str] = set()
        for node in self._nodes:
            name = node.name or ""
            reason = self._kept_float(node)
            residual = None
            if reason is not None:
                float_by_name.add(name)
            else:
                reason = self._not_chosen(node)
                residual = self._visit_residual(node) if reason else None
            plan = plan_as_float(node, reason) if reason else self._visit(node)
            plan = plan if residual is None else residual
            self._layout.nodes[name] = plan
        self._read_through(float_by_name)
        choose_shared_exponent_axes(self._layout, self._nodes)
        if self._conventions.clips_give_ranges:
            self._take_ranges_of_clips()
        if not self._recipe.place.isolated:
            mark_results(self._layout, self._nodes)
        if self._recipe.emulate.dedicated_pairs:
            _dedicate_pairs(self._layout, self._marks.marked, self._marks.names)
        return self._layout

    def _kept_float(self, node: ir.Node) -> str | None:
        """Return why somebody wants this node in float, or None."""
        if is_simulation(node):  # it goes with the node that it completes
            return None
        name = node.name or ""
        if name in self._given and self._given[name].keep_float:
            return "an override keeps it float"
        reason = self._keep_float.get(name) or self._selector.kept_float(node)
        if name in self._size_arithmetic:
            reason = reason or SIZE_ARITHMETIC
        return reason or self._would_be_refused(node)

    def _would_be_refused(self, node: ir.Node) -> str | None:
        """Return why the runtime must not see this node between pairs, where it would fuse them."""
        fuses = self._recipe.activation.bits == 8 and not self._recipe.output_format.vendor_ops
        dilated = set(node.attributes.get_ints("dilations", [])) - {1}
        if fuses and dilated and node.op_type == "AveragePool":
            return "ONNX Runtime has no integer AveragePool with dilations"
        return None

    def _not_chosen(self, node: ir.Node) -> str | None:
        return None if is_simulation(node) else self._selector.not_chosen(node)

    # One node -----------------------------------------------------------------------------

    def _visit(self, node: ir.Node) -> NodePlan:
        rule = rule_for(node.op_type, self._recipe)
        found = bias_sum_of(node) if self._recipe.place.float_bias_add else None
        plan = None if found is None else self._visit_bias_sum(found, rule)
        if plan is not None:
            return plan
        refusal = self._refuse(node, rule)
        if refusal is not None:
            return plan_as_float(node, refusal.reason)
        fused = [value for value in node.inputs if value in self._fused]
        if rule.bounds is not None and not fused and not self._result_stays_float(node):
            return self._visit_clipping(node, rule)
        inputs: list[str | None] = [None] * len(node.inputs)
        for index in self._data_inputs(node, rule):
            if node.inputs[index] not in fused and not is_simulation(node):
                inputs[index] = self._marks.mark_input(node, index, rule)
        bias = self._marks.mark_bias(node, rule, inputs)
        if rule.bias is not None and bias is not None:
            inputs[rule.bias] = bias
        return plan_node(node, inputs, self._mark_outputs(node, rule, inputs))

    def _refuse(self, node: ir.Node, rule: OpRule) -> Skip | None:
        data = [node.inputs[index] for index in self._data_inputs(node, rule)]
        return refuse(
            Candidate(
                node=node,
                rule=rule,
                recipe=self._recipe,
                opset=self._opset,
                has_data=bool(data),
                has_float_input=any(self._stays_float(value) for value in data),
                has_fused_input=any(value in self._fused for value in node.inputs),
                has_integer_reader=node.name not in self._unread,
            )
        )

    def _stays_float(self, value: ir.Value | None) -> bool:
        """Return whether a value is computed in float and stays so."""
        return (
            value not in self._marks.marked and value not in self._fused and not is_constant(value)
        )

    def _data_inputs(self, node: ir.Node, rule: OpRule) -> list[int]:
        return [index for index in rule.data_inputs(node) if is_float(node.inputs[index])]

    def _visit_bias_sum(self, found: BiasSum, rule: OpRule) -> NodePlan | None:
        """Let the runtime compute a product and its bias in one; None if there is nothing to do."""
        node, product = found.node, found.product
        writer = self._layout.nodes.get(product.name or "")
        if writer is None or writer.action != "quantize" or any(writer.outputs):
            return None
        if rule.refuse is not None and rule.refuse(node) is not None:
            return None  # a mask, of which integers would leave nothing
        inputs: list[str | None] = [None] * len(node.inputs)
        outputs: tuple[str | None, ...] = (None,)
        name = self._marks.names[found.bias]
        overridden = self._marks.override_of(found.bias) is not None
        if stores_added_biases(self._recipe) and not overridden:
            inputs[found.index] = enter_added_bias(self._layout, found, name)
        if ends_in_product(node.outputs[0], self._is_wanted):
            outputs = self._mark_outputs(node, rule, inputs)
        if not any((*inputs, *outputs)):
            return None
        return plan_node(node, inputs, outputs)

    def _visit_residual(self, node: ir.Node) -> NodePlan | None:
        """Quantize the skip input of a residual Add, where the recipe asks for that alone."""
        skip = find_skip_input(node) if self._recipe.place.residual_inputs else None
        if skip is None or not is_float(node.inputs[skip]):
            return None
        convolution = node.inputs[1 - skip]
        if convolution in self._marks.marked or not self._follows_quantized(convolution):
            return None
        inputs: list[str | None] = [None, None]
        inputs[skip] = self._marks.mark_input(node, skip, rule_for(node.op_type, self._recipe))
        return plan_node(node, inputs)

    def _follows_quantized(self, value: ir.Value | None) -> bool:
        """Whether a value comes from a quantized node, also through some that are not."""
        while value is not None and (producer := value.producer()) is not None:
            plan = self._layout.writer_of(value)
            if plan is None or plan.action == "quantize":
                return plan is not None
            if producer.op_type in CONVOLUTIONS:
                return False  # the one that the sum is computed with is float
            value = producer.inputs[0]
        return False

    def _is_wanted(self, node: ir.Node) -> bool:
        """Whether nothing speaks against quantizing a node but, perhaps, what feeds it."""
        if self._kept_float(node) is not None or self._not_chosen(node) is not None:
            return False
        if node.op_type not in RULES:
            return False
        rule = rule_for(node.op_type, self._recipe)
        return rule.needs_quantized_input or self._refuse(node, rule) is None

    def _visit_clipping(self, node: ir.Node, rule: OpRule) -> NodePlan:
        """Quantize a Relu or Clip, planning to let the quantizer before it do its work."""
        source, target = node.inputs[0], node.outputs[0]
        assert source is not None and rule.bounds is not None
        key = self._marks.mark_input(node, 0, rule)
        out = self._marks.mark_activation(target)
        entry = self._layout.entries[key]
        if self._may_be_absorbed(node, rule, entry):
            # What the clip would cut off needs no levels: its input takes its output's range.
            entry.same_as = out
            entry.qtype = self._layout.entries[out].qtype
            entry.absorbed_by = node.name
        return plan_node(node, (key, *(None for _ in node.inputs[1:])), (out,))

    def _may_be_absorbed(self, node: ir.Node, rule: OpRule, entry: Entry) -> bool:
        """Whether the quantizer behind a Relu or Clip may take its place, as far as is known."""
        assert rule.bounds is not None
        value = entry.value
        if (
            len(value.uses()) != 1
            or value.is_graph_output()
            or entry.role != "activation"
            or entry.source is not None
            or entry.qtype.shares_exponent
            or not self._written_by_quantized(value)
        ):
            return False
        if self._recipe.output_format.integer_ops and entry.same_as is not None:
            return False  # the integers that it would pass on are not clipped
        if self._conventions.absorbs_any_clip:
            result = self._marks.override_of(node.outputs[0])
            converts = any(one and one.convert for one in (entry.override, result))
            kept = self._recipe.emulate.keep_activations
            return not (self._recipe.activation_symmetric or kept or converts)
        return (
            rule.bounds(node) is not None
            and entry.same_as is None
            and entry.fixed_range is None
            and entry.override is None
        )

    def _take_ranges_of_clips(self) -> None:
        """Let what a Relu or Clip alone reads have the range of its result, also where it stays."""
        for node in self._nodes:
            rule = RULES.get(node.op_type)
            if rule is None or rule.bounds is None or self._not_chosen(node) is not None:
                continue
            source, target = node.inputs[0], node.outputs[0]
            key = None if source is None else self._marks.marked.get(source)
            if source is None or key is None or self._kept_float(node) is not None:
                continue
            if len(source.uses()) == 1 and not source.is_graph_output():
                self._layout.entries[key].range_of = self._marks.names[target]

    def _written_by_quantized(self, value: ir.Value) -> bool:
        plan = self._layout.writer_of(value)
        return plan is not None and plan.action == "quantize"

    # Its results ---------------------------------------------------------------------------

    def _mark_outputs(
        self, node: ir.Node, rule: OpRule, inputs: list[str | None]
    ) -> tuple[str | None, ...]:
        outputs: list[str | None] = [None] * len(node.outputs)
        stays_float = self._result_stays_float(node)
        if self._fuse(node.outputs[0], result_is_quantized=not stays_float):
            return tuple(outputs)
        if stays_float or self._writes_float(node, rule):
            return tuple(outputs)
        keeps_scale = rule.keeps_scale_of(node)
        # Known ranges are fitted to what is observed, later.
        output_range = None if self._recipe.emulate.known_ranges else rule.output_range
        if self._recipe.output_format.integer_ops:
            output_range = rule.integer_range or output_range
        output_range = self._recipe.output_ranges.get(node.op_type, output_range)
        for index in rule.output_indices(node):
            value = node.outputs[index]
            if not is_float(value):
                continue
            if not value.uses() and not value.is_graph_output():
                continue
            key = outputs[index] = self._marks.mark_activation(value)
            entry = self._layout.entries[key]
            if self._channelwise_activations:
                continue  # what moves values moves channels, too
            source = None if inputs[0] is None else self._layout.entries[inputs[0]]
            if (
                keeps_scale
                and source is not None
                and _leaves_parameters(entry.override, source.qtype)
            ):
                if source.qtype.shares_exponent:
                    entry.qtype = source.qtype  # moved values lie in other blocks
                elif source.axis is None:
                    entry.same_as = inputs[0]
                    entry.qtype = source.qtype
            elif output_range is not None and _leaves_parameters(entry.override):
                entry.fixed_range = output_range
        return tuple(outputs)

    def _result_stays_float(self, node: ir.Node) -> bool:
        """Whether the user wants no pair behind this node, or behind what it is computed with."""
        if node.op_type in self._recipe.place.unquantized_outputs or node.name in self._unquantized:
            return True
        return any(value is not None and not self._fused.get(value, True) for value in node.inputs)

    def _fuse(self, value: ir.Value, *, result_is_quantized: bool) -> bool:
        """Leave a result inside a fused operation, where its reader is quantized as well."""
        reader = fused_reader(value, self._recipe)
        if reader is None or self._marks.override_of(value) is not None:
            return False
        if self._kept_float(reader) is not None or self._not_chosen(reader) is not None:
            return False
        self._fused[value] = result_is_quantized
        if self._refuse(reader, rule_for(reader.op_type, self._recipe)) is not None:
            del self._fused[value]
        return value in self._fused

    def _writes_float(self, node: ir.Node, rule: OpRule) -> bool:
        """Whether the integer kernel of a product best writes floats.

        Its only reader adds a constant, and the runtime computes both; or nothing reads integers.
        """
        # What it fuses into takes float32 scales only. In a body the runtime takes it for a
        # MatMulNBits, and refuses the model as the scales stand outside.
        if not self._recipe.place.float_bias_add or node.outputs[0].dtype == ir.DataType.FLOAT16:
            return False
        if node.graph is not self._model.graph:
            return False
        unread = rule.writes_float and node.name in self._unread
        return unread or bias_sum_behind(node) is not None

    # The rest of the graph ----------------------------------------------------------------

    def _read_through(self, float_by_name: set[str]) -> None:
        """Let nodes without a rule read dequantized values, so that producers stay fused.

        A node that the user asked to keep float reads the float tensor itself.
        """
        for node in self._nodes:
            name = node.name or ""
            plan = self._layout.nodes[name]
            if plan.action != "float" or name in float_by_name:
                continue
            dedicated = self._recipe.emulate.dedicated_pairs
            if dedicated and not self._conventions.float_nodes_read_dedicated_pairs:
                continue
            inputs = tuple(
                self._marks.key_for(v, name)
                if v is not None
                and v in self._marks.marked
                and self._is_read_through(v)
                and not (dedicated and self._has_several_chosen_readers(v))
                else None
                for v in node.inputs
            )
            self._layout.nodes[name] = msgspec.structs.replace(plan, inputs=inputs)
        for graph in self._model.graphs():
            for value in graph.outputs:
                if value in self._marks.names:
                    self._layout.outputs[self._marks.names[value]] = (
                        self._marks.key_for_output(value) if self._is_written(value) else None
                    )

    def _has_several_chosen_readers(self, value: ir.Value) -> bool:
        """Whether pairs of their own stand before readers, so that no pair is left for others."""
        readers = (use.node for use in value.uses())
        chosen = (n for n in readers if not self._kept_float(n) and not self._not_chosen(n))
        return len(list(islice(chosen, 2))) == 2

    def _is_read_through(self, value: ir.Value) -> bool:
        """Whether float nodes read a quantized tensor as the others do.

        They must where a node writes it as integers. What is computed in float they read as it
        is: that costs nothing, and rounds nothing.
        """
        if self._recipe.place.isolated:
            return True
        return self._is_written(value)

    def _is_written(self, value: ir.Value) -> bool:
        """Whether the node that computes a tensor writes it as integers."""
        plan, key = self._layout.writer_of(value), self._marks.marked.get(value)
        return plan is not None and key is not None and key in plan.outputs


def _leaves_parameters(override: Override | None, qtype: QType | None = None) -> bool:
    """Whether an override, if there is one, only names this type or adds a second one."""
    if override is None:
        return True
    return override == Override(
        qtype=override.qtype if override.qtype == qtype else None,
        convert=override.convert,
        convert_for=override.convert_for,
        per_tensor=override.per_tensor,
    )


def _dedicate_pairs(
    layout: Layout, marked: Mapping[ir.Value, str], names: Mapping[ir.Value, str]
) -> None:
    """Give each reader of a marked tensor an entry, and so a pair, of its own."""
    for value, key in marked.items():
        readers = [
            (name, index)
            for name, node in layout.nodes.items()
            for index, used in enumerate(node.inputs)
            if used == key
        ]
        if len(readers) + (layout.outputs.get(names[value]) is not None) < 2:
            continue
        if any(layout.nodes[name].action == "float" for name, _ in readers):
            continue  # float nodes read through the pair of the only chosen reader
        producer = value.producer()
        if producer is not None and layout.outputs.get(names[value]) is None:
            # The shared entry stays as the root of the parameters, without a pair of its own.
            _rename_uses(layout, producer.name or "", key, f"{key}@{readers[0][0]}", "outputs")
        for name, _ in readers:
            own = f"{key}@{name}"
            entry = layout.entries[key]
            layout.entries[own] = Entry(entry.name, value, "activation", entry.qtype, same_as=key)
            _rename_uses(layout, name, key, own, "inputs")


def _rename_uses(layout: Layout, node: str, old: str, new: str, side: str) -> None:
    plan = layout.nodes.get(node)
    if plan is not None:
        keys = tuple(new if used == old else used for used in getattr(plan, side))
        layout.nodes[node] = msgspec.structs.replace(plan, **{side: keys})
