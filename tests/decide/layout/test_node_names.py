"""Names in recipes: what they stand for, and what was meant by those that fit nothing."""

import onnx_ir as ir
import pytest

from bitwright.decide.layout.node_names import NodeNames, find_names, suggest_name

KNOWN = ["/layer4/conv1/Conv", "/layer4/conv2/Conv", "/fc/Gemm"]


@pytest.mark.parametrize("name", ["re:stem.*", "stem", "Conv", "re:node_.*", "node_conv2d"])
def test_a_node_is_found_by_name_module_op_type_and_pattern(name):
    conv = ir.Node("", "Conv", inputs=[ir.Value(name="x")], name="node_conv2d")
    conv.metadata_props["pkg.torch.onnx.name_scopes"] = "['', 'stem', 'stem.conv', 'conv2d']"
    assert NodeNames([conv]).find(name) == {"node_conv2d"}
    assert not NodeNames([conv]).find("head")


def test_a_pattern_fits_whole_names():
    assert find_names("re:conv.", ["conv1", "conv2", "conv10"]) == {"conv1", "conv2"}


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [
        ("/layer4/.*", " Did you mean 're:/layer4/.*'?"),
        ("/layer4/*", " Did you mean 're:/layer4/.*'?"),
        ("layer4", " Did you mean 're:.*layer4.*'?"),
        ("re:layer4/.*", " A pattern fits whole names; did you mean 're:.*layer4/.*'?"),
        ("/fc/Gem", " Did you mean '/fc/Gemm'?"),
    ],
)
def test_what_fits_nothing_gets_a_hint(pattern, hint):
    assert suggest_name(pattern, KNOWN) == hint
