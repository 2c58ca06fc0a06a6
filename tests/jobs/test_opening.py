"""A model on its way into a job: loaded, prepared, and known by its fingerprints."""

import numpy as np
import pytest
from support.equalization_models import make_chain
from support.models import build, info, make_cnn, node, normal

import bitwright
from bitwright import load_recipe
from bitwright.errors import DataError, ModelError, RecipeError
from bitwright.graph import load_model, opset_of
from bitwright.jobs.opening import input_specs, open_model, prepare_further, upgrade_for
from bitwright.recipe import CrossLayerEqualization, Recipe, Rewrites, Selection


def test_other_weights_keep_the_plans_fingerprint_and_change_the_sketches():
    model = make_chain([("Relu", [], {})])
    prepared = open_model(model, Recipe())
    equalized = open_model(model, Recipe(equalize=CrossLayerEqualization(weight_threshold=None)))
    assert prepared.fingerprint == equalized.fingerprint
    assert prepared.content_fingerprint != equalized.content_fingerprint
    assert prepared.content_fingerprint == open_model(model, Recipe()).content_fingerprint


def test_results_are_measured_against_the_model_before_it_simulates_hardware():
    nodes = [node("Conv", ["x", "w"], ["c"], "conv"), node("Sigmoid", ["c"], ["y"], "sigmoid")]
    model = build(nodes, {"x": [1, 2, 4, 4]}, {"y": [1, 2, 4, 4]}, {"w": normal(2, 2, 1, 1)})
    prepared = open_model(model, load_recipe("npu-cnn"))
    assert prepared.reference is not prepared.model
    assert "Sigmoid" in {n.op_type for n in prepared.reference.graph}
    assert "Sigmoid" not in {n.op_type for n in prepared.model.graph}
    plain = open_model(model, Recipe())
    assert plain.reference is plain.model


def test_an_old_opset_is_upgraded_with_a_note():
    notes = []
    model = upgrade_for(load_model(make_cnn(opset=11)), Recipe(per_channel=True), notes)
    assert opset_of(model) >= 13
    assert notes == [f"upgraded opset 11 to {opset_of(model)}"]


def test_a_node_that_preparation_merged_cannot_be_named():
    nodes = [
        node("Conv", ["x", "w"], ["c"], "conv"),
        node("Identity", ["c"], ["y"], "nothing"),
    ]
    model = build(nodes, {"x": [1, 2, 4, 4]}, {"y": [1, 2, 4, 4]}, {"w": normal(2, 2, 1, 1)})
    with pytest.raises(RecipeError, match="node 'nothing' was merged into its neighbours"):
        open_model(model, Recipe(select=Selection(exclude=("nothing",))))


def test_inputs_that_are_no_tensors_are_refused():
    sequence = info("s", None)
    sequence.type.sequence_type.elem_type.tensor_type.elem_type = 1
    model = load_model(
        build([node("SequenceLength", ["s"], ["n"], "length")], [sequence], [info("n", [], 7)])
    )
    with pytest.raises(ModelError, match="only tensors can be fed"):
        input_specs(model)


def test_specs_name_open_dimensions():
    spec = input_specs(load_model(make_cnn()))[0]
    assert spec.dtype == np.float32 and len(spec.shape) == 4


def shape_of(model):
    return tuple(model.graph.inputs[0].shape)


@pytest.mark.parametrize("sizes", [{"batch": 1}, {"x": (1, 3, 12, 12)}])
def test_open_dimensions_get_the_sizes_of_the_recipe(sizes):
    recipe = load_recipe("npu-cnn").replace(rewrite=Rewrites(fix_shapes=sizes))
    prepared = open_model(make_cnn(batch="batch"), recipe)
    assert shape_of(prepared.model) == (1, 3, 12, 12)
    assert tuple(prepared.model.graph.outputs[0].shape) == (1, 10)
    assert not [note for note in prepared.notes if note.startswith("warning")]


@pytest.mark.parametrize("batch", ["batch", 4])
def test_a_shape_that_the_npu_does_not_take_is_noted(batch):
    prepared = open_model(make_cnn(batch=batch), load_recipe("npu-cnn"))
    (note,) = [note for note in prepared.notes if note.startswith("warning")]
    assert f"{batch}, and the NPU takes fixed shapes" in note and "--fix-shape" in note
    assert not [n for n in open_model(make_cnn(batch=batch), Recipe()).notes if "NPU" in n]


@pytest.mark.parametrize(
    ("sizes", "kind", "said"),
    [
        ({"bach": 1}, DataError, "Did you mean 'batch'"),
        ({"x": (1, 3, 9, 9)}, ModelError, "only open dimensions"),
        ({"x": (1, 3)}, ModelError, "only open dimensions"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(sizes, kind, said):
    with pytest.raises(kind, match=said):
        open_model(make_cnn(batch="batch"), Recipe(rewrite=Rewrites(fix_shapes=sizes)))


def test_a_model_that_gets_biases_on_top_is_another_with_the_same_notes():
    prepared = open_model(bitwright.load_demo().model_path, Recipe())
    further = prepare_further(prepared, Recipe(bias_correction="fast"))
    assert further.model is not prepared.model and further.notes == prepared.notes
