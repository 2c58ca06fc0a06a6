"""onnxruntime-genai chats with what becomes of the folders that its builder writes."""

import json

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from support.genai_folders import FAMILIES, VOCABULARY, Words, make_folder
from support.tool_environment import GENAI, run_script

import bitwright
from bitwright import TextData
from bitwright.api import publish
from bitwright.errors import ModelError

PROMPTS = [[5, 17, 99, 200, 33], [8], [64, 2, 128, 77, 9, 250, 31, 190, 12]]
TOKENS = 8


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
        # Of random weights two tokens may be as likely: one answer may go another way.
        same = [one == other for one, other in zip(answers[eight], answers[plain], strict=True)]
        assert sum(same) >= len(PROMPTS) - 1, family
        first = [[answer[0] for answer in answers[name]] for name in (eight, plain)]
        assert first[0] == first[1], family
        assert [len(answer) for answer in answers[four]] == [TOKENS] * len(PROMPTS), family


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_genai_answers_with_the_same_tokens_from_caches_of_8_bits_and_answers_from_4(
    text, tmp_path
):
    changes = (
        ("c8", "int8-cache", "int8"),
        ("c4", "int8-cache", "int4"),
        ("w4", "int4-rtn", "int8"),
    )
    folders = {}
    for family in FAMILIES:
        folder = make_folder(family, tmp_path / family)
        folders[family] = {"plain": str(folder)}
        for ending, name, cache in changes:
            recipe = bitwright.load_recipe(name).replace(cache=cache)
            if (family, cache) == ("gemma2", "int4"):  # a ring of slots, and heads of 16
                with pytest.raises(ModelError, match="heads of a multiple of 32"):
                    bitwright.quantize(folder, recipe=recipe, data=text)
                continue
            folders[family][ending] = f"{folder}-{ending}"
            bitwright.quantize(folder, folders[family][ending], recipe=recipe, data=text)
    names = [name for one in folders.values() for name in one.values()]
    asked = {"folders": names, "prompts": PROMPTS, "count": TOKENS}
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    run_script("genai_chat.py", tmp_path / "asked.json", tmp_path / "answers.json", needs=GENAI)
    answers = json.loads((tmp_path / "answers.json").read_text())
    same = [answers[one["plain"]] == answers[one["c8"]] for one in folders.values()]
    assert sum(same) >= 2  # the logits of random weights lie close together
    for name in names:
        assert [len(answer) for answer in answers[name]] == [TOKENS] * len(PROMPTS), name


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_genai_writes_on_with_each_variant_that_is_published(tmp_path):
    given = {"loader": "genai", "variants": ["fp16", "q4", "q4f16"], "reports": False}
    names = {}
    for family in FAMILIES:
        folder, out = make_folder(family, tmp_path / family), tmp_path / f"{family}-out"
        made = publish(folder, out, **given)
        assert [one.variant for one in made.written] == given["variants"], family
        names[family] = [str(folder), *(str(out / name) for name in given["variants"])]
    asked = {
        "folders": [name for all_of in names.values() for name in all_of],
        "prompts": PROMPTS,
        "count": TOKENS,
    }
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    run_script("genai_chat.py", tmp_path / "asked.json", tmp_path / "answers.json", needs=GENAI)
    answers = json.loads((tmp_path / "answers.json").read_text())
    for family, (plain, half, *four) in names.items():
        assert answers[half] == answers[plain], family
        for name in four:
            assert [len(answer) for answer in answers[name]] == [TOKENS] * len(PROMPTS), name
