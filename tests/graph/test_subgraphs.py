from __future__ import annotations

import onnx
import pytest

from bitwright.errors import ModelError
from bitwright.graph import find_value, iter_graphs, iter_values, load_model, owner_nodes
from bitwright.graph.subgraphs import _HOLDERS


def test_paths_name_the_owner_and_its_attribute(builders):
    model = load_model(builders.loop(inner_if=True))
    assert [path for path, _ in iter_graphs(model)] == [
        "",
        "loop/body",
        "loop/body/inner/else_branch",
        "loop/body/inner/then_branch",
    ]
    owners = owner_nodes(model)
    assert [owners[graph].name for path, graph in iter_graphs(model) if path] == [
        "loop",
        "inner",
        "inner",
    ]


def test_a_nameless_owner_is_told_by_type_and_place(builders):
    proto = builders.branches()
    proto.graph.node[0].name = ""
    assert [path for path, _ in iter_graphs(load_model(proto))][1] == "If#0/else_branch"


def test_qualified_names_are_unique_and_found_again(builders):
    model = load_model(builders.branches())
    names = [name for name, _ in iter_values(model)]
    assert len(names) == len(set(names))
    assert {"choose/then_branch:t", "choose/else_branch:t", "choose/then_branch:w"} <= set(names)
    assert find_value(model, "choose/else_branch:t").producer().op_type == "Neg"
    with pytest.raises(ModelError, match="Did you mean 'choose/then_branch:t'"):
        find_value(model, "choose/then_branc:t")


def test_no_other_operator_of_onnx_holds_graphs():
    graphs = {onnx.defs.OpSchema.AttrType.GRAPH, onnx.defs.OpSchema.AttrType.GRAPHS}
    holders = {
        schema.name
        for schema in onnx.defs.get_all_schemas_with_history()
        if not schema.domain and any(a.type in graphs for a in schema.attributes.values())
    }
    assert holders == _HOLDERS
