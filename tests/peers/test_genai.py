"""onnxruntime-genai chats with what becomes of the folders that its builder writes.

The graphs and configurations in `fixtures/genai` are those that the builder of onnxruntime-genai
0.18 made of tiny models of transformers (two layers, a width of 64, 256 tokens); weights come from
a seed.
"""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from support.tool_environment import GENAI, run_script

import bitwright
from bitwright import TextData
from zoo.stored import restore

STORED = Path(__file__).parents[1] / "fixtures" / "genai"
FAMILIES = ("llama", "qwen3", "gemma2", "phi3")
VOCABULARY = 256
PROMPTS = [[5, 17, 99, 200, 33], [8], [64, 2, 128, 77, 9, 250, 31, 190, 12]]
TOKENS = 8


class Words:
    """The tokenizer of these models: a word is its number."""

    def encode(self, text):
        return [int(word) for word in text.split()]


def make_folder(family, path):
    """Write a folder as the builder does: weights beside the model, configuration, tokenizer."""
    path.mkdir()
    model = onnx.load(restore(STORED / f"{family}.onnx.gz", path.parent).path)
    onnx.save(
        model,
        path / "model.onnx",
        save_as_external_data=True,
        location="model.onnx.data",
        size_threshold=1024,
    )
    (path / "genai_config.json").write_text((STORED / f"{family}.json").read_text())
    (path / "tokenizer.json").write_text("{}")
    return path


@pytest.fixture
def text(tmp_path):
    words = np.random.default_rng(0).integers(0, VOCABULARY, 24 * 64)
    (tmp_path / "text.txt").write_text(" ".join(map(str, words)))
    return TextData(text=tmp_path / "text.txt", tokenizer=Words(), length=64)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.sampled(1)
def test_a_folder_of_the_builder_comes_out_as_it_loads_it(family, text, tmp_path):
    folder, small = make_folder(family, tmp_path / family), tmp_path / "small"
    result = bitwright.quantize(folder, small, recipe="int4-rtn", data=text, limit=4)
    assert {path.name for path in small.iterdir()} == {
        "genai_config.json",
        "model.onnx",
        "tokenizer.json",
    }
    decoder = json.loads((small / "genai_config.json").read_text())["model"]["decoder"]
    assert (small / decoder["filename"]).is_file()
    before = ort.InferenceSession(folder / "model.onnx")
    after = ort.InferenceSession(small / "model.onnx")
    for side in ("get_inputs", "get_outputs"):
        kinds = [
            [(value.name, value.type, value.shape) for value in getattr(session, side)()]
            for session in (before, after)
        ]
        assert kinds[0] == kinds[1]
    nodes = {node.name: node for node in onnx.load(small / "model.onnx").graph.node}
    assert all(node.op_type != "MatMul" for node in nodes.values())
    for node in onnx.load(folder / "model.onnx").graph.node:
        if node.op_type == "GroupQueryAttention":  # with its window and its ring of slots
            assert list(nodes[node.name].attribute) == list(node.attribute)
    assert result.size < 0.5 * result.float_size
    assert result.results["model.onnx"].outputs[0].agreement > 0.2


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_genai_answers_with_the_same_tokens_in_8_bits_and_answers_in_4(text, tmp_path):
    # The logits of random weights lie close together: of all recipes with 8 bits the most exact.
    weights = {"bits": 8, "block_size": 16, "accuracy_level": 0}
    exact = bitwright.load_recipe("int4").replace(weights=weights)
    folders = {}
    for family in FAMILIES:
        folder = make_folder(family, tmp_path / family)
        folders[family] = [f"{folder}{ending}" for ending in ("", "-8", "-4")]
        bitwright.quantize(folder, folders[family][1], recipe=exact, data=text)
        four = bitwright.quantize(folder, folders[family][2], recipe="int4", data=text)
        logits = four.results["model.onnx"].outputs[0]
        assert logits.judged.worst.kind == "logits" and logits.judged.worst.figure < 0.3, family
    names = [name for three in folders.values() for name in three]
    asked = {"folders": names, "prompts": PROMPTS, "count": TOKENS}
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    run_script("genai_chat.py", tmp_path / "asked.json", tmp_path / "answers.json", needs=GENAI)
    answers = json.loads((tmp_path / "answers.json").read_text())
    for family, (plain, eight, four) in folders.items():
        assert answers[eight] == answers[plain], family
        assert [len(answer) for answer in answers[four]] == [TOKENS] * len(PROMPTS), family
