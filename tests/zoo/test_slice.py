"""A fixed slice of the zoo: graphs of real exporters, their large weights made again from a seed.

Each stands for an architecture or for a failure that was mended, and stays. `python -m zoo store`
adds one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import bitwright
from zoo.stored import restore
from zoo.verbs import find_verbs


def name_of(graph):
    return graph.name.removesuffix(".onnx.gz")


# What was added later comes last, so that the others keep their turns.
ADDED = (
    "files-onnx_asr-preprocessors-gigaam_v3_conv",
    "timm-vit_tiny_r_s16_p8_224-torchscript-13-dynamic",
    "transformers-bamba-dynamo-23-dynamic",
    "transformers-efficientnet-torchscript-20-static",
    "transformers-roc_bert-torchscript-11-static",
)
GRAPHS = sorted(
    (Path(__file__).parent / "graphs").glob("*.onnx.gz"),
    key=lambda graph: (name_of(graph) in ADDED, graph.name),
)
# Every graph is quantized statically; the other verbs take turns.
IN_TURNS = (
    "int4-gptq dynamic a16w8 bias-correction qoperator int4-awq preprocess plan a8w4 per-tensor "
    "verify compare int4-rtn"
).split()
# What once failed on a graph is tried on it for ever.
MENDED = {
    "files-onnx_asr-preprocessors-gigaam_v3_conv": ("npu-cnn",),
    "files-speechmos-aecmos_models-Run_1663829550_Stage_0": ("preprocess",),
    "transformers-bamba-dynamo-23-dynamic": ("adaround",),
    "transformers-roc_bert-torchscript-11-static": ("adaround",),
    "transformers-efficientnet-torchscript-20-static": ("npu-cnn",),
    "transformers-jetmoe-dynamo-18-static-external": ("compare", "bias-correction"),
    "nodes-attention_3d_softcap_expanded": ("sensitivity",),
    "nodes-rotary_embedding_expanded": ("preprocess",),
    "timm-samvit_base_patch16_224-torchscript-17-dynamic": ("adaround",),
    "timm-levit-torchscript": ("a16w8",),
    "timm-vit_tiny_r_s16_p8_224-torchscript-13-dynamic": ("preprocess", "dynamic"),
    "transformers-albert-torchscript": ("int4-gptq", "dynamic"),
    "transformers-wav2vec2-bert-torchscript-18-static": ("int4-gptq", "bias-correction"),
}
CASES = [
    pytest.param(graph, verb, id=f"{name_of(graph)}-{verb.name}")
    for index, graph in enumerate(GRAPHS)
    for verb in find_verbs(
        ("static", *MENDED.get(name_of(graph), (IN_TURNS[index % len(IN_TURNS)],)))
    )
]


@pytest.fixture(scope="module")
def restored(tmp_path_factory):
    """Return a stored graph with its weights, made once."""
    done = {}

    def find(graph):
        if graph not in done:
            done[graph] = restore(graph, tmp_path_factory.mktemp("graphs"))
        return done[graph]

    return find


def test_there_is_a_slice():
    assert len(GRAPHS) >= 30


@pytest.mark.parametrize(("graph", "verb"), CASES)
@pytest.mark.sampled(12)
def test_a_graph_keeps_the_contract_or_is_refused_with_a_reason(restored, graph, verb, tmp_path):
    case = restored(graph)
    assert case.is_finite
    try:
        done = verb.run(case, tmp_path)
    except bitwright.BitwrightError as error:
        # The float model runs, so this reason would hide a failure.
        assert "does not run" not in str(error)
        return
    assert done.outcome == "passed", f"{done.reason}: {done.sqnr}"
