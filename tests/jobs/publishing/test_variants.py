"""Names and places are those that loaders look for."""

import pytest

from bitwright.jobs.publishing.variants import LOADERS, VARIANTS


@pytest.mark.parametrize(
    ("dtype", "suffix"),
    [
        ("fp32", ""),
        ("fp16", "_fp16"),
        ("int8", "_int8"),
        ("uint8", "_uint8"),
        ("q8", "_quantized"),
        ("q4", "_q4"),
        ("q4f16", "_q4f16"),
        ("bnb4", "_bnb4"),
        ("q2", "_q2"),
    ],
)
def test_transformers_js_finds_each_dtype(dtype, suffix):
    loader = LOADERS["transformers.js"]
    place = loader.place("sub/decoder_model_merged.onnx", VARIANTS[dtype])
    assert place == f"onnx/decoder_model_merged{suffix}.onnx"
    assert place and loader.data == "_data"


@pytest.mark.parametrize("loader", LOADERS.values(), ids=str)
def test_loaders_name_variants_that_there_are(loader):
    assert {one.name for one in loader.choose(None)} == set(loader.variants)
