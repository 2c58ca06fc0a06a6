from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bitwright.graph import NameScope, load_model


def test_names_of_bodies_and_nodes_are_known_too(builders):
    scope = NameScope(load_model(builders.branches()))
    assert scope.fresh("then_out") == "then_out_1"
    assert scope.fresh("mm") == "mm_1"
    assert "w" in scope and "new" not in scope and scope.fresh("") == "_1"


@given(st.lists(st.sampled_from(["x", "y", "x_1", "h", "h_1", "first"]), max_size=30))
def test_fresh_names_never_repeat_and_never_collide(wanted):
    import onnx_ir as ir

    values = [ir.Value(name=name) for name in ("x", "h")]
    scope = NameScope(ir.Model(ir.Graph(values, [], nodes=[]), ir_version=8))
    given_out = [scope.fresh(name) for name in wanted]
    assert len(set(given_out)) == len(given_out) and not {"x", "h"} & set(given_out)
