"""Messages that contradict themselves are told in a sentence, whatever reads them later."""

import itertools

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper
from support.models import build, info, make_cnn, make_transformer, node, normal

from bitwright.errors import ModelError
from bitwright.graph import load_model
from bitwright.graph.messages import check_message
from bitwright.support.input_limits import input_limits


def product(**changes):
    """Return a model of one matrix product, with fields of its weight changed."""
    model = build(
        [node("MatMul", ["x", "w"], ["y"])], [info("x", [1, 4])], {"y": None}, {"w": normal(4, 4)}
    )
    for name, value in changes.items():
        field = getattr(model.graph.initializer[0], name)
        if name == "dims":
            del field[:]
            field.extend(value)
        else:
            setattr(model.graph.initializer[0], name, value)
    return model


def refuse(model, said):
    with pytest.raises(ModelError, match=said) as caught:
        load_model(model)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("make", [make_cnn, make_transformer])
def test_sound_models_pass(make):
    load_model(make())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dims": [7, 4]}, r"tensor 'w' of shape 7x4 needs 112 bytes and has 64; export"),
        ({"dims": [-4, 4]}, r"tensor 'w' has the impossible shape -4x4; export"),
        ({"dims": [2**62, 4]}, r"tensor 'w' has the impossible shape 4611686018427387904x4;"),
        ({"dims": [2**40, 4]}, r"needs 17592186044416 bytes and has 64; export"),
        ({"data_type": 0}, r"tensor 'w' has the unknown element type 0; export"),
        ({"data_type": 99}, r"tensor 'w' has the unknown element type 99; export"),
        ({"raw_data": b""}, r"of shape 4x4 needs 64 bytes and has 0; export"),
    ],
)
def test_tensors_hold_what_they_claim(changes, said):
    refuse(product(**changes), said)


KINDS = "FLOAT DOUBLE INT64 UINT64 INT32 INT8 BOOL FLOAT16 BFLOAT16 INT4 UINT4 STRING COMPLEX64"


@pytest.mark.parametrize("kind", KINDS.split())
def test_tensors_in_lists_of_numbers_pass_and_are_counted(kind):
    value = {"STRING": b"a", "COMPLEX64": 1 + 2j}.get(kind, 1)
    stored = helper.make_tensor("w", TensorProto.DataType.Value(kind), [2, 3], [value] * 6)
    model = product()
    model.graph.initializer[0].CopyFrom(stored)
    load_model(model)
    model.graph.initializer[0].dims[0] = 5
    refuse(model, "tensor 'w' of shape 5x3 needs ")


def test_names_are_text():
    data = product().SerializeToString()
    for before, after in ((b"\x01w", b"\x01\xff"), (b"MatMul", b"MatM\xff\xff")):
        refuse(onnx.ModelProto.FromString(data.replace(before, after)), "is not UTF-8; export")


def test_attributes_have_a_type_and_whole_tensors():
    model = product()
    model.graph.node[0].attribute.append(AttributeProto(name="alpha"))
    refuse(model, "the attribute 'alpha' of node .* has no known type; export")
    model.graph.node[0].attribute[0].type = AttributeProto.TENSOR
    refuse(model, "tensor of the attribute 'alpha' .* has the unknown element type 0; export")


def test_attributes_are_of_the_type_that_the_operator_has():
    model = product()
    model.graph.node[0].CopyFrom(node("Gemm", ["x", "w"], ["y"], transB="yes"))
    refuse(model, "the attribute 'transB' of node 'Gemm' is of the wrong type; export")


def test_attributes_that_an_operator_needs_are_there():
    for one, said in (
        (node("Cast", ["x"], ["y"]), r"\(Cast\) has no attribute 'to'; export"),
        (node("Constant", [], ["y"]), r"\(Constant\) has 0 values instead of one; export"),
    ):
        refuse(build([one], [info("x", [1, 4])], {"y": None}), said)


def test_references_to_attributes_of_functions_pass():
    body = [node("LeakyRelu", ["a"], ["b"])]
    body[0].attribute.append(AttributeProto(name="alpha", ref_attr_name="slope"))
    function = helper.make_function(
        "local", "Leaky", ["a"], ["b"], body, [helper.make_opsetid("", 17)], ["slope"]
    )
    model = build(
        [helper.make_node("Leaky", ["x"], ["y"], domain="local", slope=0.5)],
        [info("x", [1, 4])],
        {"y": None},
        domains=["local"],
        functions=[function],
    )
    load_model(model)


@pytest.mark.parametrize("op_type", ["MatMul", "Conv", "Gemm", "Gather", "Add"])
def test_nodes_have_the_inputs_that_they_need(op_type):
    for inputs, said in (
        (["x"], rf"\({op_type}\) has 1 of at least 2 inputs; export"),
        (["x", ""], rf"\({op_type}\) leaves out its input 1; export"),
        (["", "x"], rf"\({op_type}\) leaves out its input 0; export"),
    ):
        refuse(build([node(op_type, inputs, ["y"])], [info("x", [1, 4])], {"y": None}), said)


def test_inputs_that_exporters_leave_out_may_be_left_out():
    for one in (
        node("Clip", ["x", "", "high"], ["y"]),
        node("Resize", ["x", "", "scales"], ["y"], mode="nearest"),
    ):
        constants = {"high": np.float32(1), "scales": np.ones(4, np.float32)}
        load_model(build([one], [info("x", [1, 1, 2, 2])], {"y": None}, constants, opset=11))


@pytest.mark.parametrize("version", [-1, 2**40])
def test_an_impossible_opset_is_refused(version):
    model = product()
    model.opset_import[0].version = version
    refuse(model, f"uses opset {version} of 'ai.onnx', which cannot be")


def test_inputs_have_a_type_and_a_possible_size():
    model = product()
    model.graph.input[0].type.tensor_type.elem_type = 0
    refuse(model, "input 'x' has no element type; export")
    model = product()
    model.graph.input[0].CopyFrom(info("x", [2**40, 2**40]))
    refuse(model, "input 'x' has the impossible shape 1099511627776x1099511627776;")


def calls(levels, width=10):
    """Return a model of functions that call the next one, `width` times each."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    functions = []
    for level in range(levels):
        op_type, domain = ("Relu", "") if level == 0 else (f"F{level - 1}", "local")
        names = [f"v{index}" for index in range(width + 1)]
        body = [
            helper.make_node(op_type, [before], [after], domain=domain)
            for before, after in itertools.pairwise(names)
        ]
        functions.append(
            helper.make_function("local", f"F{level}", ["v0"], [names[-1]], body, imports)
        )
    top = helper.make_node(f"F{levels - 1}", ["x"], ["y"], domain="local")
    return build([top], [info("x", [1, 4])], {"y": None}, domains=["local"], functions=functions)


def test_a_billion_nodes_in_functions_are_counted_not_made():
    refuse(
        calls(9), r"the model has 1000000000 nodes, and the limit is 1000000; .*nodes=1000000000"
    )


def test_limits_can_be_raised_and_lowered():
    with input_limits(nodes=99):
        refuse(calls(2), "has 100 nodes, and the limit is 99")
    with input_limits(nodes=100):
        load_model(calls(2))


def test_functions_in_a_circle_are_refused():
    model = calls(2)
    model.functions[0].node[0].CopyFrom(helper.make_node("F1", ["v0"], ["v1"], domain="local"))
    refuse(model, "has functions that call each other in a circle; export")


def nested(depth):
    """Return a model of Ifs within each other."""
    result = info("r", [1, 4])
    plain = helper.make_graph([node("Relu", ["x"], ["r"])], "body", [], [result])
    nodes = list(plain.node)
    for _ in range(depth):
        body = helper.make_graph(nodes, "body", [], [result])
        nodes = [node("If", ["c"], ["r"], then_branch=body, else_branch=plain)]
    return build(nodes, [info("x", [1, 4])], [result], {"c": np.array(True)})


def test_bodies_within_each_other_are_limited():
    load_model(nested(3))
    with input_limits(nesting=2):
        refuse(nested(3), "has 3 bodies within each other, and the limit is 2; ")


def test_weights_that_were_left_in_the_file_are_not_missed(tmp_path, monkeypatch):
    monkeypatch.setattr("bitwright.graph.extents.SMALLEST_FILE", 0)
    monkeypatch.setattr("bitwright.graph.extents.SMALLEST_TENSOR", 0)
    path = tmp_path / "m.onnx"
    onnx.save(product(), path)
    read = load_model(path).graph.initializers["w"].const_value.numpy()
    assert np.array_equal(read, numpy_helper.to_array(product().graph.initializer[0]))


def test_metadata_that_is_no_text_is_refused():
    model = onnx.ModelProto(graph=onnx.GraphProto(name="g"))
    model.metadata_props.add(key="notes", value="#text#")
    damaged = model.SerializeToString().replace(b"#text#", b"\x80text\x80")
    with pytest.raises(ModelError, match="its remarks or metadata are not UTF-8; export it again"):
        check_message(onnx.ModelProto.FromString(damaged), "it")


def test_a_cast_to_no_type_is_refused():
    graph = helper.make_graph(
        [node("Cast", ["x"], "y", to=-1)], "g", [info("x", [2])], [info("y", [2])]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    with pytest.raises(ModelError, match="names the unknown element type -1"):
        check_message(model, "it")


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        (node("Conv", ["x", "x"], "y", group=2**40), "'group' of node .* cannot be 1099511627776"),
        (node("Constant", [], "y", x=1), "has no value"),
    ],
)
def test_attributes_that_no_exporter_writes_are_refused(odd, reason):
    model = build([odd], {"x": [1, 2, 3]}, {"y": [1]})
    with pytest.raises(ModelError, match=reason):
        check_message(model, "it")
