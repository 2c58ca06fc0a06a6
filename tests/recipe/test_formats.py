"""Facts of output formats."""

from typing import get_args

import pytest

import bitwright
from bitwright.emit import EMITTERS, VENDOR_DOMAIN
from bitwright.recipe.formats import FORMATS, FormatName


def test_every_name_has_its_row_and_something_that_writes_it():
    assert set(get_args(FormatName)) == set(FORMATS)
    assert {name for mode, name in EMITTERS if mode == "static"} == set(FORMATS)


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_written_is_what_the_row_says(name):
    demo = bitwright.load_demo()
    recipe = bitwright.Recipe(format=name, activation_symmetric=True)
    result = bitwright.quantize(demo.model_path, data=demo.calibration[:4], recipe=recipe)
    facts = recipe.output_format
    nodes = list(result.model.graph)
    kinds = {node.op_type for node in nodes}
    assert any(kind.startswith("QLinear") for kind in kinds) == facts.integer_ops
    assert any(node.domain == VENDOR_DOMAIN for node in nodes) == facts.vendor_ops
    read = [node.inputs[0].producer() for node in nodes if node.op_type == "Conv"]
    assert any("Dequantize" in node.op_type for node in read) == facts.pairs


def test_an_unknown_format_is_refused_with_the_known_ones():
    with pytest.raises(bitwright.RecipeError, match="'format' cannot be 'qdqq'"):
        bitwright.Recipe(format="qdqq")
