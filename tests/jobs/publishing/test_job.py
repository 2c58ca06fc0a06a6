"""Variants are made, tried and named; what does not hold is not there, and the card says why."""

import hashlib
import json
import re
import signal
import subprocess
import sys
import time

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from support.folders import make_folder, make_text
from support.genai_folders import make_folder as make_genai_folder
from support.models import build, info, make_cnn, make_samples, node, weight
from support.published import make_encoder_folder

import bitwright
from bitwright.api import publish
from bitwright.errors import ArgumentError, ModelError, OutputError
from bitwright.jobs.publishing import job as publishing
from bitwright.jobs.publishing.job import WORK


@pytest.fixture
def folder(tmp_path):
    return make_encoder_folder(tmp_path / "encoder")


def files(path):
    return sorted(file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file())


def test_a_folder_for_transformers_js_has_its_names_its_configuration_and_a_card(folder, tmp_path):
    before, out = files(folder), tmp_path / "out"
    made = publish(folder, out, variants=["fp32", "fp16", "q8", "q4"], reports=False)
    assert files(folder) == before
    assert files(out) == [
        "README.md",
        "bitwright.json",
        "config.json",
        "onnx/model.onnx",
        "onnx/model_fp16.onnx",
        "onnx/model_q4.onnx",
        "onnx/model_quantized.onnx",
        "tokenizer_config.json",
    ]
    assert [one.variant for one in made.written] == ["fp32", "fp16", "q8", "q4"]
    feeds = {"input_ids": np.array([[3, 4, 5]]), "attention_mask": np.ones((1, 3), np.int64)}
    answers = [
        ort.InferenceSession(out / one.file).run(None, feeds)[0].ravel() for one in made.written
    ]
    for other in answers[1:]:
        assert np.corrcoef(answers[0], other)[0, 1] > 0.98
    section = json.loads((out / "config.json").read_text())["transformers.js_config"]
    assert section["device_config"]["webgpu"]["dtype"]["model"] in ("fp16", "q4")
    assert section["dtype"]["model"] in ("q8", "q4", "fp32")
    card = (out / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers.js\n") and "| q8 |" in card


def test_the_list_for_programs_has_recipes_hashes_and_versions(folder, tmp_path):
    publish(folder, tmp_path / "out", variants=["q8"], reports=False)
    found = json.loads((tmp_path / "out" / "bitwright.json").read_text())
    (one,) = found["variants"]
    content = (tmp_path / "out" / one["file"]).read_bytes()
    assert one["hashes"] == {one["file"]: hashlib.sha256(content).hexdigest()}
    assert one["size"] == len(content) and one["recipe"]["name"] == "int8-dynamic"
    assert len(one["plan"]) == 64 and found["versions"]["onnxruntime"] == ort.__version__


def test_what_an_earlier_run_has_finished_is_not_done_again(folder, tmp_path, monkeypatch):
    done, out = [], tmp_path / "out"
    certify = publishing.certify

    def stop_at_the_third(known, path, result):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(path.name)
        return certify(known, path, result)

    monkeypatch.setattr(publishing, "certify", stop_at_the_third)
    chosen = ["fp32", "fp16", "q8", "q4"]
    with pytest.raises(KeyboardInterrupt):
        publish(folder, out, variants=chosen, reports=False)
    assert files(out) and all(name.startswith(WORK) for name in files(out))
    again = []
    monkeypatch.setattr(
        publishing, "certify", lambda *given: again.append(given[1].name) or certify(*given)
    )
    made = publish(folder, out, variants=chosen, reports=False)
    assert again == ["model_quantized.onnx", "model_q4.onnx"]
    assert [one.variant for one in made.written] == chosen
    assert not (out / WORK).exists()


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("number", ["SIGINT", pytest.param("SIGKILL", marks=pytest.mark.slow)])
def test_ctrl_c_and_a_kill_lose_no_variant_that_was_finished(folder, tmp_path, monkeypatch, number):
    out, chosen = tmp_path / "out", ["fp32", "fp16", "q8", "q4"]
    words = ["publish", str(folder), "-o", str(out), "--variants", ",".join(chosen)]
    with subprocess.Popen(
        [sys.executable, "-m", "bitwright", *words, "--no-reports"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Shells start jobs in the background deaf to Ctrl-C, and these tests with them.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as job:
        done = set()
        while len(done) < 2 and job.poll() is None:
            time.sleep(0.005)
            done = {path.name for path in (out / WORK).glob("*.safetensors")}
        job.send_signal(getattr(signal, number))
    assert job.returncode in (130, -signal.SIGKILL)
    assert all(name.startswith(WORK) for name in files(out))  # no variant has its name yet
    again, certify = [], publishing.certify
    monkeypatch.setattr(
        publishing, "certify", lambda *given: again.append(given[1].name) or certify(*given)
    )
    made = publish(folder, out, variants=chosen, reports=False)
    assert 0 < len(again) <= 2 and "model.onnx" not in again
    assert [one.variant for one in made.written] == chosen and not (out / WORK).exists()


def test_a_mask_that_overflows_in_half_precision_is_found_and_not_written(tmp_path):
    # Of a row of padding alone nothing is left: each mask fits float16, and both are infinite.
    source = make_encoder_folder(tmp_path / "model", mask=-6e4, times=2)
    masks = np.array([[[1, 1, 1, 0]], [[0, 0, 0, 0]], [[1, 1, 0, 0]]])
    data = {"input_ids": np.full((3, 1, 4), 5), "attention_mask": masks}
    given = {"variants": ["fp32", "fp16", "q8f16"], "reports": False, "data": data}
    made = publish(source, tmp_path / "out", **given)
    half, broken = made.certificates[1:]
    assert half.reason is None  # what the masks reach was seen on the data
    assert broken.reason.startswith("below the bar: ") and "no numbers" in broken.reason
    assert "onnx/model_q8f16.onnx" not in files(tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| onnx/model_q8f16.onnx | q8f16 | below the bar" in card


def test_parts_of_one_name_stay_in_their_folders_and_images_have_the_size_they_ask_for(tmp_path):
    pipeline = tmp_path / "pipeline"
    for name, channels in (("unet", 4), ("vae_decoder", 2)):
        (pipeline / name).mkdir(parents=True)
        (pipeline / name / "config.json").write_text('{"sample_size": 8}')
        shape = ["batch", "channels", "height", "width"]
        layers = [
            node("Conv", ["sample", "w"], ["c"]),
            node("Reshape", ["c", "flat"], ["f"]),
            node("MatMul", ["f", "v"], ["y"]),
        ]
        constants = {"w": weight(4, channels, 1, 1), "flat": np.int64([1, 256]),
                     "v": weight(256, 8)}  # fmt: skip
        model = build(layers, {"sample": shape}, [info("y", None)], constants)
        onnx.save(model, pipeline / name / "model.onnx")
    publish(pipeline, tmp_path / "out", variants=["fp32", "fp16"], reports=False)
    assert [name for name in files(tmp_path / "out") if name.endswith(".onnx")] == [
        "unet/model.onnx",
        "unet/model_fp16.onnx",
        "vae_decoder/model.onnx",
        "vae_decoder/model_fp16.onnx",
    ]


def test_variants_above_a_size_are_not_written_and_the_reason_is(folder, tmp_path):
    made = publish(folder, tmp_path / "out", variants=["fp32", "q4"], max_size="40kB")
    assert [one.variant for one in made.written] == ["q4"]
    assert "above 40.0 kB" in made.certificates[0].reason
    assert (tmp_path / "out" / made.written[0].page).is_file()


def test_convolutions_are_quantized_by_data_under_the_name_of_q8(tmp_path):
    model = make_cnn()
    onnx.save(model, tmp_path / "cnn.onnx")
    data = make_samples(model, 16)
    given = {"variants": ["fp32", "q8", "int8"], "loader": "onnxruntime", "reports": False}
    made = publish(tmp_path / "cnn.onnx", tmp_path / "out", data=data, **given)
    recipes = {one.variant: one.recipe["name"] for one in made.certificates if one.recipe}
    assert recipes == {"q8": "int8-per-channel", "int8": "int8-per-channel"}
    blind = publish(tmp_path / "cnn.onnx", tmp_path / "blind", variants=["fp32", "q8"])
    assert "multiply-adds are in convolutions" in blind.certificates[1].reason


def test_genai_gets_a_folder_for_each_variant_with_all_that_belongs_to_it(tmp_path):
    folder = make_folder(tmp_path / "model")
    text = make_text(tmp_path / "text.txt")
    given = {"loader": "genai", "variants": ["fp16", "q4"], "reports": False}
    publish(folder, tmp_path / "out", **given)
    for variant in ("fp16", "q4"):
        assert files(tmp_path / "out" / variant) == [
            "genai_config.json",
            "model.onnx",
            "tokenizer_config.json",
        ]
    assert text.is_file()


def test_a_folder_of_genai_keeps_its_caches_in_float16_beside_narrow_attention(tmp_path):
    source = make_genai_folder("qwen3", tmp_path / "model")
    given = {"loader": "genai", "variants": ["fp16", "q4", "q4f16"], "reports": False}
    publish(source, tmp_path / "out", **given)
    casts = {}
    for variant in ("fp16", "q4", "q4f16"):
        path = tmp_path / "out" / variant / "model.onnx"
        session = ort.InferenceSession(path)
        ends = [*session.get_inputs(), *session.get_outputs()]
        kinds = {value.type for value in ends if re.match("past|present", value.name)}
        assert kinds == {"tensor(float)" if variant == "q4" else "tensor(float16)"}
        casts[variant] = sum(n.op_type == "Cast" for n in onnx.load(path).graph.node)
        assert (path.parent / "genai_config.json").is_file()
    assert casts == {"fp16": 3, "q4": 2, "q4f16": 3}  # the third one gives float32 logits


def test_each_folder_for_genai_is_whole_where_a_part_has_no_variant(tmp_path):
    source = make_genai_folder("llama", tmp_path / "model")
    absolute = build([node("Abs", ["x"], ["y"])], [info("x", [2])], [info("y", [2])])
    onnx.save(absolute, source / "a.onnx")
    given = {"loader": "genai", "variants": ["q4"], "reports": False}
    made = publish(source, tmp_path / "out", **given)
    assert [one.file for one in made.written] == ["q4/model.onnx"]
    assert (tmp_path / "out" / "q4" / "a.onnx").read_bytes() == (source / "a.onnx").read_bytes()
    (source / "genai_config.json").unlink()
    with pytest.raises(ModelError, match=r"has no genai_config\.json, without which genai loads"):
        publish(source, tmp_path / "other", **given)


def test_a_model_of_which_no_variant_holds_is_not_published_as_it_is(folder, tmp_path):
    # The float one beside a part that fails is for the other parts, and there are none.
    with pytest.raises(ModelError, match=r"holds \(static: it takes ranges from data, and none"):
        publish(folder, tmp_path / "out", variants=["static"], loader="onnxruntime")


def test_files_of_an_earlier_run_that_are_no_more_written_go(folder, tmp_path):
    out = tmp_path / "out"
    publish(folder, out, variants=["fp32", "fp16"], reports=False)
    publish(folder, out, variants=["fp32", "q4"], reports=False)
    assert "onnx/model_q4.onnx" in files(out) and "onnx/model_fp16.onnx" not in files(out)


def test_foreign_folders_the_input_and_unknown_names_are_refused(folder, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").write_text("")
    with pytest.raises(OutputError, match="is not empty"):
        publish(folder, tmp_path / "mine")
    with pytest.raises(OutputError, match="holds the input"):
        publish(folder, folder)
    with pytest.raises(ArgumentError, match=r"no variant 'q44'\. Did you mean 'q4'"):
        publish(folder, tmp_path / "out", variants=["q44"])
    with pytest.raises(ModelError, match="there is no file or folder"):
        publish(tmp_path / "nowhere", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_model_that_is_a_variant_already_is_no_part(folder, tmp_path):
    onnx.save(make_cnn(), folder / "model_q4.onnx")
    made = publish(folder, tmp_path / "out", variants=["fp32"], reports=False)
    assert {one.part for one in made.certificates} == {"model.onnx"}


def test_files_keep_answers_to_random_samples_that_are_asked_for_again(folder, tmp_path):
    made = publish(folder, tmp_path / "out", variants=["fp32", "q8"], reports=False, golden=2)
    for one in made.written:
        assert bitwright.verify(tmp_path / "out" / one.file, "here").findings == ()
    feeds = {name: np.ones((8, 1, 4), np.int64) for name in ("input_ids", "attention_mask")}
    given = {"golden": 1, "golden_from_data": True, "data": feeds, "loader": "onnxruntime"}
    publish(folder, tmp_path / "mine", variants=["fp32"], reports=False, **given)
    assert bitwright.verify(tmp_path / "mine" / "model.onnx", "here").findings == ()


def test_an_unknown_loader_is_refused_with_those_that_are_known(tmp_path):
    with pytest.raises(ArgumentError, match=r"loader is 'transformers.js' or .*not 'tfjs'"):
        bitwright.publish(tmp_path / "model.onnx", tmp_path / "out", loader="tfjs")
