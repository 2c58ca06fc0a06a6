"""The card says which variant to take, and configurations keep what they had."""

import json

import pytest
from support.models import unchanged

from bitwright.assess.clock import read_clock
from bitwright.errors import ModelError
from bitwright.jobs.folder import ModelFolder
from bitwright.jobs.publishing.card import Published
from bitwright.jobs.publishing.certificate import Certificate
from bitwright.jobs.publishing.variants import LOADERS


def one(variant, **facts):
    file = f"onnx/model_{variant}.onnx"
    given = {"part": "model.onnx", "variant": variant, "file": file, "hashes": {file: "0"}}
    return Certificate(**{**given, "size": 100, "level": "good", "loss": 0.01, **facts})


def card(folder, *certificates):
    return Published(folder, LOADERS["transformers.js"], certificates)


def source(folder, **files):
    folder.mkdir()
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return ModelFolder(folder, {}, tuple(name.replace("_", ".") for name in files))


def test_the_smallest_good_one_is_taken_on_each_device_and_no_slow_one(tmp_path):
    slow = read_clock([(1.0, 2.0)] * 9)
    made = card(
        tmp_path, one("fp32", level="float"), one("q8", size=60), one("q4", size=30, clock=slow),
        one("fp16", size=50),
    )  # fmt: skip
    assert made.best("model.onnx", gpu=False).variant == "q8"
    assert made.best("model.onnx", gpu=True).variant == "fp16"


def test_a_configuration_keeps_what_it_had_and_names_files_with_weights_outside(tmp_path):
    kept = {"kv_cache_dtype": "float32", "device_config": {"webnn": {"dtype": "fp16"}}}
    config = json.dumps({"model_type": "bert", "transformers.js_config": kept})
    two = one("q8", hashes={"onnx/model_q8.onnx": "0", "onnx/model_q8.onnx_data": "1"})
    (tmp_path / "out").mkdir()
    card(tmp_path / "out", two).write(source(tmp_path / "in", config_json=config))
    found = json.loads((tmp_path / "out" / "config.json").read_text())
    section = found["transformers.js_config"]
    assert found["model_type"] == "bert" and section["kv_cache_dtype"] == "float32"
    assert section["device_config"]["webnn"] == {"dtype": "fp16"}
    assert section["dtype"] == {"model": "q8"}
    assert section["use_external_data_format"] == {"model_q8.onnx": 1}


def test_a_card_that_the_source_has_goes_on_and_is_not_repeated(tmp_path):
    made = source(tmp_path / "in", README_md="---\nlicense: mit\n---\n# Mine\n")
    with unchanged(tmp_path / "in"):
        (tmp_path / "out").mkdir()
        card(tmp_path / "out", one("q8")).write(made)
    text = (tmp_path / "out" / "README.md").read_text()
    assert text.startswith("---\nlicense: mit\n---\n# Mine\n") and text.count("# Variants") == 1
    (tmp_path / "in" / "README.md").write_text(text)
    card(tmp_path / "out", one("q8")).write(made)
    assert (tmp_path / "out" / "README.md").read_text() == text


def test_reasons_stay_in_their_cells(tmp_path):
    text = card(tmp_path, one("q8"), one("q4", reason="a | b")).text(source(tmp_path / "in"))
    assert "| onnx/model_q4.onnx | q4 | a \\| b |" in text


def test_a_list_that_names_files_elsewhere_removes_none(tmp_path):
    (tmp_path / "diary").write_text("")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "bitwright.json").write_text(json.dumps({"files": ["../diary"]}))
    card(tmp_path / "out", one("q8")).write(source(tmp_path / "in"))
    assert (tmp_path / "diary").is_file()


def test_a_configuration_that_is_none_is_refused(tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(ModelError, match="is no configuration"):
        card(tmp_path / "out", one("q8")).write(source(tmp_path / "in", config_json="[]"))
