"""Layouts of small models: what is quantized, and which nodes."""

from bitwright.decide.layout.static import lay_out
from bitwright.jobs.opening import open_model
from bitwright.recipe import Recipe


def layout_of(model, **fields):
    recipe = Recipe(name="test", **fields)
    return lay_out(open_model(model, recipe).model, recipe)


def quantized_nodes(layout):
    return {name for name, planned in layout.nodes.items() if planned.quantized}
