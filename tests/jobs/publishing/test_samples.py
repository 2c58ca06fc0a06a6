"""Random samples are of the kind that a model reads."""

import json

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto
from support.language_models import make_decoder
from support.models import build, info, make_cnn, node
from support.published import WORDS, make_encoder

from bitwright import graph
from bitwright.errors import DataError
from bitwright.jobs.opening import input_specs
from bitwright.jobs.publishing.samples import TOKENS, draw_samples


def drawn(model, **options):
    loaded = graph.load_model(model)
    return draw_samples(loaded, input_specs(loaded), count=3, **options)


def test_tokens_lie_in_the_vocabulary_and_masks_show_all():
    samples = drawn(make_encoder())
    tokens = np.concatenate([sample["input_ids"] for sample in samples])
    assert tokens.shape == (3, TOKENS) and 1 < tokens.max() < WORDS
    assert all((sample["attention_mask"] == 1).all() for sample in samples)


def test_the_same_samples_are_drawn_every_time():
    for one, other in zip(drawn(make_encoder()), drawn(make_encoder()), strict=True):
        np.testing.assert_array_equal(one["input_ids"], other["input_ids"])


def test_caches_are_empty_with_the_heads_of_the_configuration(tmp_path):
    model = make_decoder()
    (tmp_path / "config.json").write_text(json.dumps({"num_attention_heads": 2, "hidden_size": 16}))
    sample = drawn(model, folder=tmp_path)[0]
    caches = [array for name, array in sample.items() if name.startswith("past")]
    assert caches and all(array.shape[2] == 0 for array in caches)


def test_images_have_a_side_where_it_is_open():
    model = build(
        [node("Relu", ["pixel_values"], ["y"])],
        {"pixel_values": ["batch", 3, "height", "width"]},
        [info("y", None)],
    )
    assert drawn(model)[0]["pixel_values"].shape == (1, 3, 224, 224)
    fixed = drawn(make_cnn())[0]
    assert all(array.dtype == np.float32 for array in fixed.values())


def test_strings_cannot_be_made_up():
    model = build(
        [node("Identity", ["text"], ["y"])],
        [info("text", ["n"], TensorProto.STRING)],
        [info("y", ["n"], TensorProto.STRING)],
    )
    assert isinstance(graph.load_model(model), ir.Model)
    with pytest.raises(DataError, match="takes strings, so that no sample can be made up"):
        drawn(model)
