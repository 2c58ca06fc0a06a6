import pytest
from support.models import make_cnn, make_samples

import bitwright
from bitwright import AdaRound, load_recipe
from bitwright.errors import RecipeError

pytest.importorskip("torch")


def tuned(nodes):
    model = make_cnn()
    learning = AdaRound(iterations=20, scope="layer", nodes=nodes)
    recipe = load_recipe("int8").replace(
        fine_tune=learning, emulate={"fine_tune": {"selective": False}}
    )
    result = bitwright.quantize(model, data=make_samples(model, 8), recipe=recipe, progress=False)
    return [note for note in result.plan.notes if note.startswith("fine-tuning: ")]


def test_only_blocks_with_one_of_the_named_nodes_learn():
    everything = [note.split(": ")[1] for note in tuned(None)]
    assert len(everything) > 2
    assert [note.split(": ")[1] for note in tuned((everything[1],))] == [everything[1]]


def test_a_node_that_the_model_lacks_is_an_error():
    with pytest.raises(RecipeError, match="names node 'nothing', which the model lacks"):
        tuned(("nothing",))
